//! Where a function that returns a thread-local variable takes it from.
//!
//! From 3.15 on the thread state is such a variable, which nothing exports. But the function that returns
//! it is exported, and compilers have few ways to write it: those of the ABI's four models for
//! thread-local storage that they use without being asked for another.

/// Where a thread-local variable is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadLocal {
    /// At an offset from the thread pointer (local exec: in a program).
    Offset(i64),
    /// The same, but the offset lies in the process's memory, at an offset from the function's start
    /// (initial exec).
    OffsetAt(i64),
    /// In a library's block: the module's number and a first offset lie in the process's memory, at an
    /// offset from the function's start (general and local dynamic).
    InBlock {
        /// Where these two words are.
        index: i64,
        /// What is added to the first offset.
        offset: i64,
    },
}

/// Bytes of a function that are looked at.
pub(super) const LOOKED_AT: u64 = 64;

/// Reads the code of a function; `None` if it is not understood.
pub(super) fn returned_by(code: &[u8]) -> Option<ThreadLocal> {
    // `mov %fs:disp32, %rax`
    const LOCAL_EXEC: &[u8] = &[0x64, 0x48, 0x8b, 0x04, 0x25];
    // `mov disp32(%rip), %rax`, then `mov %fs:(%rax), %rax`
    const FROM_TABLE: &[u8] = &[0x48, 0x8b, 0x05];
    const INITIAL_EXEC: &[u8] = &[0x64, 0x48, 0x8b, 0x00];
    // `lea disp32(%rip), %rdi`, then a call, which is of `__tls_get_addr`
    const INDEX: &[u8] = &[0x48, 0x8d, 0x3d];
    for (at, rest) in (0..code.len()).map(|at| (at, &code[at..])) {
        if let Some(rest) = rest.strip_prefix(LOCAL_EXEC) {
            return Some(ThreadLocal::Offset(displacement(rest)?));
        }
        if let Some(rest) = rest.strip_prefix(FROM_TABLE)
            && rest.get(4..)?.starts_with(INITIAL_EXEC)
        {
            return Some(ThreadLocal::OffsetAt(at as i64 + 7 + displacement(rest)?));
        }
        if let Some(rest) = rest.strip_prefix(INDEX) {
            let index = at as i64 + 7 + displacement(rest)?;
            let offset = loaded_after_call(rest.get(4..)?)?;
            return Some(ThreadLocal::InBlock { index, offset });
        }
        if rest.first() == Some(&RET) {
            break;
        }
    }
    None
}

const RET: u8 = 0xc3;

/// What is added to the address that the call returned, to read the result from.
fn loaded_after_call(code: &[u8]) -> Option<i64> {
    let call = code.iter().take(5).position(|&byte| byte == 0xe8 || byte == 0xff)?;
    let mut rest = code.get(call + 5..)?;
    loop {
        rest = match rest {
            // `mov (%rax), %rax`, without, with a short, with a long displacement
            [0x48, 0x8b, 0x00, ..] => return Some(0),
            [0x48, 0x8b, 0x40, short, ..] => return Some(i64::from(*short as i8)),
            [0x48, 0x8b, 0x80, rest @ ..] => return displacement(rest),
            // `add $8, %rsp`
            [0x48, 0x83, 0xc4, _, rest @ ..] => rest,
            // `nop`, `pop %rbp`, `leave`
            [0x90 | 0x5d | 0xc9, rest @ ..] => rest,
            _ => return None,
        };
    }
}

fn displacement(code: &[u8]) -> Option<i64> {
    let bytes: [u8; 4] = code.get(..4)?.try_into().ok()?;
    Some(i32::from_le_bytes(bytes).into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        hex.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
    }

    /// As in builds of 3.15, and as compilers write the other models.
    #[test]
    fn every_model() {
        for (code, expected) in [
            ("f3 0f 1e fa 64 48 8b 04 25 d8 ff ff ff c3", ThreadLocal::Offset(-40)),
            ("55 48 89 e5 64 48 8b 04 25 f8 ff ff ff 5d c3", ThreadLocal::Offset(-8)),
            ("f3 0f 1e fa 48 8b 05 00 10 00 00 64 48 8b 00 c3", ThreadLocal::OffsetAt(0x1000 + 11)),
            // Local dynamic, with a frame pointer.
            (
                "f3 0f 1e fa 55 48 89 e5 48 8d 3d 61 a6 4a 00 e8 5c 9d cf ff 5d 48 8b 80 28 00 00 00 c3",
                ThreadLocal::InBlock { index: 0x4a_a661 + 15, offset: 0x28 },
            ),
            // General dynamic, with its padding.
            (
                "50 66 48 8d 3d 00 10 00 00 66 66 48 e8 00 00 00 00 48 8b 00 5a c3",
                ThreadLocal::InBlock { index: 0x1000 + 9, offset: 0 },
            ),
            (
                "48 83 ec 08 48 8d 3d 10 00 00 00 e8 00 00 00 00 48 8b 40 f8 48 83 c4 08 c3",
                ThreadLocal::InBlock { index: 0x10 + 11, offset: -8 },
            ),
        ] {
            assert_eq!(returned_by(&bytes(code)), Some(expected), "{code}");
        }
    }

    /// Before 3.15 it is another function altogether.
    #[test]
    fn other_code_is_not_understood() {
        let with_key =
            "f3 0f 1e fa 83 3d 3b 49 77 00 00 74 0a bf e0 10 ba 00 e9 7f 2e 11 00 31 c0 c3";
        assert_eq!(returned_by(&bytes(with_key)), None);
        assert_eq!(returned_by(&bytes("31 c0 c3 64 48 8b 04 25 d8 ff ff ff c3")), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(code in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = returned_by(&code);
        }
    }
}
