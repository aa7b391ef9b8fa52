//! The table of lines: call sites by the line of the user's own code.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
};

use super::{
    fit::{Paragraph, WIDTH},
    verdicts,
};
use crate::{
    model::{Frame, HintKind, Level, Site, is_user, user_frame, user_position},
    report::{
        Options, fold,
        folded::is_host,
        label::{self, FileNames, cut, sum},
    },
};

/// Width of the words for verdicts.
const VERDICT: usize = 9;

/// Lines shown if the user does not say.
const DEFAULT_TOP: usize = 20;

/// What makes a line: level and device, and its words.
type Key = (Level, Option<u8>, Vec<String>);

/// All call sites of one level and device with the same line of the user's own code.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) level: Level,
    /// Place, function and device.
    words: Vec<String>,
    bytes: u64,
    blocks: u64,
    /// Its sites.
    pub(super) sites: Vec<&'a Site>,
}

/// Most bytes first; equal ones by name.
pub(super) fn by_line<'a>(sites: impl Iterator<Item = &'a Site>) -> Vec<Line<'a>> {
    let mut lines: BTreeMap<Key, Line<'_>> = BTreeMap::new();
    for site in sites {
        let words = words(site);
        let key = (site.level, site.device.map(|device| device.0), words.clone());
        let line = lines.entry(key).or_insert(Line {
            level: site.level,
            words,
            bytes: 0,
            blocks: 0,
            sites: Vec::new(),
        });
        line.bytes = line.bytes.saturating_add(site.own_bytes());
        line.blocks = line.blocks.saturating_add(site.live_blocks);
        line.sites.push(site);
    }
    let mut lines: Vec<Line<'_>> = lines.into_values().collect();
    lines.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.words.cmp(&b.words)));
    lines
}

fn words(site: &Site) -> Vec<String> {
    let mut words = place(&site.frames, site.frames_note.as_deref(), site.backward_pass);
    match site.level {
        _ if is_host(site) => {}
        Level::Pytorch => words.push(format!("[{}]", label::device(site.device))),
        level => words.push(format!("[{level}, {}]", label::device(site.device))),
    }
    words.extend(site.caller.as_ref().map(|file| format!("by {file}")));
    words
}

/// Functions of a caller that are named.
const FUNCTIONS: usize = 3;

/// The functions of the line's file that called, those with most bytes first.
fn functions(line: &Line<'_>) -> Vec<String> {
    let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
    for site in &line.sites {
        for function in &site.caller_functions {
            let held = bytes.entry(function).or_default();
            *held = held.saturating_add(site.own_bytes());
        }
    }
    let mut names: Vec<(&str, u64)> = bytes.into_iter().collect();
    names.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let shown = names.iter().take(FUNCTIONS).map(|(name, _)| (*name).to_owned());
    let mut words: Vec<String> = shown.collect();
    if let Some(others @ 1..) = names.len().checked_sub(FUNCTIONS) {
        words.push(format!("{others} more"));
    }
    let last = words.len().saturating_sub(1);
    words.iter_mut().take(last).for_each(|word| word.push(','));
    words
}

/// The user's own line in a stack, and its function.
pub(super) fn place(frames: &[Frame], note: Option<&str>, backward_pass: bool) -> Vec<String> {
    match (user_frame(frames).or(frames.first()), note) {
        (Some(frame), note) => {
            let mut words = vec![label::whole_place(frame)];
            words.extend(label::function(frame).map(|name| format!("in {name}")));
            words.extend(backward_pass.then(|| format!("({})", label::BACKWARD_PASS)));
            // Why there is no line.
            words.extend(note.filter(|_| frame.line.is_none()).map(|note| format!("({note})")));
            words
        }
        (None, Some(note)) => vec![format!("({note})")],
        (None, None) => vec!["(no stack)".to_owned()],
    }
}

/// Callers of a line that are named.
const CALLERS: usize = 3;

/// How a line came about: the user's own frames that called its function, with their share if there
/// are several, and of the largest part the library frames between the line and the allocation (the
/// outermost and the innermost one).
fn ways(line: &Line<'_>, options: &Options, names: &FileNames<'_>) -> Vec<Vec<String>> {
    let mut callers: BTreeMap<String, u64> = BTreeMap::new();
    for site in &line.sites {
        let (_, outer) = around(site, options);
        if let Some(caller) = outer.into_iter().find(|frame| is_user(frame)) {
            let bytes = callers.entry(names.frame(caller)).or_default();
            *bytes = bytes.saturating_add(site.own_bytes());
        }
    }
    let mut callers: Vec<(String, u64)> = callers.into_iter().collect();
    callers.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let mut ways = Vec::new();
    if let [(only, bytes)] = callers.as_slice()
        && *bytes == line.bytes
    {
        ways.push(vec![format!("from {only}")]);
    } else {
        for (caller, bytes) in callers.iter().take(CALLERS) {
            ways.push(vec![format!("from {caller}"), label::size(*bytes)]);
        }
        let others = sum(callers.iter().skip(CALLERS).map(|(_, bytes)| *bytes));
        if let Some(count @ 1..) = callers.len().checked_sub(CALLERS) {
            let noun = if count == 1 { "caller" } else { "callers" };
            ways.push(vec![format!("from {count} other {noun}"), label::size(others)]);
        }
    }
    let largest = line.sites.iter().max_by_key(|site| site.own_bytes());
    let inner = largest.map_or(Vec::new(), |site| around(site, options).0);
    match inner.as_slice() {
        [] => {}
        [only] => ways.push(vec![format!("└ {}", names.frame(only))]),
        [innermost, .., outermost] => {
            ways.push(vec![
                format!("└ {}", names.frame(outermost)),
                format!("… {}", names.frame(innermost)),
            ]);
        }
    }
    ways
}

/// Of the frames that are shown, those inside of the user's own line, and those outside of it.
fn around<'a>(site: &'a Site, options: &Options) -> (Vec<&'a Frame>, Vec<&'a Frame>) {
    let Some(own) = user_position(&site.frames) else { return (Vec::new(), Vec::new()) };
    let folded = fold::folded(&site.frames);
    let shown = |range: Range<usize>| {
        let is_shown = |index: &usize| options.full_stacks || folded.get(*index) == Some(&false);
        range.filter(is_shown).filter_map(|index| site.frames.get(index)).collect()
    };
    (shown(0..own), shown(own + 1..site.frames.len()))
}

/// The text of the user's own line, of the largest part.
fn source<'a>(line: &Line<'a>) -> Option<&'a str> {
    let largest = line.sites.iter().max_by_key(|site| site.own_bytes())?;
    user_frame(&largest.frames)?.source.as_deref().filter(|source| !source.is_empty())
}

/// The columns of the table, wide enough for all of its numbers.
#[derive(Debug)]
pub(super) struct Table {
    total: u64,
    blocks: usize,
}

impl Table {
    /// For these lines, and bytes that are held besides.
    pub(super) fn new(lines: &[Line<'_>], others: u64) -> Self {
        let widths = lines.iter().map(|line| label::number(line.blocks).len());
        Self {
            total: sum(lines.iter().map(|line| line.bytes)).saturating_add(others),
            blocks: widths.max().unwrap_or(0).max("blocks".len()),
        }
    }

    /// Bytes of all lines.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The names of the columns.
    pub(super) fn write_header(&self, held: &str, out: &mut impl io::Write) -> io::Result<()> {
        let width = self.blocks;
        let (live, share, verdict) = ("live", "share", "verdict");
        writeln!(out, "  {live:>10}  {:>width$}  {share:>5}  {verdict:<VERDICT$}  {held}", "blocks")
    }

    /// The lines, as many as asked for.
    pub(super) fn write(
        &self,
        lines: &[&Line<'_>],
        options: &Options,
        names: &FileNames<'_>,
        told: &mut BTreeSet<HintKind>,
        out: &mut impl io::Write,
    ) -> io::Result<()> {
        let shown = lines.iter().filter(|line| line.bytes >= options.min_bytes);
        let shown: Vec<_> = shown.take(options.top.unwrap_or(DEFAULT_TOP)).collect();
        for line in &shown {
            self.write_line(line, options, names, told, out)?;
        }
        let hidden = lines.len() - shown.len();
        if hidden > 0 {
            let all = sum(lines.iter().map(|line| line.bytes));
            let rest = label::size(all.saturating_sub(sum(shown.iter().map(|line| line.bytes))));
            let noun = if hidden == 1 { "line" } else { "lines" };
            writeln!(out, "  {rest:>10}  in {hidden} more {noun} (--top, --min-bytes)")?;
        }
        Ok(())
    }

    fn write_line(
        &self,
        line: &Line<'_>,
        options: &Options,
        names: &FileNames<'_>,
        told: &mut BTreeSet<HintKind>,
        out: &mut impl io::Write,
    ) -> io::Result<()> {
        let width = self.blocks;
        let numbers = format!(
            "  {:>10}  {:>width$}  {:>5}  {:<VERDICT$} ",
            label::size(line.bytes),
            label::number(line.blocks),
            self.share(line.bytes),
            verdicts::word(verdicts::verdict(line)),
        );
        let indent = numbers.len() + 1;
        let mut text = Paragraph::new(&numbers, indent);
        let mut words = line.words.clone();
        let functions = functions(line);
        if !functions.is_empty()
            // The file that they are in.
            && let Some(last) = words.last_mut()
        {
            last.push(':');
            words.extend(functions);
        }
        for word in &words {
            text.add(" ", word);
        }
        text.write(out)?;
        if let Some(source) = source(line) {
            let room = WIDTH.saturating_sub(indent + 2).max(40);
            Paragraph::new(&format!("{}│ {}", " ".repeat(indent), cut(source, room)), indent)
                .write(out)?;
        }
        verdicts::write(line, told, out)?;
        for way in ways(line, options, names) {
            let mut text = Paragraph::new(&" ".repeat(indent), indent);
            for (index, part) in way.iter().enumerate() {
                text.add(if index == 0 { "" } else { " " }, part);
            }
            text.write(out)?;
        }
        Ok(())
    }

    /// Of all that is held. What is little is not nothing.
    fn share(&self, bytes: u64) -> String {
        match 100.0 * bytes as f64 / self.total.max(1) as f64 {
            share if share < 0.5 && bytes > 0 => "<1%".to_owned(),
            share => format!("{share:.0}%"),
        }
    }
}
