//! The text of a cell, and its parts that code is compiled from: the whole cell, and the bodies of the
//! cell magics that it begins with, such as `%%capture`, which run their body as a cell of its own.

use std::sync::Arc;

use super::hash::{murmur2, sha1_digits};
use crate::model::CellFile;

/// Cell magics one inside of another that are looked into.
const MAX_MAGICS: usize = 4;

/// Line ends at the end of a cell that are tried: the history keeps texts without.
const LINE_ENDS: [&str; 4] = ["", "\n", "\n\n", "\n\n\n"];

/// A cell as it was run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::naming) struct CellText {
    /// As typed.
    raw: Box<str>,
    /// After IPython's transformations, if known.
    transformed: Option<Box<str>>,
}

/// A part of a cell: after how many cell magics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::naming) struct Part(u8);

impl Part {
    pub(super) const WHOLE: Self = Self(0);

    /// What the innermost magic of the part runs.
    pub(in crate::naming) fn body(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// A part of a cell with its text.
pub(in crate::naming) type PartText = (Arc<CellText>, Part);

/// Where a line of code is in its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::naming) struct CellLine<'a> {
    /// Counted from the top of the cell as typed; `None` where a transformation joined lines.
    pub(in crate::naming) number: Option<u32>,
    /// Its text.
    pub(in crate::naming) text: &'a str,
    /// Whether it is the last line, and an expression: IPython keeps its value.
    pub(in crate::naming) is_result: bool,
}

impl CellText {
    pub(in crate::naming) fn new(raw: &str, transformed: Option<&str>) -> Self {
        let raw = raw.trim_end_matches('\n');
        let transformed = transformed.map(|text| text.trim_end_matches('\n'));
        // Most cells have nothing to transform.
        Self {
            raw: raw.into(),
            transformed: transformed.filter(|text| *text != raw).map(Into::into),
        }
    }

    /// Bytes that it takes.
    pub(super) fn size(&self) -> usize {
        self.raw.len() + self.transformed.as_deref().map_or(0, str::len)
    }

    /// Its first line that is not empty.
    pub(super) fn head(&self) -> Option<&str> {
        lines(&self.raw).map(str::trim).find(|line| !line.is_empty())
    }

    /// What a part may be called by ipykernel from 6 on, and which part.
    pub(super) fn hashes(&self) -> impl Iterator<Item = (u32, Part)> {
        self.parts().flat_map(|(part, text, _)| {
            let mut text = text.to_owned();
            LINE_ENDS.map(|_| {
                let hash = murmur2(text.as_bytes());
                text.push('\n');
                (hash, part)
            })
        })
    }

    /// The part with a digest of IPython's.
    fn part_with_digest(&self, digest: &str) -> Option<Part> {
        let matches = |text: &str| {
            LINE_ENDS.iter().any(|end| sha1_digits(format!("{text}{end}").as_bytes()) == digest)
        };
        let whole = self.transformed.as_deref().is_some_and(matches);
        if whole {
            return Some(Part::WHOLE);
        }
        // Before it is compiled a part has lost the empty lines at its top, or is a call of its magic.
        let named = self.parts().find(|(_, text, _)| {
            matches(without_blank_top(text)) || magic_call(text).is_some_and(|call| matches(&call))
        });
        named.map(|(part, ..)| part)
    }

    /// The part that a file name stands for.
    pub(super) fn part_named(&self, file: &CellFile<'_>) -> Option<Part> {
        match file {
            CellFile::Hashed(hash) => {
                self.hashes().find(|(other, _)| other == hash).map(|(_, part)| part)
            }
            CellFile::Numbered { digest: Some(digest), .. } => self.part_with_digest(digest),
            CellFile::Numbered { digest: None, .. } => Some(Part::WHOLE),
            CellFile::Named { .. } => None,
        }
    }

    /// Every part: its text, and how many lines of the cell are above it.
    fn parts(&self) -> impl Iterator<Item = (Part, &str, usize)> {
        let mut next = Some((Part::WHOLE, &*self.raw, 0));
        std::iter::from_fn(move || {
            let (part, text, above) = next?;
            next = body(text)
                .filter(|_| usize::from(part.0) < MAX_MAGICS)
                .map(|(body, lines)| (part.body(), body, above + lines));
            Some((part, text, above))
        })
    }

    /// Whether a part begins with a cell magic.
    pub(in crate::naming) fn has_body(&self, part: Part) -> bool {
        self.parts().any(|(other, ..)| other == part.body())
    }

    /// A line of the code that was compiled from a part.
    pub(in crate::naming) fn line(&self, part: Part, line: u32) -> Option<CellLine<'_>> {
        let (_, text, above) = self.parts().find(|(other, ..)| *other == part)?;
        let index = (line as usize).checked_sub(1)?;
        let blank = blank_top(text);
        let typed: Vec<&str> = lines(text).collect();
        let place = match self.transformed.as_deref().filter(|_| part == Part::WHOLE) {
            Some(transformed) => {
                let compiled: Vec<&str> = lines(transformed).collect();
                match typed_place(&compiled, typed.get(blank..)?, index) {
                    Some(place) => place,
                    None => {
                        let text = *compiled.get(index)?;
                        return Some(CellLine { number: None, text, is_result: false });
                    }
                }
            }
            None => joined_place(typed.get(blank..)?, index)?,
        } + blank;
        let text = *typed.get(place)?;
        let is_code = |line: &&str| !matches!(line.trim_start().as_bytes(), [] | [b'#', ..]);
        let is_last = !typed.iter().skip(place + 1).any(is_code);
        let number = u32::try_from(above + place + 1).ok();
        Some(CellLine { number, text, is_result: is_last && is_expression(text) })
    }
}

/// Whether a line is an expression by itself whose value is shown.
fn is_expression(line: &str) -> bool {
    const STATEMENTS: [&str; 14] = [
        "assert", "async", "break", "class", "continue", "def", "del", "for", "from", "import",
        "pass", "raise", "return", "while",
    ];
    let text = line.trim_end();
    let word = text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("");
    let begins = text.starts_with(|c: char| c.is_alphanumeric() || "_([{'\"".contains(c));
    begins && !STATEMENTS.contains(&word) && !text.ends_with([';', ':']) && !assigns(text)
}

/// Whether there is a `=` outside of brackets that is not part of a comparison.
fn assigns(text: &str) -> bool {
    let mut depth = 0;
    let mut before = ' ';
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '#' => return false,
            '=' if letters.peek() == Some(&'=') => {
                letters.next();
            }
            '=' if depth == 0 && !matches!(before, '<' | '>' | '!' | ':') => return true,
            _ => {}
        }
        before = letter;
    }
    false
}

/// What the cell magic at the top of a text is given, and how many lines are above that.
fn body(text: &str) -> Option<(&str, usize)> {
    let blank = blank_top(text);
    let top = without_blank_top(text);
    let (magic, body) = top.split_once('\n')?;
    let name = magic.strip_prefix("%%")?;
    // `%%magic?` asks for help.
    (!name.starts_with(char::is_whitespace) && !name.is_empty() && !name.trim_end().ends_with('?'))
        .then_some((body, blank + 1))
}

/// What IPython 7 makes of a cell magic (`inputtransformer2.cell_magic`).
fn magic_call(text: &str) -> Option<String> {
    let (body, _) = body(text)?;
    let magic = lines(without_blank_top(text)).next()?.strip_prefix("%%")?;
    let (name, line) = magic.split_once(' ').unwrap_or((magic, ""));
    // The cell that it comes from ended in a line end, if it had any.
    let end = if body.ends_with('\n') { "" } else { "\n" };
    let body = python_repr(&format!("{body}{end}"));
    let (name, line) = (python_repr(name), python_repr(line));
    Some(format!("get_ipython().run_cell_magic({name}, {line}, {body})"))
}

/// A text as Python writes it, as far as it is printable: else it is another text, and matches nothing.
fn python_repr(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut repr = String::from(quote);
    for character in text.chars() {
        match character {
            '\n' => repr.push_str("\\n"),
            '\r' => repr.push_str("\\r"),
            '\t' => repr.push_str("\\t"),
            '\\' => repr.push_str("\\\\"),
            _ if character == quote => {
                repr.push('\\');
                repr.push(character);
            }
            '\0'..='\u{1f}' | '\u{7f}' => repr.push_str(&format!("\\x{:02x}", character as u32)),
            _ => repr.push(character),
        }
    }
    repr.push(quote);
    repr
}

/// Lines as the compiler counts them.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n').map(|line| line.trim_end_matches('\r'))
}

/// Lines at the top that IPython drops: those of nothing but white space.
fn blank_top(text: &str) -> usize {
    let blank = lines(text).take_while(|line| line.trim().is_empty()).count();
    if blank == lines(text).count() { 0 } else { blank }
}

fn without_blank_top(text: &str) -> &str {
    let mut rest = text;
    for _ in 0..blank_top(text) {
        rest = rest.split_once('\n').map_or(rest, |(_, rest)| rest);
    }
    rest
}

/// Which typed line a compiled one is. A transformation may join lines (a magic that goes on after a
/// backslash) or put all into one (a cell magic): what is equal above or below is then still known.
fn typed_place(compiled: &[&str], typed: &[&str], index: usize) -> Option<usize> {
    if compiled.len() == typed.len() || index == 0 {
        return (index < typed.len()).then_some(index);
    }
    let pairs = compiled.iter().zip(typed);
    if pairs.take_while(|(a, b)| a == b).count() > index {
        return Some(index);
    }
    let pairs = compiled.iter().rev().zip(typed.iter().rev());
    let same = pairs.take_while(|(a, b)| a == b).count();
    let from_end = compiled.len().checked_sub(index)?;
    (from_end <= same).then(|| typed.len() - from_end)
}

/// The same by what is typed alone: a magic or a command of the shell goes on after a backslash.
fn joined_place(typed: &[&str], index: usize) -> Option<usize> {
    let mut place = 0;
    for _ in 0..index {
        let is_escape = typed.get(place)?.trim_start().starts_with(['%', '!']);
        while is_escape && typed.get(place)?.ends_with('\\') {
            place += 1;
        }
        place += 1;
    }
    (place < typed.len()).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &CellText, part: u8, line: u32) -> Option<(Option<u32>, &str)> {
        text.line(Part(part), line).map(|line| (line.number, line.text))
    }

    #[test]
    fn lines_are_those_of_the_notebook() {
        let plain = CellText::new("a = 1\n\nb = 2\n", Some("a = 1\n\nb = 2\n"));
        assert_eq!(at(&plain, 0, 3), Some((Some(3), "b = 2")));
        assert_eq!((at(&plain, 0, 0), at(&plain, 0, 4)), (None, None));
        // IPython drops empty lines at the top.
        let blank = CellText::new("\n  \n%time a\nb = 2", Some("get_ipython()\nb = 2\n"));
        assert_eq!(at(&blank, 0, 1), Some((Some(3), "%time a")));
        assert_eq!(at(&blank, 0, 2), Some((Some(4), "b = 2")));
    }

    #[test]
    fn joined_lines_shift_nothing() {
        let raw = "a = 1\n%magic x \\\n  y\nb = 2\nc = 3";
        for transformed in [Some("a = 1\nget_ipython()\nb = 2\nc = 3"), None] {
            let text = CellText::new(raw, transformed);
            assert_eq!(at(&text, 0, 1), Some((Some(1), "a = 1")));
            assert_eq!(at(&text, 0, 3), Some((Some(4), "b = 2")), "{transformed:?}");
            assert_eq!(at(&text, 0, 4), Some((Some(5), "c = 3")));
        }
        let text = CellText::new(raw, Some("a = 1\nget_ipython()\nb = 2\nc = 3"));
        assert_eq!(at(&text, 0, 2), Some((None, "get_ipython()")), "it is two lines");
    }

    #[test]
    fn bodies_of_cell_magics() {
        let raw = "\n%%capture out\n\n%%time\nx = 1\ny = 2";
        let text = CellText::new(raw, Some("get_ipython().run_cell_magic('capture', …)"));
        assert_eq!(at(&text, 0, 1), Some((Some(2), "%%capture out")));
        assert_eq!(at(&text, 1, 1), Some((Some(4), "%%time")));
        assert_eq!(at(&text, 2, 2), Some((Some(6), "y = 2")));
        assert!(text.has_body(Part(0)) && text.has_body(Part(1)) && !text.has_body(Part(2)));
        let named = |body: &str| {
            let hash = murmur2(body.as_bytes());
            text.part_named(&CellFile::Hashed(hash)).map(|part| part.0)
        };
        assert_eq!(named(raw), Some(0));
        assert_eq!(named("\n%%time\nx = 1\ny = 2\n"), Some(1));
        assert_eq!(named("x = 1\ny = 2\n"), Some(2));
        assert_eq!(named("y = 2\n"), None);
        assert!(!CellText::new("%%time?\nx", None).has_body(Part(0)));
    }

    #[test]
    fn digests_are_of_the_transformed_source() {
        let text = CellText::new("%%capture\n\nx = 1", Some("get_ipython().run()"));
        let named = |source: &str| {
            let digest = sha1_digits(source.as_bytes());
            let file = CellFile::Numbered { count: 1, digest: Some(&digest) };
            text.part_named(&file).map(|part| part.0)
        };
        assert_eq!(named("get_ipython().run()\n"), Some(0));
        assert_eq!(named("x = 1\n"), Some(1));
        assert_eq!(named("x = 2\n"), None);
        let nested = CellText::new("%%capture\n%%time -x\ns = 'a'\n", Some("get_ipython().run()"));
        // As Python 3.8 with IPython 7.16 gives it.
        let call = "get_ipython().run_cell_magic('time', '-x', \"s = 'a'\\n\")\n";
        let digest = sha1_digits(call.as_bytes());
        let file = CellFile::Numbered { count: 1, digest: Some(&digest) };
        assert_eq!(nested.part_named(&file), Some(Part(1)));
    }
}
