//! The table of lines: call sites by the line of the user's own code.

use std::{collections::BTreeMap, io};

use super::fit::Paragraph;
use crate::{
    model::{Level, ProcessSnapshot, Site},
    report::{
        Options,
        folded::{holders, is_pool},
        label::{self, sum},
        user_frame::{is_user, user_frame},
    },
};

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
    /// The site with most bytes of its own.
    largest: &'a Site,
}

/// Most bytes first; equal ones by name.
pub(super) fn by_line(process: &ProcessSnapshot) -> Vec<Line<'_>> {
    let mut lines: BTreeMap<Key, Line<'_>> = BTreeMap::new();
    for site in holders(process) {
        let words = words(site);
        let key = (site.level, site.device.map(|device| device.0), words.clone());
        let line = lines.entry(key).or_insert(Line {
            level: site.level,
            words,
            bytes: 0,
            blocks: 0,
            largest: site,
        });
        line.bytes = line.bytes.saturating_add(site.own_bytes());
        line.blocks = line.blocks.saturating_add(site.live_blocks);
        if site.own_bytes() > line.largest.own_bytes() {
            line.largest = site;
        }
    }
    let mut lines: Vec<Line<'_>> = lines.into_values().collect();
    lines.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.words.cmp(&b.words)));
    lines
}

fn words(site: &Site) -> Vec<String> {
    let device = match site.level {
        level if is_pool(level) => format!("[{}]", label::device(site.device)),
        level => format!("[{level}, {}]", label::device(site.device)),
    };
    match (user_frame(&site.frames).or(site.frames.first()), &site.frames_note) {
        (Some(frame), _) => {
            let mut words = vec![label::place(frame, true)];
            words.extend(label::function(frame).map(|name| format!("in {name}")));
            words.push(device);
            words
        }
        (None, Some(note)) => vec![format!("({note})"), device],
        (None, None) => vec!["(no stack)".to_owned(), device],
    }
}

/// How the largest part of a line came about: the user's own frame that called the line's function,
/// and the library frames between the line and the allocation (the outermost and the innermost one).
fn ways(site: &Site) -> Vec<Vec<String>> {
    let Some(position) = site.frames.iter().position(is_user) else { return Vec::new() };
    let inner: Vec<String> = site.frames[..position].iter().map(label::frame).collect();
    let mut ways = Vec::new();
    if let Some(caller) = user_frame(&site.frames[position + 1..]) {
        ways.push(vec![format!("from {}", label::frame(caller))]);
    }
    match inner.as_slice() {
        [] => {}
        [only] => ways.push(vec![format!("└ {only}")]),
        [innermost, .., outermost] => {
            ways.push(vec![format!("└ {outermost}"), format!("… {innermost}")]);
        }
    }
    ways
}

/// The columns of the table, wide enough for all of its numbers.
#[derive(Debug)]
pub(super) struct Table {
    total: u64,
    blocks: usize,
}

impl Table {
    /// For these lines.
    pub(super) fn new(lines: &[Line<'_>]) -> Self {
        let widths = lines.iter().map(|line| label::number(line.blocks).len());
        Self {
            total: sum(lines.iter().map(|line| line.bytes)),
            blocks: widths.max().unwrap_or(0).max("blocks".len()),
        }
    }

    /// The names of the columns.
    pub(super) fn write_header(&self, held: &str, out: &mut impl io::Write) -> io::Result<()> {
        let width = self.blocks;
        writeln!(out, "  {:>10}  {:>width$}  {:>5}  {held}", "live", "blocks", "share")
    }

    /// The lines, as many as asked for.
    pub(super) fn write(
        &self,
        lines: &[&Line<'_>],
        options: &Options,
        out: &mut impl io::Write,
    ) -> io::Result<()> {
        let shown = lines.iter().filter(|line| line.bytes >= options.min_bytes);
        let shown: Vec<_> = shown.take(options.top.unwrap_or(DEFAULT_TOP)).collect();
        for line in &shown {
            self.write_line(line, out)?;
        }
        let hidden = lines.len() - shown.len();
        if hidden > 0 {
            let all = sum(lines.iter().map(|line| line.bytes));
            let rest = label::size(all.saturating_sub(sum(shown.iter().map(|line| line.bytes))));
            writeln!(out, "  {rest:>10}  in {hidden} more lines (--top, --min-bytes)")?;
        }
        Ok(())
    }

    fn write_line(&self, line: &Line<'_>, out: &mut impl io::Write) -> io::Result<()> {
        let width = self.blocks;
        let numbers = format!(
            "  {:>10}  {:>width$}  {:>5} ",
            label::size(line.bytes),
            label::number(line.blocks),
            self.share(line.bytes),
        );
        let indent = numbers.len() + 1;
        let mut text = Paragraph::new(&numbers, indent);
        for word in &line.words {
            text.add(" ", word);
        }
        text.write(out)?;
        for way in ways(line.largest) {
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
