//! What the names of pools say.

use crate::model::Device;

/// The device of a BFC allocator: TensorFlow and JAX name it `GPU_<n>_bfc`, or `GPU_` with a purpose and
/// the number. Others are in host memory.
pub(super) fn device(name: &str) -> Option<Device> {
    let rest = name.strip_prefix("GPU_")?;
    let digits = rest.split('_').find(|part| !part.is_empty() && part.bytes().all(is_digit))?;
    digits.parse().ok().map(Device)
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_is_in_the_name() {
        for (name, expected) in [
            ("GPU_0_bfc", Some(0)),
            ("GPU_11_bfc", Some(11)),
            ("GPU_collectivememory_3_bfc", Some(3)),
            ("GPU_300_bfc", None),
            ("GPU_host_bfc", None),
            ("bfc_cpu_allocator_for_gpu", None),
            ("", None),
        ] {
            assert_eq!(device(name), expected.map(Device), "{name}");
        }
    }
}
