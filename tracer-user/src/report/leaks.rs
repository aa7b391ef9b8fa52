//! What grows, for a program that decides by it (`--fail-on-leak`), and what of it is known already.

use std::fmt;

use thiserror::Error;
use time::{Date, macros::format_description};

use super::label;
use crate::model::{Frame, ProcessSnapshot, Site, Snapshot, Verdict, user_frame};

/// Most bytes of a file of suppressions.
pub const MAX_SUPPRESSIONS: u64 = 1 << 20;

/// Call sites that are known to grow, and are to be no reason to fail.
///
/// A line is `leak:PATTERN`, as LeakSanitizer has it: a text that is in the name of a function, of its file, in
/// `file:line` or in the text of the line, of any frame; `*` stands for any text. A date can follow, from which
/// on it does not hold any more: `leak:PATTERN until:2027-01-31`. What begins with `#` is a comment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppressions(Vec<Suppression>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Suppression {
    pattern: String,
    until: Option<Date>,
}

/// A line that is no suppression.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {what}; write `leak:PATTERN`, or `leak:PATTERN until:2027-01-31`")]
pub struct SuppressionError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong.
    pub what: &'static str,
}

impl Suppressions {
    /// Reads a file's text.
    ///
    /// # Errors
    ///
    /// The first line that is none.
    pub fn parse(text: &str) -> Result<Self, SuppressionError> {
        let mut all = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let parsed = Suppression::parse(line);
            all.push(parsed.map_err(|what| SuppressionError { line: index + 1, what })?);
        }
        Ok(Self(all))
    }

    /// Those whose date has come.
    pub fn expired(&self, today: Date) -> impl Iterator<Item = &str> {
        let expired = self.0.iter().filter(move |one| !one.holds(today));
        expired.map(|one| one.pattern.as_str())
    }

    fn cover(&self, site: &Site, today: Date) -> bool {
        let mut valid = self.0.iter().filter(|one| one.holds(today));
        valid.any(|one| site.frames.iter().any(|frame| one.covers(frame)))
    }
}

impl Suppression {
    fn parse(line: &str) -> Result<Self, &'static str> {
        let rest = line.strip_prefix("leak:").ok_or("it does not begin with `leak:`")?;
        let (pattern, until) = match rest.rsplit_once(" until:") {
            Some((pattern, date)) => {
                let format = format_description!("[year]-[month]-[day]");
                let date =
                    Date::parse(date.trim(), format).map_err(|_no_date| "it has no such date")?;
                (pattern.trim(), Some(date))
            }
            None => (rest.trim(), None),
        };
        if pattern.chars().all(|letter| letter == '*') {
            return Err("it covers everything");
        }
        Ok(Self { pattern: pattern.to_owned(), until })
    }

    fn holds(&self, today: Date) -> bool {
        self.until.is_none_or(|until| today < until)
    }

    fn covers(&self, frame: &Frame) -> bool {
        let place = frame.line.map(|line| format!("{}:{line}", frame.file));
        let name = frame.qualified_name.as_deref().unwrap_or(&frame.function);
        let texts = [Some(name), place.as_deref(), Some(&frame.file), frame.source.as_deref()];
        texts.into_iter().flatten().any(|text| contains(text, &self.pattern))
    }
}

/// Whether the parts between the stars of a pattern are in a text, in their order.
fn contains(text: &str, pattern: &str) -> bool {
    let mut rest = text;
    pattern.split('*').all(|part| match rest.find(part) {
        Some(place) => {
            rest = &rest[place + part.len()..];
            true
        }
        None => false,
    })
}

/// A site that grows.
#[derive(Clone, Copy, Debug)]
pub struct Leak<'a> {
    process: &'a ProcessSnapshot,
    site: &'a Site,
}

/// Every site that grows, but those that are known; most bytes first in each process.
pub fn leaks<'a>(snapshot: &'a Snapshot, known: &Suppressions, today: Date) -> Vec<Leak<'a>> {
    let of = |process: &'a ProcessSnapshot| {
        let growing = |site: &&Site| site.judgement.verdict == Verdict::Growing;
        process.sites.iter().filter(growing).map(move |site| Leak { process, site })
    };
    let all = snapshot.processes.iter().flat_map(of);
    all.filter(|leak| !known.cover(leak.site, today)).collect()
}

impl fmt::Display for Leak<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frame = user_frame(&self.site.frames).or(self.site.frames.first());
        let place = frame.map_or_else(|| "(no stack)".to_owned(), label::whole_place);
        let held = label::size(self.site.own_bytes());
        write!(f, "process {}: {} holds {held}", self.process.pid, super::sanitize(&place))?;
        match self.site.judgement.growth_bytes_per_s {
            Some(rate) if rate >= 1.0 => {
                write!(f, ", and {} more a second", label::size(rate as u64))
            }
            _ => match self.site.judgement.growth_bytes_per_run {
                Some(bytes) => write!(f, ", and {} more a run", label::size(bytes)),
                None => Ok(()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use time::macros::date;

    use super::*;
    use crate::report::tests::frame;

    const TODAY: Date = date!(2026 - 12 - 05);

    #[test]
    fn files_of_suppressions() {
        let text = "# ours\n\nleak:cache.py:12\n  leak:Cache.* until:2026-12-05\nleak:*x = y until:2027-01-01\n";
        let known = Suppressions::parse(text).unwrap();
        assert_eq!(known.0.len(), 3);
        assert_eq!(known.expired(TODAY).collect::<Vec<_>>(), ["Cache.*"]);
        for (text, line) in [
            ("cache.py", 1),
            ("leak:a\nleak:", 2),
            ("leak:**", 1),
            ("leak:a until:2026-13-01", 1),
            ("leak:a until:", 1),
        ] {
            assert_eq!(Suppressions::parse(text).unwrap_err().line, line, "{text}");
        }
    }

    #[test]
    fn what_a_pattern_covers() {
        let covers = |pattern: &str| {
            let one = Suppression::parse(&format!("leak:{pattern}")).unwrap();
            let source = Some("kept.append(loss)".to_owned());
            one.covers(&Frame { source, ..frame("Cache.put", "/home/ada/cache.py", 12) })
        };
        for pattern in ["cache.py:12", "Cache.put", "ada/*.py", "append(*)", "put"] {
            assert!(covers(pattern), "{pattern}");
        }
        for pattern in ["cache.py:13", "Cache.get", "py*ada", "cache.py:12 "] {
            assert_eq!(covers(pattern), pattern.ends_with(' '), "{pattern}");
        }
    }
}
