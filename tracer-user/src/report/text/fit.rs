//! Lines that break where the terminal ends.

use std::io;

use crate::report::sanitize;

/// Columns of a small terminal.
pub(super) const WIDTH: usize = 80;

/// Characters of one name that are shown. Names from a process can be as long as it likes.
const LONGEST: usize = 240;

/// Text that breaks only between its parts, so that a name stays one word. A part that is wider than
/// the terminal is left to the terminal.
#[derive(Debug)]
pub(super) struct Paragraph {
    text: String,
    column: usize,
    indent: usize,
}

impl Paragraph {
    /// Begins with `first`; further lines begin in column `indent`.
    pub(super) fn new(first: &str, indent: usize) -> Self {
        let first = clean(first);
        Self { column: first.chars().count(), text: first, indent }
    }

    /// Adds a part, after `separator` or on a line of its own.
    pub(super) fn add(&mut self, separator: &str, part: &str) {
        let part = clean(part);
        let width = separator.chars().count() + part.chars().count();
        if self.column + width > WIDTH && self.column > self.indent {
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n(' ', self.indent));
            self.column = self.indent;
            // What only joins is not wanted at the start of a line.
            self.push(separator.trim());
            if !separator.trim().is_empty() {
                self.push(" ");
            }
        } else {
            self.push(separator);
        }
        self.push(&part);
    }

    /// Adds the words of a sentence.
    pub(super) fn add_words(&mut self, sentence: &str) {
        for word in sentence.split(' ') {
            self.add(" ", word);
        }
    }

    pub(super) fn write(&self, out: &mut impl io::Write) -> io::Result<()> {
        writeln!(out, "{}", self.text)
    }

    fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.column += text.chars().count();
    }
}

fn clean(part: &str) -> String {
    cut_middle(&sanitize(part), LONGEST)
}

/// Both ends of what is longer than `width`: a line number is at the end.
fn cut_middle(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let tail = 2 * width / 3;
    let head = width - tail - 1;
    text.chars().take(head).chain(['…']).chain(text.chars().skip(length - tail)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaks_between_parts_only() {
        let mut paragraph = Paragraph::new("  x:", 4);
        paragraph.add(" ", &"a b".repeat(20));
        paragraph.add(" · ", &"c d".repeat(10));
        paragraph.add(" · ", "e");
        let expected = format!("  x: {}\n    · {} · e", "a b".repeat(20), "c d".repeat(10));
        assert_eq!(paragraph.text, expected);
    }

    #[test]
    fn long_names_keep_both_ends() {
        let name = format!("/head{}tail.py:12", "x".repeat(5000));
        let short = cut_middle(&name, 60);
        assert_eq!(short.chars().count(), 60);
        assert!(short.starts_with("/head") && short.ends_with("tail.py:12"));
    }
}
