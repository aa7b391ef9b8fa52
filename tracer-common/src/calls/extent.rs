//! Sizes by dimensions. The kernel half sends what a call says of them as it is ([`CallEvent`]): the verifier
//! would go through every way of multiplying it.
//!
//! [`CallEvent`]: crate::wire::CallEvent

use super::place;

/// Bits of the flags of an array: its depth is a number of layers, or of the faces of a cube.
const LAYERED: u32 = 1;
const CUBE: u32 = 4;

/// The bytes at a [`place`] of dimensions, of a failed call those that were asked for. `words` are what
/// [`CallShape::words`](super::CallShape::words) points to. The driver may pad an array, so of one this is a lower bound.
pub fn size(at: u8, failed: bool, arguments: &[u64; 6], words: &[u64; 5]) -> u64 {
    let [_, _, third, fourth, fifth, sixth] = *arguments;
    let [first, second, ..] = *words;
    // A call that fails does not set the pitch.
    let pitched = |pitch: u64, width: u64, rows: u64| {
        (if failed { width } else { pitch }).saturating_mul(rows)
    };
    let by_value = [fourth, fifth, sixth];
    let (levels, flags) = halves(third);
    match at & 0xf0 {
        place::PITCHED => pitched(first, third, fourth),
        place::PITCHED_V1 => pitched(halves(first).0.into(), third, fourth),
        // struct { pointer, pitch, width, height }.
        place::PITCHED_3D => pitched(second, fourth, fifth.saturating_mul(sixth)),
        // struct { width, height, int format, channels }.
        place::ARRAY => array([first, second, 0], element(words[2]), 1, 0),
        // The same in ints.
        place::ARRAY_V1 => {
            let (width, height) = halves(first);
            array([width.into(), height.into(), 0], element(second), 1, 0)
        }
        // struct { width, height, depth, int format, channels, flags }.
        place::ARRAY_3D => array([first, second, words[2]], element(words[3]), 1, 0),
        place::MIPMAPPED => {
            array([first, second, words[2]], element(words[3]), levels, halves(words[4]).0)
        }
        // The same in ints.
        place::ARRAY_3D_V1 => {
            let ((width, height), (depth, format)) = (halves(first), halves(second));
            let element = element(u64::from(format) | words[2] << 32);
            array([width.into(), height.into(), depth.into()], element, 1, 0)
        }
        place::CHANNELS => array([third, fourth, 0], channels(first, second), 1, 0),
        place::CHANNELS_3D => array(by_value, channels(first, second), 1, 0),
        place::CHANNELS_MIPMAPPED => array(by_value, channels(first, second), levels, flags),
        _ => 0,
    }
}

/// An array of elements, and the smaller ones that go with it: each level has half the dimensions of the one
/// before, and none comes after one of a single element.
fn array(extent: [u64; 3], element: u64, levels: u32, flags: u32) -> u64 {
    let has_layers = flags & (LAYERED | CUBE) != 0;
    // Those that are not used are 0.
    let [mut width, mut height, mut depth] = extent.map(|length| length.max(1));
    let mut elements = 0u64;
    for level in 1..=levels.max(1) {
        elements = elements.saturating_add(width.saturating_mul(height).saturating_mul(depth));
        let largest = width.max(height).max(if has_layers { 1 } else { depth });
        if level == levels || largest == 1 {
            break;
        }
        (width, height) = ((width / 2).max(1), (height / 2).max(1));
        depth = if has_layers { depth } else { (depth / 2).max(1) };
    }
    elements.saturating_mul(element)
}

/// Bytes of an element by a `CUarray_format` and, in the upper half, the number of channels.
fn element(word: u64) -> u64 {
    let (format, channels) = halves(word);
    let width = match format {
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => 1,
    };
    width * u64::from(channels)
}

/// Bytes of an element by the bits of four channels, each an int.
fn channels(first: u64, second: u64) -> u64 {
    let ((x, y), (z, w)) = (halves(first), halves(second));
    [x, y, z, w].map(u64::from).iter().sum::<u64>() / 8
}

/// The lower and the upper half.
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTE: u64 = 0x01 | 1 << 32;
    const FLOATS: u64 = 0x20 | 2 << 32;

    #[test]
    fn dimensions_that_are_not_used_count_as_one() {
        let bytes = |extent: [u64; 3]| {
            let [width, height, depth] = extent;
            size(place::ARRAY_3D + 1, false, &[0; 6], &[width, height, depth, FLOATS, 0])
        };
        assert_eq!(bytes([100, 0, 0]), 800);
        assert_eq!(bytes([100, 7, 0]), 5600);
        assert_eq!(bytes([100, 7, 3]), 16800);
        assert_eq!(bytes([131072, 65536, 16384]), 8 << (17 + 16 + 14));
        assert_eq!(bytes([u64::MAX; 3]), u64::MAX, "nonsense does not overflow");
    }

    #[test]
    fn both_versions_and_both_layers_say_the_same() {
        let arguments = [0, 0, 100, 7, 0, 0];
        let by_value = [0, 0, 1, 100, 7, 3];
        let bits = [32 | 32 << 32, 0, 0, 0, 0];
        let flat = [100 | 7 << 32, FLOATS, 0, 0, 0];
        let deep = [100 | 7 << 32, 3 | FLOATS << 32, FLOATS >> 32, 0, 0];
        for (at, arguments, words, expected) in [
            (place::ARRAY, [0; 6], [100, 7, FLOATS, 0, 0], 5600),
            (place::ARRAY_V1, [0; 6], flat, 5600),
            (place::CHANNELS, arguments, bits, 5600),
            (place::ARRAY_3D_V1, [0; 6], deep, 16800),
            (place::CHANNELS_3D, by_value, bits, 16800),
            (place::CHANNELS_MIPMAPPED, by_value, bits, 16800),
        ] {
            assert_eq!(size(at + 1, false, &arguments, &words), expected, "{at:#x}");
        }
    }

    #[test]
    fn a_call_that_fails_has_no_pitch() {
        let arguments = [0, 0, 500, 10, 0, 0];
        assert_eq!(size(place::PITCHED, false, &arguments, &[512, 0, 0, 0, 0]), 5120);
        assert_eq!(size(place::PITCHED, true, &arguments, &[512, 0, 0, 0, 0]), 5000);
        let narrow = [512 | 77 << 32, 0, 0, 0, 0];
        assert_eq!(size(place::PITCHED_V1, false, &arguments, &narrow), 5120);
        let by_value = [0, 0, 0, 500, 10, 3];
        assert_eq!(size(place::PITCHED_3D, false, &by_value, &[7, 512, 0, 0, 0]), 15360);
        assert_eq!(size(place::PITCHED_3D, true, &by_value, &[7, 512, 0, 0, 0]), 15000);
    }

    #[test]
    fn levels_end_with_a_single_element() {
        let bytes = |[width, height, depth]: [u64; 3], levels: u64, flags: u64| {
            let words = [width, height, depth, BYTE, flags];
            size(place::MIPMAPPED + 1, false, &[0, 0, levels, 0, 0, 0], &words)
        };
        assert_eq!(bytes([8, 4, 0], 1, 0), 32);
        assert_eq!(bytes([8, 4, 0], 2, 0), 32 + 8);
        assert_eq!(bytes([8, 4, 0], 0, 0), 32, "there always is one");
        assert_eq!(bytes([8, 4, 0], u64::MAX, 0), 32 + 8 + 2 + 1);
        assert_eq!(bytes([8, 4, 6], 2, 0), 192 + 4 * 2 * 3);
        assert_eq!(bytes([8, 4, 6], 2, LAYERED.into()), 192 + 4 * 2 * 6, "layers do not shrink");
        assert_eq!(bytes([4, 4, 6], 255, CUBE.into()), 6 * (16 + 4 + 1));
    }
}
