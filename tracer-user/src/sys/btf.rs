//! Offsets of fields of the running kernel's structures, from its BTF.
//!
//! Only what is needed: the type section is walked once, and named structs are looked into. Format:
//! the kernel's `Documentation/bpf/btf.rst`.

use std::{fs, io, path::Path};

use thiserror::Error;

/// Where the kernel publishes its type information.
pub const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// Why an offset is not to be had.
#[derive(Debug, Error)]
pub enum BtfError {
    /// The file is not there: a kernel built without `CONFIG_DEBUG_INFO_BTF`.
    #[error("cannot read `{path}`")]
    Read {
        /// Its path.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file is not what it should be.
    #[error("type information of the kernel is malformed at byte {0}")]
    Malformed(usize),
    /// The struct or field is not there.
    #[error("the kernel has no `{0}`")]
    Missing(String),
}

/// Byte offsets in the kernel's own structures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskOffsets {
    /// `thread.fsbase` in `task_struct`: the thread pointer of an x86-64 task.
    pub fsbase: u32,
    /// `tgid` in `task_struct`: its process.
    pub tgid: u32,
    /// `signal` in `task_struct`: what the threads of a process share.
    pub signal: u32,
    /// `exit_code` in `task_struct`: the wait status.
    pub exit_code: u32,
    /// `live` in `signal_struct`: threads that have not exited.
    pub live: u32,
}

/// The offsets that the kernel half needs.
///
/// # Errors
///
/// [`BtfError`] when the kernel publishes no type information, or it lacks these fields.
pub fn task_offsets(path: &Path) -> Result<TaskOffsets, BtfError> {
    let data = fs::read(path)
        .map_err(|source| BtfError::Read { path: path.display().to_string(), source })?;
    let btf = Btf::parse(&data)?;
    Ok(TaskOffsets {
        fsbase: btf.field("task_struct", "thread")? + btf.field("thread_struct", "fsbase")?,
        tgid: btf.field("task_struct", "tgid")?,
        signal: btf.field("task_struct", "signal")?,
        exit_code: btf.field("task_struct", "exit_code")?,
        live: btf.field("signal_struct", "live")?,
    })
}

const MAGIC: u16 = 0xeb9f;
const KIND_STRUCT: u32 = 4;

/// The two sections of a BTF blob.
struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
}

impl<'a> Btf<'a> {
    fn parse(data: &'a [u8]) -> Result<Self, BtfError> {
        let magic = data.get(..2).ok_or(BtfError::Malformed(0))?;
        if magic != MAGIC.to_le_bytes() {
            return Err(BtfError::Malformed(0));
        }
        let header = u32_at(data, 4)? as usize;
        let section = |offset: usize, length: usize| {
            let start = header.checked_add(u32_at(data, offset)? as usize);
            let length = u32_at(data, length)? as usize;
            start
                .and_then(|start| data.get(start..start.checked_add(length)?))
                .ok_or(BtfError::Malformed(offset))
        };
        Ok(Self { types: section(8, 12)?, strings: section(16, 20)? })
    }

    fn field(&self, wanted: &str, member: &str) -> Result<u32, BtfError> {
        let mut at = 0;
        while at < self.types.len() {
            let name = u32_at(self.types, at)?;
            let info = u32_at(self.types, at + 4)?;
            let count = (info & 0xffff) as usize;
            let kind = (info >> 24) & 0x1f;
            at += 12;
            if kind == KIND_STRUCT && self.name(name) == Some(wanted.as_bytes()) {
                for index in 0..count {
                    let entry = at + 12 * index;
                    if self.name(u32_at(self.types, entry)?) == Some(member.as_bytes()) {
                        let bits = u32_at(self.types, entry + 8)?;
                        // With the kind flag the upper byte is a bit-field's size.
                        let bits = if info >> 31 == 1 { bits & 0x00ff_ffff } else { bits };
                        return Ok(bits / 8);
                    }
                }
            }
            at += trailing(kind, count).ok_or(BtfError::Malformed(at))?;
        }
        Err(BtfError::Missing(format!("{wanted}.{member}")))
    }

    fn name(&self, offset: u32) -> Option<&'a [u8]> {
        self.strings.get(offset as usize..)?.split(|&byte| byte == 0).next()
    }
}

/// Bytes that follow the common 12 of a type; `None` for a kind from the future.
fn trailing(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        2 | 7 | 8 | 9 | 10 | 11 | 12 | 16 | 18 => 0,
        // INT, VAR, DECL_TAG
        1 | 14 | 17 => 4,
        // ARRAY
        3 => 12,
        // STRUCT, UNION, DATASEC, ENUM64
        4 | 5 | 15 | 19 => 12 * count,
        // ENUM, FUNC_PROTO
        6 | 13 => 8 * count,
        _ => return None,
    })
}

fn u32_at(data: &[u8], at: usize) -> Result<u32, BtfError> {
    let bytes = at.checked_add(4).and_then(|end| data.get(at..end));
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok()).ok_or(BtfError::Malformed(at))?;
    Ok(u32::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A BTF blob with one struct per entry, each of `(name, [(member, bits)])`.
    fn blob(structs: &[(&str, &[(&str, u32)])]) -> Vec<u8> {
        let (mut types, mut strings) = (Vec::new(), vec![0u8]);
        let intern = |text: &str, strings: &mut Vec<u8>| {
            let at = strings.len() as u32;
            strings.extend(text.bytes());
            strings.push(0);
            at
        };
        for (name, members) in structs {
            let name = intern(name, &mut strings);
            types.extend(name.to_le_bytes());
            types.extend((KIND_STRUCT << 24 | members.len() as u32).to_le_bytes());
            types.extend(8u32.to_le_bytes());
            for (member, bits) in *members {
                types.extend(intern(member, &mut strings).to_le_bytes());
                types.extend(0u32.to_le_bytes());
                types.extend(bits.to_le_bytes());
            }
        }
        let mut data = Vec::new();
        data.extend(MAGIC.to_le_bytes());
        data.extend([1, 0]);
        for value in [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32] {
            data.extend(value.to_le_bytes());
        }
        data.extend(types);
        data.extend(strings);
        data
    }

    #[test]
    fn finds_a_field_behind_other_structs() {
        let data = blob(&[
            ("list_head", &[("next", 0), ("prev", 64)]),
            ("task_struct", &[("state", 0), ("thread", 24704)]),
            ("thread_struct", &[("sp", 0), ("fsbase", 320)]),
        ]);
        let btf = Btf::parse(&data).unwrap();
        assert_eq!(btf.field("task_struct", "thread").unwrap(), 3088);
        assert_eq!(btf.field("thread_struct", "fsbase").unwrap(), 40);
        assert!(matches!(btf.field("task_struct", "nope"), Err(BtfError::Missing(_))));
    }

    #[test]
    fn every_truncation_is_an_error_and_no_panic() {
        let data = blob(&[("task_struct", &[("thread", 64)])]);
        for length in 0..data.len() - 1 {
            let found = Btf::parse(&data[..length]).and_then(|b| b.field("task_struct", "thread"));
            assert!(found.is_err(), "{length} bytes");
        }
    }

    #[test]
    fn the_running_kernel_is_read_if_it_publishes_types() {
        if Path::new(KERNEL_BTF).exists() {
            let offsets = task_offsets(Path::new(KERNEL_BTF)).unwrap();
            assert!(offsets.fsbase > 0 && offsets.fsbase.is_multiple_of(8));
            assert!(offsets.tgid > 0 && offsets.signal > 0 && offsets.live > 0);
        }
    }
}
