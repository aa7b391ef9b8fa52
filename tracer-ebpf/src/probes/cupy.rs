//! CuPy's objects (`cupy/cuda/memory.pxd` of 14.2): extension types of Cython, whose fields begin behind the
//! header of a Python object and, in a class that starts with methods of C, the pointer to their table.

use tracer_common::{ReadMem as _, wire::MemoryEvent};

use crate::memory::CurrentProcess;

/// `MemoryPointer`: its address, its device, and the memory that it points into.
mod pointer {
    pub const ADDRESS: u64 = 24;
    pub const DEVICE: u64 = 32;
    pub const MEMORY: u64 = 40;
}

/// `PooledMemory`: its address, its size, which is that of the block, and its device.
mod memory {
    pub const ADDRESS: u64 = 16;
    pub const SIZE: u64 = 24;
    pub const DEVICE: u64 = 32;
}

/// A block was handed out, as a `MemoryPointer`.
#[inline(always)]
pub fn allocated(event: &mut MemoryEvent, pointer: u64) -> Option<()> {
    // Null with an exception set: there is no memory.
    let memory = CurrentProcess.read_u64(pointer.wrapping_add(pointer::MEMORY))?;
    let address = CurrentProcess.read_u64(pointer.wrapping_add(pointer::ADDRESS))?;
    fill(event, address, memory, pointer.wrapping_add(pointer::DEVICE))
}

/// A block comes back, as a `PooledMemory`.
#[inline(always)]
pub fn freed(event: &mut MemoryEvent, memory: u64) -> Option<()> {
    let address = CurrentProcess.read_u64(memory.wrapping_add(memory::ADDRESS))?;
    fill(event, address, memory, memory.wrapping_add(memory::DEVICE))?;
    event.size = -event.size;
    Some(())
}

#[inline(always)]
fn fill(event: &mut MemoryEvent, address: u64, memory: u64, device: u64) -> Option<()> {
    // Nothing was asked for, or it was freed before.
    event.address = (address != 0).then_some(address)?;
    event.size = CurrentProcess.read_u64(memory.wrapping_add(memory::SIZE))? as i64;
    event.device = CurrentProcess.read_u32(device)? as i8;
    Some(())
}
