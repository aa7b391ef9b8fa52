//! Words for verdicts.

use std::{collections::BTreeSet, io};

use super::{fit::Paragraph, lines::Line};
use crate::{
    model::{Confidence, HintKind, Judgement, Site, Verdict},
    report::label::{self, sum},
};

/// Where what belongs to a verdict begins: sentences take room.
const INDENT: usize = 14;

/// The word of a verdict.
pub(super) fn word(verdict: Verdict) -> &'static str {
    match verdict {
        // It has to be seen without colours.
        Verdict::Growing => "GROWING",
        Verdict::Steady => "steady",
        Verdict::OneOff => "one-off",
        Verdict::Transient => "transient",
        Verdict::Cache => "cache",
        Verdict::Unknown => "",
    }
}

/// The site that speaks for a line: of those that grow, if any do, the largest.
fn speaker<'a>(line: &Line<'a>) -> Option<&'a Site> {
    let rank = |site: &&&Site| (site.judgement.verdict == Verdict::Growing, site.own_bytes());
    line.sites.iter().max_by_key(rank).copied()
}

/// The verdict of a line.
pub(super) fn verdict(line: &Line<'_>) -> Verdict {
    speaker(line).map_or(Verdict::Unknown, |site| site.judgement.verdict)
}

/// What grows of all lines, in a sentence; `None` where nothing was judged.
pub(super) fn summary(lines: &[Line<'_>]) -> Option<String> {
    if lines.iter().all(|line| verdict(line) == Verdict::Unknown) {
        return None;
    }
    let growing: Vec<&Line<'_>> =
        lines.iter().filter(|line| verdict(line) == Verdict::Growing).collect();
    let sites = || growing.iter().flat_map(|line| growing_sites(line));
    let held = label::size(sum(sites().map(Site::own_bytes)));
    let rate: f64 = sites().filter_map(|site| site.judgement.growth_bytes_per_s).sum();
    let rate = if rate >= 1.0 {
        format!(", {} a second", label::size(rate as u64))
    } else {
        String::new()
    };
    Some(match growing.len() {
        0 => "nothing grows".to_owned(),
        1 => format!("1 line grows: it holds {held}{rate}"),
        count => format!("{count} lines grow: they hold {held}{rate}"),
    })
}

fn growing_sites<'a>(line: &Line<'a>) -> impl Iterator<Item = &'a Site> {
    line.sites.iter().copied().filter(|site| site.judgement.verdict == Verdict::Growing)
}

/// How a line grows, and what to try; a suggestion that is among `told` is not repeated.
pub(super) fn write(
    line: &Line<'_>,
    told: &mut BTreeSet<HintKind>,
    out: &mut impl io::Write,
) -> io::Result<()> {
    let Some(judgement) = speaker(line).map(|site| &site.judgement) else { return Ok(()) };
    let margin = " ".repeat(INDENT);
    if judgement.verdict == Verdict::Growing {
        let mut text = Paragraph::new(&format!("{margin}▲"), INDENT + 2);
        text.add_words(&growth(line, judgement));
        text.write(out)?;
    }
    if let (Some(kind), Some(hint)) = (judgement.hint_kind, &judgement.hint)
        && told.insert(kind)
    {
        let mut text = Paragraph::new(&format!("{margin}hint:"), INDENT + 2);
        text.add_words(hint);
        text.write(out)?;
    }
    Ok(())
}

/// By how much all of a line's sites grow together, and how sure it is by the one that speaks.
fn growth(line: &Line<'_>, judgement: &Judgement) -> String {
    let total = |value: fn(&Judgement) -> Option<u64>| {
        let values = growing_sites(line).filter_map(|site| value(&site.judgement));
        Some(sum(values)).filter(|bytes| *bytes > 0).map(label::size)
    };
    let mut parts = Vec::new();
    let rate: f64 = growing_sites(line).filter_map(|site| site.judgement.growth_bytes_per_s).sum();
    if rate >= 1.0 {
        parts.push(format!("{} a second", label::size(rate as u64)));
    }
    if let Some(bytes) = total(|judgement| judgement.growth_bytes_per_repetition) {
        parts.push(format!("{bytes} a repetition"));
    }
    if let Some(bytes) = judgement.growth_bytes_per_run {
        parts.push(format!("{} a run of its cell", label::size(bytes)));
    }
    let noun = if judgement.growth_bytes_per_repetition.is_some() { "repetitions" } else { "runs" };
    let sure = match judgement.confidence {
        Some(Confidence::Low) | None => "; too few to be sure",
        Some(Confidence::Medium) => "; confidence medium",
        Some(Confidence::High) => "; confidence high",
    };
    format!("{} ({} {noun} seen{sure})", parts.join(", "), label::number(judgement.repetitions))
}
