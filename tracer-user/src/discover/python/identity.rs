//! Which CPython it is.

use tracer_common::{ReadMem as _, python::table::PythonVersion};

use super::{
    PythonError,
    interpreter::{CACHE_TAG, Interpreter, VERSION},
};

/// `_Py_DebugOffsets` starts with this, from 3.13 on.
const DEBUG_COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");

/// Version and flavour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub major: u8,
    pub minor: u8,
    micro: Option<u8>,
    pub free_threaded: bool,
}

impl Identity {
    fn from_hex(version: u64, free_threaded: bool) -> Self {
        let [_, micro, minor, major, ..] = version.to_le_bytes();
        Self { major, minor, micro: Some(micro), free_threaded }
    }

    fn new((major, minor): (u8, u8)) -> Self {
        Self { major, minor, micro: None, free_threaded: false }
    }

    /// Such as `3.11.7` or `3.13.5t`.
    pub fn text(&self) -> String {
        let micro = self.micro.map_or(String::new(), |micro| format!(".{micro}"));
        let flavour = if self.free_threaded { "t" } else { "" };
        format!("{}.{}{micro}{flavour}", self.major, self.minor)
    }

    /// What an interpreter says of itself; `None` if it says nothing that is understood.
    pub fn of(interpreter: &Interpreter<'_>) -> Option<Self> {
        let memory = interpreter.memory;
        if let Some(runtime) = interpreter.runtime
            && memory.read_u64(runtime) == Some(DEBUG_COOKIE)
        {
            let free_threaded = interpreter.field(runtime, 16)? != 0;
            return Some(Self::from_hex(interpreter.field(runtime, 8)?, free_threaded));
        }
        if let Some(version) = interpreter.address(VERSION) {
            return Some(Self::from_hex(memory.read_u32(version)?.into(), false));
        }
        // Older ones are told by names: `libpython3.10.so.1.0`, `python2.7`, or that of an extension
        // module, `_ssl.cpython-310-x86_64-linux-gnu.so`.
        let by_name = named(&interpreter.file.file_name()).or_else(|| {
            let names = interpreter.files.iter().map(|file| file.file_name());
            names.filter_map(|name| tagged(&name)).next()
        });
        if let Some(version) = by_name {
            return Some(Self::new(version));
        }
        // In a program of another name, without such modules: what came and went with versions.
        if let Some(tag) = interpreter.address(CACHE_TAG) {
            return tagged(&interpreter.text(interpreter.field(tag, 0)?)?).map(Self::new);
        }
        interpreter.runtime?;
        Some(Self::new(if interpreter.has_runtime_section() { (3, 10) } else { (3, 9) }))
    }
}

/// The version in `libpython3.10.so.1.0` or `python2.7`.
fn named(file: &str) -> Option<(u8, u8)> {
    let (major, rest) = file.split_once("python")?.1.split_once('.')?;
    Some((major.parse().ok()?, leading_number(rest)?))
}

/// The version in `_ssl.cpython-310-x86_64-linux-gnu.so` or `cpython-38`.
fn tagged(name: &str) -> Option<(u8, u8)> {
    Some((3, leading_number(name.split_once("cpython-3")?.1)?))
}

fn leading_number(text: &str) -> Option<u8> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// From 3.13 on the interpreter says where its fields are: the table has to agree.
pub(super) fn check_debug_offsets(
    known: &PythonVersion,
    identity: &Identity,
    slot: impl Fn(u16) -> Option<u64>,
) -> Result<(), PythonError> {
    for offset in known.debug_offsets {
        let found = slot(offset.position).unwrap_or(u64::MAX);
        if found != u64::from(offset.expected) {
            return Err(PythonError::OtherStructures {
                version: identity.text(),
                field: offset.name,
                found,
                expected: offset.expected.into(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tracer_common::python::table;

    use super::*;

    #[test]
    fn versions_in_names() {
        assert_eq!(named("libpython3.10.so.1.0"), Some((3, 10)));
        assert_eq!(named("libpython3.6m.so.1.0"), Some((3, 6)));
        assert_eq!(named("python2.7"), Some((2, 7)));
        assert_eq!(named("python"), None);
        assert_eq!(named("python3.x"), None);
        assert_eq!(tagged("_ssl.cpython-38-x86_64-linux-gnu.so"), Some((3, 8)));
        assert_eq!(tagged("cpython-310"), Some((3, 10)));
        assert_eq!(tagged("memory.so"), None);
    }

    /// A build whose structures differ in one field is refused by that field's name, not misread.
    #[test]
    fn other_structures_are_refused() {
        for known in table::VERSIONS.iter().filter(|version| !version.debug_offsets.is_empty()) {
            let identity = Identity {
                major: 3,
                minor: known.minor,
                micro: None,
                free_threaded: known.free_threaded,
            };
            let says = |position: u16, wrong: Option<u16>| {
                let slot = known.debug_offsets.iter().find(|slot| slot.position == position)?;
                Some(u64::from(slot.expected) + 8 * u64::from(wrong == Some(position)))
            };
            assert!(check_debug_offsets(known, &identity, |at| says(at, None)).is_ok());
            for slot in known.debug_offsets {
                let wrong = |at| says(at, Some(slot.position));
                let error = check_debug_offsets(known, &identity, wrong).unwrap_err();
                assert!(error.to_string().contains(slot.name), "{error}");
            }
        }
    }

    #[test]
    fn versions_as_text() {
        let release = Identity::from_hex(0x030b_07f0, false);
        assert_eq!((release.text().as_str(), release.minor), ("3.11.7", 11));
        assert_eq!(Identity::from_hex(0x030d_05f0, true).text(), "3.13.5t");
        assert_eq!(Identity::new((3, 10)).text(), "3.10");
    }
}
