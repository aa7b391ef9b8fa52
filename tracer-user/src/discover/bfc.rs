//! Where a BFC allocator keeps its name: read out of the function that returns it.

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind, Register};

/// Bytes of the function that are looked at.
pub const NAME_BYTES: u64 = 96;

/// Farther than any field of the allocator is.
const MAX_OFFSET: u64 = 0x4000;

/// The offset in the allocator of its `std::string` name, given the code of
/// `std::string BFCAllocator::Name()`. It is returned through memory, so `this` is the second argument;
/// the string is copied, so the first thing that is read from `this` is the string's pointer.
pub fn name_offset(code: &[u8]) -> Option<u64> {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let mut this = Register::RSI;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return None;
        }
        let reads = (0..instruction.op_count()).any(|i| instruction.op_kind(i) == OpKind::Memory);
        if reads
            && instruction.memory_base() == this
            && instruction.memory_index() == Register::None
        {
            let offset = instruction.memory_displacement64();
            let is_address = matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::Lea);
            return (is_address && (8..MAX_OFFSET).contains(&offset)).then_some(offset);
        }
        // `this` may be kept in another register first.
        if instruction.mnemonic() == Mnemonic::Mov
            && instruction.op1_kind() == OpKind::Register
            && instruction.op1_register() == this
            && instruction.op0_kind() == OpKind::Register
        {
            this = instruction.op0_register();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_read_of_this() {
        // push %rbp; mov %rsp,%rbp; push %rbx; mov %rdi,%rbx; mov 0x4e8(%rsi),%r8
        let direct =
            [0x55, 0x48, 0x89, 0xe5, 0x53, 0x48, 0x89, 0xfb, 0x4c, 0x8b, 0x86, 0xe8, 0x04, 0, 0];
        assert_eq!(name_offset(&direct), Some(0x4e8));
        // push %rbx; mov %rsi,%rbx; mov 0x3e8(%rbx),%rax
        let moved = [0x53, 0x48, 0x89, 0xf3, 0x48, 0x8b, 0x83, 0xe8, 0x03, 0, 0];
        assert_eq!(name_offset(&moved), Some(0x3e8));
        // Not a field: mov (%rsi),%rax reads the table of virtual functions.
        assert_eq!(name_offset(&[0x48, 0x8b, 0x06]), None);
        assert_eq!(name_offset(&[]), None);
        assert_eq!(name_offset(&[0xff; 40]), None);
    }
}
