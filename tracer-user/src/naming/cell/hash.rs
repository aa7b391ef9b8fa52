//! The hashes by which IPython and ipykernel name the code of a cell.

use sha1::{Digest as _, Sha1};

/// ipykernel's seed (`ipykernel/compiler.py`, 6.0).
const SEED: u32 = 0xc70f_6907;

/// Digits of a digest that IPython keeps in a name (`IPython/core/compilerop.py`).
const DIGITS: usize = 12;

/// MurmurHash2, 32 bits, as ipykernel computes it.
pub(super) fn murmur2(bytes: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = SEED ^ bytes.len() as u32;
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k = (k ^ k >> 24).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let tail = rest.iter().rev().fold(0, |tail, &byte| tail << 8 | u32::from(byte));
        hash = (hash ^ tail).wrapping_mul(M);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(M);
    hash ^ hash >> 15
}

/// The first digits of the SHA-1, in hexadecimal.
pub(super) fn sha1_digits(bytes: &[u8]) -> String {
    let digest = Sha1::digest(bytes);
    digest.iter().take(DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `ipykernel.compiler.murmur2_x86` 7.4.0 and of `hashlib`.
    #[test]
    fn the_same_as_in_python() {
        for (text, murmur, sha) in VALUES {
            assert_eq!(murmur2(text.as_bytes()), murmur, "{text}");
            assert_eq!(sha1_digits(text.as_bytes()), sha, "{text}");
        }
    }

    const VALUES: [(&str, u32, &str); 6] = [
        ("", 3_990_065_800, "da39a3ee5e6b"),
        ("a", 2_167_009_006, "86f7e437faa5"),
        ("ab", 2_805_137_849, "da23614e0246"),
        ("abc", 3_350_977_461, "a9993e364706"),
        ("x = [1]\n", 2_122_007_013, "4b25b062ed1d"),
        ("größe = '数'  # 🙂", 3_157_399_519, "f2f6a85ab26a"),
    ];
}
