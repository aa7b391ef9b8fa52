//! Calls of a function, by the code around them. Pure.
//!
//! A function that is called for many reasons, of which few are of interest, is cheaper to watch at the
//! calls than at its entry.

use std::collections::HashSet;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};

/// An instruction that calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// Its address.
    pub address: u64,
    /// The second argument, if the code allows no other.
    pub second: Option<u32>,
}

/// The calls of `callee` in the code of a function at `start`. `None` if the function gets there otherwise as
/// well: by a jump, or by its address.
pub(super) fn calls(code: &[u8], start: u64, callee: u64) -> Option<Vec<Call>> {
    let instructions: Vec<Instruction> =
        Decoder::with_ip(64, code, start, DecoderOptions::NONE).into_iter().collect();
    let is_jump = |i: &Instruction| {
        let flow = i.flow_control();
        matches!(flow, FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch)
    };
    let takes_address =
        |i: &Instruction| i.is_ip_rel_memory_operand() && i.ip_rel_memory_address() == callee;
    let targets: HashSet<u64> =
        instructions.iter().filter(|i| is_jump(i)).map(Instruction::near_branch_target).collect();
    if targets.contains(&callee) || instructions.iter().any(takes_address) {
        return None;
    }
    // Where a table of addresses leads is not known, so it may lead between an argument and its call.
    let is_flow_known =
        !instructions.iter().any(|i| i.flow_control() == FlowControl::IndirectBranch);
    let mut information = InstructionInfoFactory::new();
    let mut second = None;
    let mut calls = Vec::new();
    for instruction in &instructions {
        if targets.contains(&instruction.ip()) {
            second = None;
        }
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::ConditionalBranch => {
                let is_written =
                    information.info(instruction).used_registers().iter().any(|used| {
                        used.register().full_register() == Register::RSI
                            && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
                    });
                if is_written {
                    second = constant(instruction);
                }
            }
            flow => {
                if flow == FlowControl::Call && instruction.near_branch_target() == callee {
                    let address = instruction.ip();
                    calls.push(Call { address, second: second.filter(|_| is_flow_known) });
                }
                // What comes next is reached from elsewhere, or after a call that may write anything.
                second = None;
            }
        }
    }
    Some(calls)
}

/// What an instruction that writes to the register of the second argument leaves there.
fn constant(instruction: &Instruction) -> Option<u32> {
    let is_whole = matches!(instruction.op0_register(), Register::ESI | Register::RSI);
    match instruction.mnemonic() {
        Mnemonic::Mov if is_whole && instruction.op1_kind() != OpKind::Register => {
            instruction.try_immediate(1).ok().map(|value| value as u32)
        }
        Mnemonic::Xor if is_whole && instruction.op1_register() == instruction.op0_register() => {
            Some(0)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x1000;
    const CALLEE: u64 = 0x2000;

    /// `call CALLEE`, at an offset in the function.
    fn call(at: usize) -> Vec<u8> {
        let distance = (CALLEE as i64 - (START as i64 + at as i64 + 5)) as i32;
        [&[0xe8], &distance.to_le_bytes()[..]].concat()
    }

    /// Pieces of code; `None` is a call.
    fn found(pieces: &[Option<&[u8]>]) -> Option<Vec<(u64, Option<u32>)>> {
        let mut code = Vec::new();
        for piece in pieces {
            let piece = piece.map_or_else(|| call(code.len()), <[u8]>::to_vec);
            code.extend(piece);
        }
        let calls = calls(&code, START, CALLEE)?;
        Some(calls.iter().map(|call| (call.address - START, call.second)).collect())
    }

    const MOV_ESI_4: &[u8] = &[0xbe, 4, 0, 0, 0];
    const XOR_ESI: &[u8] = &[0x31, 0xf6];
    const MOV_ESI_EDI: &[u8] = &[0x89, 0xfe];
    const MOV_EDX_ESI: &[u8] = &[0x89, 0xf2];
    const RET: &[u8] = &[0xc3];

    #[test]
    fn constants_are_followed_to_the_call() {
        assert_eq!(found(&[Some(MOV_ESI_4), None, Some(RET)]), Some(vec![(5, Some(4))]));
        assert_eq!(found(&[Some(XOR_ESI), Some(MOV_EDX_ESI), None]), Some(vec![(4, Some(0))]));
        assert_eq!(found(&[Some(MOV_ESI_4), Some(MOV_ESI_EDI), None]), Some(vec![(7, None)]));
        assert_eq!(found(&[Some(MOV_ESI_4), None, None]), Some(vec![(5, Some(4)), (10, None)]));
        assert_eq!(found(&[Some(RET)]), Some(vec![]));
    }

    #[test]
    fn a_jump_between_leaves_the_argument_open() {
        // `jne` over the constant, and `jmp rax` anywhere.
        assert_eq!(found(&[Some(&[0x75, 5]), Some(MOV_ESI_4), None]), Some(vec![(7, None)]));
        assert_eq!(found(&[Some(MOV_ESI_4), None, Some(&[0xff, 0xe0])]), Some(vec![(5, None)]));
    }

    #[test]
    fn other_ways_are_told() {
        let jump = [&[0xe9], &call(0)[1..]].concat();
        assert_eq!(found(&[Some(&jump)]), None);
        // `lea CALLEE(%rip), %rax`
        let distance = (CALLEE - START - 7) as u32;
        let lea = [&[0x48, 0x8d, 0x05], &distance.to_le_bytes()[..]].concat();
        assert_eq!(found(&[Some(&lea)]), None);
    }
}
