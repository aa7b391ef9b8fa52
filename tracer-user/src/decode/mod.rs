//! Ring-buffer bytes to typed records: total, bounded, and with an error for everything else.

mod record;
mod string;

pub use record::{
    CellStart, CodeDefinition, DecodeError, LinesPiece, PoolDefinition, ProcessChange, Record,
    StackDefinition, StackFrame, decode,
};

#[cfg(test)]
mod tests;
