//! Symbols as their programmers wrote them. Pure.
//!
//! A symbol is whatever its file says, and a few bytes of it can stand for any amount of text, as parts
//! of it are written again and again: the text is cut while it is made.

use std::fmt::{self, Write};

use cpp_demangle::{BorrowedSymbol, DemangleOptions};

/// Bytes of a name that are kept.
const MAX_NAME: usize = 512;

/// Bytes of a symbol that is worth being taken apart.
const MAX_SYMBOL: usize = 4096;

/// A function's name: of C++ without parameters and result, of Rust without the hash, of everything else
/// as it is. One that is too long ends in `…`.
pub(super) fn demangle(symbol: &[u8]) -> String {
    let text = String::from_utf8_lossy(symbol);
    if symbol.len() > MAX_SYMBOL {
        return Bounded::of(|out| out.write_str(&text));
    }
    if let Ok(rust) = rustc_demangle::try_demangle(&text) {
        return Bounded::of(|out| write!(out, "{rust:#}"));
    }
    let options = DemangleOptions::new().no_params().no_return_type();
    if let Ok(cpp) = BorrowedSymbol::new(symbol) {
        return Bounded::of(|out| cpp.structured_demangle(out, &options));
    }
    Bounded::of(|out| out.write_str(&text))
}

/// Text that says that it is full as soon as it is.
#[derive(Default)]
struct Bounded(String);

impl Bounded {
    fn of(make: impl FnOnce(&mut Self) -> fmt::Result) -> String {
        let mut out = Self::default();
        if make(&mut out).is_err() {
            out.0.push('…');
        }
        out.0
    }
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MAX_NAME - self.0.len();
        self.0.push_str(&text[..text.floor_char_boundary(room)]);
        if text.len() <= room { Ok(()) } else { Err(fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_as_they_were_written() {
        for (symbol, name) in [
            ("cublasCreate_v2", "cublasCreate_v2"),
            (
                "_ZN3c104cuda20CUDACachingAllocator8allocateEm",
                "c10::cuda::CUDACachingAllocator::allocate",
            ),
            ("_ZN12_GLOBAL__N_13runIiEEvT_", "(anonymous namespace)::run<int>"),
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            // Not what it begins like.
            ("_ZN", "_ZN"),
            ("_Z?", "_Z?"),
            ("", ""),
        ] {
            assert_eq!(demangle(symbol.as_bytes()), name);
        }
        assert_eq!(demangle(b"f\xff"), "f\u{fffd}");
    }

    /// Each level of it writes the one before twice: 2 to the power of 40 parts in all.
    #[test]
    fn a_name_that_unfolds_without_end_is_cut() {
        let mut symbol = b"_Z1fI1AIiiE".to_vec();
        for level in 0..40 {
            let back = if level == 0 { "S_".to_owned() } else { format!("S{level:X}_") };
            let back = if level > 15 { "S9_".to_owned() } else { back };
            symbol.extend(format!("1AI{back}{back}E").bytes());
        }
        symbol.extend(b"Evv");
        let name = demangle(&symbol);
        assert!(name.starts_with("f<A<int, int>") && name.ends_with('…'), "{name}");
        assert!(name.len() <= MAX_NAME + '…'.len_utf8());
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let name = demangle("ä".repeat(400).as_bytes());
        assert_eq!(name, format!("{}…", "ä".repeat(MAX_NAME / 2)));
        assert!(demangle(&[b'x'; MAX_SYMBOL + 1]).ends_with("x…"));
    }

    #[test]
    fn bytes_of_any_kind_are_a_name() {
        let mut symbol = b"_ZN1aI".to_vec();
        for byte in 0..=255 {
            symbol.push(byte);
            demangle(&symbol);
        }
        demangle(&[b"_Z1f".as_slice(), &b"P".repeat(4000)].concat());
    }

    proptest! {
        #[test]
        fn any_symbol_ends_soon(rest in "[NKSTIEJXLDFAMPROtaibcvlpsdgnrwyqmho0-9_.]{0,300}") {
            let name = demangle(format!("_Z{rest}").as_bytes());
            prop_assert!(name.len() <= MAX_NAME + '…'.len_utf8());
        }
    }
}
