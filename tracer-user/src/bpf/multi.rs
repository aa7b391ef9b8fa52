//! Several places by one link.
//!
//! A link of `uprobe_multi` (kernel 6.6) hangs a program on any number of places of a file, each with its
//! cookie. Without it every place is a perf event, which the kernel takes away under one lock, for a grace
//! period each (80 ms on 6.18): the hundred entry points of a driver take seconds then.
//!
//! aya 0.14 does not offer these links, and a program has to be loaded for them. So the object is read
//! once more here, by `aya-obj`, on top of the maps that aya has made.

use std::{
    collections::HashMap,
    error::Error,
    ffi::{CStr, CString},
    io, mem,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
};

use aya::{Ebpf, maps::Map};
use aya_obj::{
    Object,
    generated::{
        BPF_F_UPROBE_MULTI_RETURN, bpf_attach_type::BPF_TRACE_UPROBE_MULTI, bpf_attr, bpf_cmd,
        bpf_insn, bpf_prog_type::BPF_PROG_TYPE_KPROBE,
    },
};

use super::{
    LoadError, Place, Program,
    attach::in_parallel,
    program::{DEFINE, PROGRAMS},
};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// The programs on functions that are loaded for such links, by name.
pub(super) struct MultiPrograms(HashMap<&'static str, OwnedFd>);

impl MultiPrograms {
    /// Loads programs of the object that `ebpf` was made from, on a kernel that has such links
    /// ([`check_links`]).
    ///
    /// # Errors
    ///
    /// When the kernel refuses one, or the object is not what it should be.
    pub fn load(object: &[u8], ebpf: &Ebpf, names: &[&'static str]) -> Result<Self, LoadError> {
        let object = relocated(object, ebpf).map_err(LoadError::Load)?;
        // The verifier takes its time, but takes several programs at once.
        let programs = in_parallel(names.to_vec(), |name| {
            let program = object.programs.get(name).ok_or(LoadError::Object(name))?;
            let code = &object.functions[&program.function_key()].instructions;
            let program = load(name, code, &program.license);
            program.map(|fd| (name, fd)).map_err(|error| LoadError::program(name, error))
        });
        let programs: HashMap<_, _> = programs.into_iter().collect::<Result<_, _>>()?;
        let array = ebpf.map(PROGRAMS).and_then(descriptor).ok_or(LoadError::Object(PROGRAMS))?;
        let define = programs.get(DEFINE.1).ok_or(LoadError::Object(DEFINE.1))?;
        put(array, DEFINE.0, define).map_err(|error| LoadError::program(DEFINE.1, error))?;
        Ok(Self(programs))
    }

    /// The programs.
    pub fn descriptors(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        self.0.iter().map(|(&name, fd)| (name, fd.as_fd()))
    }

    /// Hangs a program on places of a file, all at returns or none, for one process or for all (0). The link
    /// ends when it is dropped.
    ///
    /// # Errors
    ///
    /// The kernel's; then none of the places has the program.
    pub fn link(&self, places: &[&Place], pid: u32) -> io::Result<OwnedFd> {
        let [first, ..] = places else { return Err(io::ErrorKind::InvalidInput.into()) };
        let program = self.0.get(first.program.name()).ok_or(io::ErrorKind::NotFound)?;
        let flags = if first.program.at_return() { BPF_F_UPROBE_MULTI_RETURN } else { 0 };
        link(program, flags, places, pid)
    }
}

/// The object once more, on top of the maps that were made for it.
fn relocated(object: &[u8], ebpf: &Ebpf) -> Result<Object> {
    let mut object = Object::parse(object)?;
    let sections = object.functions.keys().map(|(section, _)| *section).collect();
    let maps = mem::take(&mut object.maps);
    let loaded =
        ebpf.maps().filter_map(|(name, map)| Some((name, descriptor(map)?, maps.get(name)?)));
    object.relocate_maps(loaded.map(|(name, fd, map)| (name, fd.as_raw_fd(), map)), &sections)?;
    object.relocate_calls(&sections)?;
    Ok(object)
}

/// Whether the kernel has such links, and has them right.
///
/// Those of kernels before 6.10 that are meant for one process are for one thread. Since that was put right
/// a pid that cannot be is refused before anything else, and a file that cannot be only later.
pub(super) fn check_links() -> Result<()> {
    // Loading ours is slow where the verifier is.
    let program = load("nothing", &[instruction(MOV, 0), instruction(EXIT, 0)], c"GPL")?;
    let folder = Place { program: Program::CodeDealloc, path: "/".into(), offset: 0 };
    let refusal = |pid| link(&program, 0, &[&folder], pid).err()?.raw_os_error();
    match (refusal(0), refusal(u32::MAX)) {
        (Some(libc::EBADF), Some(libc::EINVAL)) => Ok(()),
        (Some(libc::EBADF), _) => {
            Err("this kernel's links of many uprobes are for a thread".into())
        }
        _ => Err("this kernel has no links of many uprobes".into()),
    }
}

/// `r0 = immediate`, and the end of a program.
const MOV: u8 = 0xb7;
const EXIT: u8 = 0x95;

fn instruction(code: u8, imm: i32) -> bpf_insn {
    bpf_insn {
        code,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(0, 0),
        off: 0,
        imm,
    }
}

fn link(program: &OwnedFd, flags: u32, places: &[&Place], pid: u32) -> io::Result<OwnedFd> {
    let Some(first) = places.first() else { return Err(io::ErrorKind::InvalidInput.into()) };
    let path = CString::new(first.path.as_os_str().as_bytes())?;
    let offsets: Vec<u64> = places.iter().map(|place| place.offset).collect();
    let cookies: Vec<u64> =
        places.iter().map(|place| place.program.cookie().unwrap_or_default()).collect();
    // SAFETY: plain data, for which all zeros are valid.
    let mut attr: bpf_attr = unsafe { mem::zeroed() };
    attr.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
    attr.link_create.attach_type = BPF_TRACE_UPROBE_MULTI as u32;
    // SAFETY: a place in a union of plain data.
    let multi = unsafe { &mut attr.link_create.__bindgen_anon_3.uprobe_multi };
    multi.path = path.as_ptr() as u64;
    multi.offsets = offsets.as_ptr() as u64;
    multi.cookies = cookies.as_ptr() as u64;
    multi.cnt = places.len() as u32;
    multi.flags = flags;
    multi.pid = pid;
    // SAFETY: the pointers are to what lives until the end of this function.
    unsafe { bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr) }
}

/// Of the kinds of maps that the object has.
fn descriptor(map: &Map) -> Option<BorrowedFd<'_>> {
    match map {
        Map::Array(map)
        | Map::PerCpuArray(map)
        | Map::HashMap(map)
        | Map::LruHashMap(map)
        | Map::ProgramArray(map)
        | Map::RingBuf(map) => Some(map.fd().as_fd()),
        _ => None,
    }
}

fn load(name: &str, code: &[bpf_insn], license: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: plain data, for which all zeros are valid.
    let mut attr: bpf_attr = unsafe { mem::zeroed() };
    // SAFETY: a place in a union of plain data.
    let program = unsafe { &mut attr.__bindgen_anon_3 };
    program.prog_type = BPF_PROG_TYPE_KPROBE as u32;
    program.expected_attach_type = BPF_TRACE_UPROBE_MULTI as u32;
    program.insns = code.as_ptr() as u64;
    program.insn_cnt = code.len() as u32;
    program.license = license.as_ptr() as u64;
    // The last one stays 0.
    let room = program.prog_name.len() - 1;
    for (to, &from) in program.prog_name[..room].iter_mut().zip(name.as_bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the pointers are to what lives until the end of this function.
    unsafe { bpf(bpf_cmd::BPF_PROG_LOAD, &mut attr) }
}

/// Puts a program into a map of programs.
fn put(map: BorrowedFd<'_>, index: u32, program: &OwnedFd) -> io::Result<()> {
    let program = program.as_raw_fd();
    // SAFETY: plain data, for which all zeros are valid.
    let mut attr: bpf_attr = unsafe { mem::zeroed() };
    // SAFETY: a place in a union of plain data.
    let element = unsafe { &mut attr.__bindgen_anon_2 };
    element.map_fd = map.as_raw_fd() as u32;
    element.key = (&raw const index) as u64;
    element.__bindgen_anon_1.value = (&raw const program) as u64;
    // SAFETY: the pointers are to what lives until the end of this function.
    unsafe { call(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

/// # Safety
///
/// Pointers in `attr` must be valid, and the command must be one that returns a new descriptor.
unsafe fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: by the caller; the descriptor is new, so nobody else's.
    unsafe { call(command, attr).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// # Safety
///
/// Pointers in `attr` must be valid.
unsafe fn call(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<i32> {
    let size = size_of::<bpf_attr>();
    // SAFETY: by the caller.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command as libc::c_long, std::ptr::from_mut(attr), size)
    };
    i32::try_from(result).ok().filter(|&result| result >= 0).ok_or_else(io::Error::last_os_error)
}
