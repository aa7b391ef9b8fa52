//! What NVIDIA's management library counts for a process: everything that it has of a GPU, also what no
//! probe can see (the CUDA context, code, what was there before).
//!
//! Loaded when there is one; a machine without it is fine. The functions and structs are those of the
//! public documentation of NVML.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use libloading::{Library, Symbol};

use crate::model::{GpuUse, Pid};

/// Looked for where the dynamic loader looks.
const LIBRARY: &str = "libnvidia-ml.so.1";

const SUCCESS: c_int = 0;
const INSUFFICIENT_SIZE: c_int = 7;

/// `NVML_VALUE_NOT_AVAILABLE` of a number of bytes.
const NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;

/// Bytes of a UUID or a name (`NVML_DEVICE_UUID_V2_BUFFER_SIZE` and its kin).
const TEXT_BYTES: usize = 96;

/// More processes on one GPU are not looked at.
const MAX_PROCESSES: c_uint = 4096;

type Device = *mut c_void;

/// `nvmlProcessInfo_t`, versions 2 and 3.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: c_uint,
    used_gpu_memory: c_ulonglong,
    gpu_instance_id: c_uint,
    compute_instance_id: c_uint,
}

type Status = unsafe extern "C" fn() -> c_int;
type Count = unsafe extern "C" fn(*mut c_uint) -> c_int;
type ByIndex = unsafe extern "C" fn(c_uint, *mut Device) -> c_int;
type Text = unsafe extern "C" fn(Device, *mut c_char, c_uint) -> c_int;
type Processes = unsafe extern "C" fn(Device, *mut c_uint, *mut ProcessInfo) -> c_int;

/// The library, initialised.
pub struct Nvml(Library);

impl Nvml {
    /// Loads it, if this machine has it and it works.
    pub fn load() -> Option<Self> {
        // SAFETY: the driver's own library, from where the system keeps its libraries.
        let library = unsafe { Library::new(LIBRARY) }.ok()?;
        let nvml = Self(library);
        // SAFETY: the function's signature.
        let status = unsafe { nvml.symbol::<Status>(b"nvmlInit_v2\0")?() };
        if status != SUCCESS {
            tracing::debug!("NVML is there, but does not start: error {status}");
            return None;
        }
        Some(nvml)
    }

    /// What processes have of each GPU.
    pub fn processes(&self) -> Vec<(Pid, GpuUse)> {
        (0..self.count().unwrap_or(0)).filter_map(|index| self.of_device(index)).flatten().collect()
    }

    fn count(&self) -> Option<c_uint> {
        let mut count = 0;
        // SAFETY: the function's signature; the pointer is to a local.
        let status = unsafe { self.symbol::<Count>(b"nvmlDeviceGetCount_v2\0")?(&raw mut count) };
        (status == SUCCESS).then_some(count)
    }

    fn of_device(&self, index: c_uint) -> Option<Vec<(Pid, GpuUse)>> {
        let mut device: Device = std::ptr::null_mut();
        // SAFETY: the function's signature; the pointer is to a local.
        let status = unsafe {
            self.symbol::<ByIndex>(b"nvmlDeviceGetHandleByIndex_v2\0")?(index, &raw mut device)
        };
        if status != SUCCESS {
            return None;
        }
        let uuid = self.text(b"nvmlDeviceGetUUID\0", device);
        let name = self.text(b"nvmlDeviceGetName\0", device);
        let processes = self.running(device)?;
        let uses = processes.into_iter().map(|process| {
            let used = Some(process.used_gpu_memory).filter(|&bytes| bytes != NOT_AVAILABLE);
            let gpu = GpuUse { index, uuid: uuid.clone(), name: name.clone(), used_bytes: used };
            (Pid(process.pid), gpu)
        });
        Some(uses.collect())
    }

    fn text(&self, function: &[u8], device: Device) -> Option<String> {
        let mut buffer = [0; TEXT_BYTES];
        // SAFETY: the function's signature; it writes at most the length given.
        let status = unsafe {
            self.symbol::<Text>(function)?(device, buffer.as_mut_ptr(), TEXT_BYTES as c_uint)
        };
        buffer[TEXT_BYTES - 1] = 0;
        // SAFETY: ends in a zero byte.
        let text = unsafe { CStr::from_ptr(buffer.as_ptr()) };
        (status == SUCCESS).then(|| text.to_string_lossy().into_owned())
    }

    fn running(&self, device: Device) -> Option<Vec<ProcessInfo>> {
        let list = self
            .symbol::<Processes>(b"nvmlDeviceGetComputeRunningProcesses_v3\0")
            .or_else(|| self.symbol::<Processes>(b"nvmlDeviceGetComputeRunningProcesses_v2\0"))?;
        let mut processes = vec![ProcessInfo::default(); 64];
        loop {
            let mut count = processes.len() as c_uint;
            // SAFETY: the function's signature; it writes at most `count` of them.
            match unsafe { list(device, &raw mut count, processes.as_mut_ptr()) } {
                SUCCESS => {
                    processes.truncate(count as usize);
                    return Some(processes);
                }
                // More came meanwhile, perhaps.
                INSUFFICIENT_SIZE if count <= MAX_PROCESSES => {
                    let room = (count as usize).max(processes.len()) * 2;
                    processes.resize(room, ProcessInfo::default());
                }
                _ => return None,
            }
        }
    }

    /// # Safety of what is returned
    ///
    /// `T` must be the type of the function.
    fn symbol<T: Copy>(&self, name: &[u8]) -> Option<T> {
        // SAFETY: by the caller.
        let symbol: Symbol<'_, T> = unsafe { self.0.get(name) }.ok()?;
        Some(*symbol)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: the function's signature.
        let _ = self.symbol::<Status>(b"nvmlShutdown\0").map(|shut_down| unsafe { shut_down() });
    }
}
