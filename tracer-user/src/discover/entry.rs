//! Which instruction of a function to probe. Pure.
//!
//! The kernel emulates `push`, `nop`, jumps and calls; every other instruction has to be
//! single-stepped out of line, which costs ten times as much (docs/overhead.md). Probing a later
//! instruction is as good as the first one while the argument registers and the stack are untouched
//! and nothing was branched over.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    Register,
};

/// Bytes of a function that are looked at.
pub const ENTRY_BYTES: u64 = 64;

/// Instructions that are looked at.
const MAX_INSTRUCTIONS: usize = 16;

/// Registers that carry arguments, and the stack pointer.
const KEPT: [Register; 7] = [
    Register::RDI,
    Register::RSI,
    Register::RDX,
    Register::RCX,
    Register::R8,
    Register::R9,
    Register::RSP,
];

/// Where to probe, and why there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeOffset {
    /// Bytes from the function's first instruction.
    pub offset: u64,
    /// For people.
    pub reason: String,
}

/// Chooses among the first instructions of a function, whose code is `bytes`.
pub fn choose(bytes: &[u8]) -> ProbeOffset {
    let mut decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
    let mut info = InstructionInfoFactory::new();
    let mut first = None;
    for _ in 0..MAX_INSTRUCTIONS {
        if !decoder.can_decode() {
            break;
        }
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            break;
        }
        let name = format!("{:?}", instruction.mnemonic()).to_lowercase();
        let offset = instruction.ip();
        if is_emulated(&instruction) {
            let reason = if offset == 0 {
                format!("`{name}` at the entry is emulated")
            } else {
                format!("`{name}` at +{offset:#x} is emulated, the entry is not")
            };
            return ProbeOffset { offset, reason };
        }
        first.get_or_insert(name);
        if instruction.flow_control() != FlowControl::Next || !is_harmless(&instruction, &mut info)
        {
            break;
        }
    }
    let name = first.unwrap_or_else(|| "unknown bytes".to_owned());
    ProbeOffset { offset: 0, reason: format!("`{name}` at the entry is single-stepped") }
}

/// Whether the kernel emulates it: `arch/x86/kernel/uprobes.c`, `branch_setup_xol_ops` and
/// `push_setup_xol_ops` (since 4.15). Prefixed forms are not.
fn is_emulated(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Push => instruction.op0_register().is_gpr64(),
        Mnemonic::Nop => instruction.len() == 1,
        Mnemonic::Jmp => instruction.is_jmp_short_or_near(),
        Mnemonic::Call => instruction.is_call_near(),
        _ => instruction.is_jcc_short_or_near(),
    }
}

/// Whether arguments and stack are the same after it: it writes none of [`KEPT`] and no memory.
fn is_harmless(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> bool {
    let info = factory.info(instruction);
    let writes = |access: OpAccess| {
        matches!(
            access,
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        )
    };
    info.used_registers()
        .iter()
        .all(|used| !writes(used.access()) || !KEPT.contains(&used.register().full_register()))
        && info.used_memory().iter().all(|used| !writes(used.access()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn real_prologues() {
        let cases: [(&str, &[u8], u64); 8] = [
            ("push %rbp", &[0x55, 0x48, 0x89, 0xe5], 0),
            ("push %r15", &[0x41, 0x57, 0x41, 0x56], 0),
            ("endbr64; push %rbp", &[0xf3, 0x0f, 0x1e, 0xfa, 0x55], 4),
            // The driver's thunk: cmpl $0x321cba00, state(%rip); je.
            (
                "cmpl; je",
                &[0x81, 0x3d, 1, 2, 3, 4, 0x00, 0xba, 0x1c, 0x32, 0x74, 0x0a, 0xff, 0x25],
                10,
            ),
            // libc10 2.15: mov x(%rip),%rax; push.
            ("mov; push", &[0x48, 0x8b, 0x05, 1, 2, 3, 4, 0x55], 7),
            // sub $8,%rsp moves the stack.
            ("sub; push", &[0x48, 0x83, 0xec, 0x08, 0x55], 0),
            // mov %rsi,%rdi loses an argument.
            ("mov; push", &[0x48, 0x89, 0xf7, 0x55], 0),
            // ret: nothing behind it is the function's.
            ("ret; push", &[0xc3, 0x55], 0),
        ];
        for (name, bytes, offset) in cases {
            assert_eq!(choose(bytes).offset, offset, "{name}: {:?}", choose(bytes));
        }
    }

    #[test]
    fn nothing_to_decode_is_the_entry() {
        assert_eq!(choose(&[]).offset, 0);
        assert_eq!(choose(&[0x0f]).offset, 0);
    }

    proptest! {
        /// Whatever the bytes are: the choice starts an instruction, and everything before it
        /// leaves arguments and stack alone by an independent, cruder rule.
        #[test]
        fn the_choice_keeps_arguments(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let chosen = choose(&bytes).offset;
            let mut decoder = Decoder::new(64, &bytes, DecoderOptions::NONE);
            let mut at = 0;
            while at < chosen {
                let instruction = decoder.decode();
                prop_assert!(!instruction.is_invalid());
                prop_assert_eq!(instruction.flow_control(), FlowControl::Next);
                prop_assert_eq!(instruction.stack_pointer_increment(), 0);
                let mut factory = InstructionInfoFactory::new();
                let first = factory.info(&instruction).op0_access();
                let written = matches!(first, OpAccess::Write | OpAccess::ReadWrite);
                let kept = KEPT.contains(&instruction.op0_register().full_register());
                prop_assert!(!(written && kept), "{}", instruction.mnemonic() as u32);
                at = instruction.next_ip();
            }
            prop_assert_eq!(at, chosen);
        }
    }
}
