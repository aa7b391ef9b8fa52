//! Two reports compared, line by line of the user's own code: what a change of the code has changed.

use std::{collections::BTreeMap, io};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    label::{self, cut},
    sanitize,
};
use crate::model::{CellFile, SCHEMA, is_cell_top, is_user_file};

/// The schema of a comparison in JSON.
const DIFF_SCHEMA: &str = "cudatrace.diff/1";

/// Characters of a line's text that are shown.
const SOURCE: usize = 64;

/// A text that is no report.
#[derive(Debug, Error)]
pub enum ReportError {
    /// It is not JSON, or not of this form.
    #[error("it is no report in JSON ({0}); write one with `-o FILE.json`")]
    Json(#[from] serde_json::Error),
    /// It is of another schema.
    #[error("it is of the schema `{0}`, not `{SCHEMA}`")]
    Schema(String),
}

/// What a comparison needs of a report.
#[derive(Clone, Debug, Deserialize)]
pub struct Report {
    schema: String,
    processes: Vec<Process>,
}

#[derive(Clone, Debug, Deserialize)]
struct Process {
    sites: Vec<Site>,
}

#[derive(Clone, Debug, Deserialize)]
struct Site {
    level: String,
    device: Option<u8>,
    live_bytes: u64,
    live_blocks: u64,
    pooled_bytes: u64,
    #[serde(default)]
    verdict: String,
    frames: Vec<Frame>,
}

#[derive(Clone, Debug, Deserialize)]
struct Frame {
    function: String,
    file: String,
    line: Option<u32>,
    source: Option<String>,
    cell: Option<u32>,
    cell_seen: Option<u32>,
}

impl Report {
    /// Reads a report in JSON.
    ///
    /// # Errors
    ///
    /// When it is none.
    pub fn parse(text: &str) -> Result<Self, ReportError> {
        let report: Self = serde_json::from_str(text)?;
        if report.schema != SCHEMA {
            return Err(ReportError::Schema(sanitize(&report.schema).into_owned()));
        }
        Ok(report)
    }

    /// What each line holds, of all processes.
    fn lines(&self) -> BTreeMap<Line, Held> {
        let mut lines: BTreeMap<Line, Held> = BTreeMap::new();
        for site in self.processes.iter().flat_map(|process| &process.sites) {
            let held = lines.entry(Line::of(site)).or_default();
            held.bytes =
                held.bytes.saturating_add(site.live_bytes.saturating_sub(site.pooled_bytes));
            held.blocks = held.blocks.saturating_add(site.live_blocks);
            held.grows |= site.verdict == "growing";
            held.place = held.place.take().or_else(|| own_frame(site).map(place));
        }
        lines
    }
}

/// What makes a line the same in both: where its text is known, that and not its number, which changes with
/// every line that is added above.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    level: String,
    device: Option<u8>,
    file: String,
    function: String,
    text: String,
}

impl Line {
    fn of(site: &Site) -> Self {
        let (level, device) = (site.level.clone(), site.device);
        let Some(frame) = own_frame(site) else {
            let (file, function, text) = Default::default();
            return Self { level, device, file, function, text };
        };
        // A cell's file has the id of its process in its name, and a hash of its text.
        let file = if is_cell(frame) { "a cell".to_owned() } else { frame.file.clone() };
        let number = || frame.line.map_or_else(String::new, |line| line.to_string());
        let text = frame.source.clone().unwrap_or_else(number);
        Self { level, device, file, function: frame.function.clone(), text }
    }
}

fn is_cell(frame: &Frame) -> bool {
    frame.cell.is_some() || frame.cell_seen.is_some() || CellFile::of(&frame.file).is_some()
}

/// The innermost frame of the user's own code, or the innermost one.
fn own_frame(site: &Site) -> Option<&Frame> {
    let own = site.frames.iter().find(|frame| is_cell(frame) || is_user_file(&frame.file));
    own.or(site.frames.first())
}

fn place(frame: &Frame) -> String {
    let file = match (frame.cell, CellFile::of(&frame.file)) {
        (Some(number), _) => format!("In[{number}]"),
        (None, Some(cell)) => cell.label(),
        (None, None) => frame.file.clone(),
    };
    let line = frame.line.map_or_else(|| "?".to_owned(), |line| line.to_string());
    match is_cell_top(&frame.function) {
        true => format!("{file}:{line}"),
        false => format!("{file}:{line} in {}", frame.function),
    }
}

/// What a line holds.
#[derive(Clone, Debug, Default)]
struct Held {
    bytes: u64,
    blocks: u64,
    grows: bool,
    place: Option<String>,
}

/// What has become of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// It holds more.
    Grown,
    /// It holds less.
    Shrunk,
    /// It held nothing.
    New,
    /// It holds nothing.
    Gone,
}

/// A line that holds something else than before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What has become of it.
    pub change: Change,
    /// As in the report.
    pub level: String,
    /// Device index.
    pub device: Option<u8>,
    /// Where it is, in the second report if it is there.
    pub place: String,
    /// Its text, or its number where that is not known.
    pub source: String,
    /// What it held.
    pub before_bytes: u64,
    /// What it holds.
    pub after_bytes: u64,
    /// The same in blocks.
    pub before_blocks: u64,
    /// The same in blocks.
    pub after_blocks: u64,
    /// Whether it grew.
    pub grew: bool,
    /// Whether it grows.
    pub grows: bool,
}

/// Every line that holds more or less than before, the largest differences first.
pub fn compare(before: &Report, after: &Report) -> Vec<Difference> {
    let (before, mut after) = (before.lines(), after.lines());
    let pair = |(line, was): (Line, Held)| {
        let is = after.remove(&line);
        (line, was, is.unwrap_or_default())
    };
    let mut pairs: Vec<(Line, Held, Held)> = before.into_iter().map(pair).collect();
    pairs.extend(after.into_iter().map(|(line, is)| (line, Held::default(), is)));
    let mut all: Vec<Difference> =
        pairs.into_iter().filter_map(|(line, was, is)| difference(line, was, is)).collect();
    all.sort_by(|a, b| {
        let size = |one: &Difference| one.before_bytes.abs_diff(one.after_bytes);
        size(b).cmp(&size(a)).then_with(|| a.place.cmp(&b.place))
    });
    all
}

fn difference(line: Line, was: Held, is: Held) -> Option<Difference> {
    let change = match (was.bytes, is.bytes) {
        (before, after) if before == after => return None,
        (0, _) => Change::New,
        (_, 0) => Change::Gone,
        (before, after) if before < after => Change::Grown,
        _ => Change::Shrunk,
    };
    Some(Difference {
        change,
        level: line.level,
        device: line.device,
        place: is.place.or(was.place).unwrap_or_else(|| "(no stack)".to_owned()),
        source: line.text,
        before_bytes: was.bytes,
        after_bytes: is.bytes,
        before_blocks: was.blocks,
        after_blocks: is.blocks,
        grew: was.grows,
        grows: is.grows,
    })
}

/// Writes a comparison for people; of more than `top` lines only how many.
///
/// # Errors
///
/// Those of the writer.
pub fn write_diff(all: &[Difference], top: usize, out: &mut impl io::Write) -> io::Result<()> {
    if all.is_empty() {
        return writeln!(out, "every line holds what it held");
    }
    writeln!(out, "{:>10}  {:>10}  {:>11}", "before", "after", "difference")?;
    for one in all.iter().take(top) {
        let sign = if one.after_bytes >= one.before_bytes { '+' } else { '-' };
        let size = label::size(one.before_bytes.abs_diff(one.after_bytes));
        let (before, after) = (label::size(one.before_bytes), label::size(one.after_bytes));
        let word = match (one.change, one.grew, one.grows) {
            (_, _, true) => "GROWING",
            (_, true, false) => "grows no more",
            (Change::New, ..) => "new",
            (Change::Gone, ..) => "gone",
            _ => "",
        };
        let place = sanitize(&one.place);
        let level = match one.level.as_str() {
            "pytorch" => String::new(),
            level => format!(" [{}]", sanitize(level)),
        };
        writeln!(
            out,
            "{before:>10}  {after:>10}  {:>11}  {place}{level}  {word}",
            format!("{sign}{size}")
        )?;
        if !one.source.bytes().all(|byte| byte.is_ascii_digit()) {
            writeln!(out, "{:37}│ {}", "", cut(&sanitize(&one.source), SOURCE))?;
        }
    }
    match all.len().saturating_sub(top) {
        0 => Ok(()),
        hidden => writeln!(out, "{hidden} more (--top)"),
    }
}

/// Writes a comparison in JSON: the schema `cudatrace.diff/1`.
///
/// # Errors
///
/// Those of the writer.
pub fn write_diff_json(all: &[Difference], out: &mut impl io::Write) -> io::Result<()> {
    let document = serde_json::json!({ "schema": DIFF_SCHEMA, "lines": all });
    let text = serde_json::to_string_pretty(&document)?;
    writeln!(out, "{}", super::json::escape(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(sites: &[(&str, u32, &str, u64, &str)]) -> Report {
        let sites: Vec<_> = sites
            .iter()
            .map(|(file, line, source, bytes, verdict)| {
                serde_json::json!({
                    "level": "pytorch", "device": 0, "live_bytes": bytes, "live_blocks": 1,
                    "pooled_bytes": 0, "verdict": verdict, "frames": [
                        { "function": "step", "file": file, "line": line, "source": source,
                          "cell": null, "cell_seen": null }
                    ],
                })
            })
            .collect();
        let text = serde_json::json!({ "schema": SCHEMA, "processes": [{ "sites": sites }] });
        Report::parse(&text.to_string()).unwrap()
    }

    #[test]
    fn a_line_that_was_mended() {
        let before = report(&[
            ("/a/train.py", 3, "x = net(y)", 1 << 20, "one_off"),
            ("/a/train.py", 9, "losses.append(loss)", 9 << 20, "growing"),
            ("/a/train.py", 9, "losses.append(loss)", 1 << 20, "growing"),
        ]);
        // A line was added above.
        let after = report(&[
            ("/a/train.py", 4, "x = net(y)", 1 << 20, "one_off"),
            ("/a/train.py", 10, "losses.append(loss.item())", 0, "transient"),
            ("/a/train.py", 11, "buffer = new()", 5 << 20, "one_off"),
        ]);
        let all = compare(&before, &after);
        let found: Vec<_> = all.iter().map(|one| (one.change, one.source.as_str())).collect();
        assert_eq!(found, [(Change::Gone, "losses.append(loss)"), (Change::New, "buffer = new()")]);
        assert_eq!((all[0].before_bytes, all[0].grew, all[0].grows), (10 << 20, true, false));
        assert_eq!(all[0].place, "/a/train.py:9 in step");
        let mut text = Vec::new();
        write_diff(&all, 1, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("-10.0 MiB  /a/train.py:9 in step  grows no more"), "{text}");
        assert!(text.contains("│ losses.append(loss)") && text.contains("1 more"), "{text}");
        assert!(compare(&after, &after).is_empty());
    }

    #[test]
    fn what_is_no_report() {
        for text in ["", "{}", "[]", "{\"schema\": 1}"] {
            assert!(matches!(Report::parse(text), Err(ReportError::Json(_))), "{text}");
        }
        let other = "{\"schema\": \"x\", \"processes\": []}";
        assert!(matches!(Report::parse(other), Err(ReportError::Schema(_))));
    }
}
