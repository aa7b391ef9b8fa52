//! Where a function returns to its caller. Pure.
//!
//! A return can be hooked by the kernel (uretprobe), which puts an address of its own in the place of the
//! caller's. A C++ exception cannot pass it: the process would end. For functions that throw, the
//! instructions that return are probed instead.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};

/// Instructions of a thunk that are looked at.
const THUNK_INSTRUCTIONS: usize = 4;

/// Offsets of the instructions in the code of a whole function that return.
pub(super) fn returns(code: &[u8]) -> Vec<u64> {
    let decoder = Decoder::new(64, code, DecoderOptions::NONE);
    decoder
        .into_iter()
        .filter(|instruction| instruction.flow_control() == FlowControl::Return)
        .map(|instruction| instruction.ip())
        .collect()
}

/// The function that the one at `address` becomes, if all that it does is to jump there.
pub(super) fn jump_target(code: &[u8], address: u64) -> Option<u64> {
    let decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    for instruction in decoder.into_iter().take(THUNK_INSTRUCTIONS) {
        match instruction.flow_control() {
            FlowControl::Next if !instruction.is_invalid() => {}
            FlowControl::UnconditionalBranch => return Some(instruction.near_branch_target()),
            _ => return None,
        }
    }
    None
}

/// Whether the function does nothing but return, with a constant.
pub(super) fn is_constant(code: &[u8]) -> bool {
    let decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let names: Vec<Mnemonic> = decoder
        .into_iter()
        .map(|instruction| instruction.mnemonic())
        .filter(|&name| name != Mnemonic::Endbr64)
        .take(2)
        .collect();
    matches!(names[..], [Mnemonic::Xor | Mnemonic::Mov, Mnemonic::Ret])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_of_all_forms() {
        // push %rbx; test %rsi,%rsi; je +2; pop %rbx; ret; xor %eax,%eax; pop %rbx; repz ret
        let code = [0x53, 0x48, 0x85, 0xf6, 0x74, 2, 0x5b, 0xc3, 0x31, 0xc0, 0x5b, 0xf3, 0xc3];
        assert_eq!(returns(&code), [7, 11]);
        assert!(returns(&[]).is_empty());
    }

    #[test]
    fn thunks() {
        // endbr64; xor %edx,%edx; jmp +0x100
        let thunk = [0xf3, 0x0f, 0x1e, 0xfa, 0x31, 0xd2, 0xe9, 0, 1, 0, 0];
        assert_eq!(jump_target(&thunk, 0x1000), Some(0x1000 + 11 + 0x100));
        // mov (%rdi),%rax; jmp *0x10(%rax): to another virtual function.
        assert_eq!(jump_target(&[0x48, 0x8b, 0x07, 0xff, 0x60, 0x10], 0x1000), None);
        assert_eq!(jump_target(&[0xc3], 0x1000), None);
        assert_eq!(jump_target(&[], 0x1000), None);
    }

    #[test]
    fn constants() {
        assert!(is_constant(&[0xf3, 0x0f, 0x1e, 0xfa, 0x31, 0xc0, 0xc3]));
        assert!(is_constant(&[0xb8, 1, 0, 0, 0, 0xc3]));
        assert!(!is_constant(&[0x53, 0x31, 0xc0, 0xc3]));
        assert!(!is_constant(&[0xc3]));
    }
}
