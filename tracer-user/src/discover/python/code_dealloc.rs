//! The function that frees code objects.

use tracer_common::python::{
    table::PythonVersion,
    walk::{WalkState, walk},
};

use super::{
    Function, PythonError,
    interpreter::{CODE_TYPE, Interpreter},
};
use crate::discover::elf::Elf;

/// It has no symbol of its own.
const CODE_DEALLOC: &str = "PyCode_Type.tp_dealloc";

/// `PyCode_Type.tp_dealloc`, as it is in memory, back to a place in a file.
pub(super) fn find(
    interpreter: &Interpreter<'_>,
    known: &PythonVersion,
    thread_state: u64,
) -> Result<Function, PythonError> {
    let error = |why| interpreter.no_thread_state(why);
    let code_type = interpreter
        .address(CODE_TYPE)
        .or_else(|| type_of_running_code(interpreter, known, thread_state))
        .ok_or_else(|| error("PyCode_Type is neither exported nor in use"))?;
    let function = interpreter.field(code_type, known.runtime.type_dealloc);
    let function = function.ok_or_else(|| error("PyCode_Type is not readable"))?;
    for file in interpreter.files {
        let Some(range) = file
            .ranges
            .iter()
            .find(|range| range.executable && (range.start..range.end).contains(&function))
        else {
            continue;
        };
        let offset = (function - range.start).wrapping_add(range.offset);
        let elf = Elf::open(&file.open_path, &[])?;
        if let Some(address) = elf.address_of_offset(offset) {
            return Ok(Function {
                symbol: CODE_DEALLOC,
                path: file.path.clone(),
                open_path: file.open_path.clone(),
                address,
            });
        }
    }
    Err(error("the function that frees code objects lies in no mapped file"))
}

/// Where nothing exports the type: that of a code object which is running.
fn type_of_running_code(
    interpreter: &Interpreter<'_>,
    known: &PythonVersion,
    thread_state: u64,
) -> Option<u64> {
    let mut state = WalkState::new(0);
    walk(&known.layout, thread_state, &mut state, interpreter.memory);
    let code = state.frames[..state.depth as usize].first()?.code;
    let found = interpreter.field(code, known.runtime.object_type)?;
    let name = interpreter.text(interpreter.field(found, known.runtime.type_name)?)?;
    (name == "code").then_some(found)
}
