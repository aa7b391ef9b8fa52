//! An empty probe: a program that does nothing on an instruction. What it costs is the least that any
//! tracer that runs on that instruction can cost.

use std::{
    ffi::CString,
    io, mem,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use aya_obj::generated::{
    bpf_attach_type::BPF_TRACE_UPROBE_MULTI, bpf_attr, bpf_cmd, bpf_insn,
    bpf_prog_type::BPF_PROG_TYPE_KPROBE,
};

/// It is there until it is dropped.
pub struct EmptyProbe {
    _program: OwnedFd,
    _link: OwnedFd,
}

impl EmptyProbe {
    /// Hangs it on the instruction at an offset in a file, for one process.
    ///
    /// # Errors
    ///
    /// The kernel's: it has no links of many uprobes (before 6.6), for one.
    pub fn attach(path: &Path, offset: u64, pid: u32) -> io::Result<Self> {
        // `r0 = 0; exit`.
        let code = [instruction(0xb7), instruction(0x95)];
        // SAFETY: plain data, for which all zeros are valid.
        let mut attr: bpf_attr = unsafe { mem::zeroed() };
        // SAFETY: a place in a union of plain data.
        let program = unsafe { &mut attr.__bindgen_anon_3 };
        program.prog_type = BPF_PROG_TYPE_KPROBE as u32;
        program.expected_attach_type = BPF_TRACE_UPROBE_MULTI as u32;
        program.insns = code.as_ptr() as u64;
        program.insn_cnt = code.len() as u32;
        program.license = c"GPL".as_ptr() as u64;
        let program = bpf(bpf_cmd::BPF_PROG_LOAD, &mut attr)?;

        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: as above.
        let mut attr: bpf_attr = unsafe { mem::zeroed() };
        attr.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
        attr.link_create.attach_type = BPF_TRACE_UPROBE_MULTI as u32;
        // SAFETY: as above.
        let multi = unsafe { &mut attr.link_create.__bindgen_anon_3.uprobe_multi };
        multi.path = path.as_ptr() as u64;
        multi.offsets = (&raw const offset) as u64;
        multi.cnt = 1;
        multi.pid = pid;
        let link = bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr)?;
        Ok(Self { _program: program, _link: link })
    }
}

fn instruction(code: u8) -> bpf_insn {
    bpf_insn {
        code,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(0, 0),
        off: 0,
        imm: 0,
    }
}

fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    let size = size_of::<bpf_attr>();
    // SAFETY: the callers above give pointers that are valid during the call.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command as libc::c_long, std::ptr::from_mut(attr), size)
    };
    match i32::try_from(result) {
        // SAFETY: new, so nobody else's.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
