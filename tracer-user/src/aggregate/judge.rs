//! Sites to what is known of them, and from there to verdicts and hints.

use std::collections::HashMap;

use super::gathered::Gathered;
use crate::{
    ledger::Ledger,
    model::{Device, Frame, Judgement, Level, Site, Verdict},
    verdict::{self, Evidence, RunShare, Subject, confidence, growth_by_run, hint},
};

/// Judges the sites of a process.
pub(super) struct Judge<'a> {
    ledger: &'a Ledger,
    now_ns: u64,
}

impl<'a> Judge<'a> {
    pub(super) fn new(ledger: &'a Ledger, now_ns: u64) -> Self {
        Self { ledger, now_ns }
    }

    /// A site by its own history.
    pub(super) fn by_itself(&self, found: &Gathered, frames: &[Frame]) -> Judgement {
        let (totals, history) = (&found.totals, &found.history);
        let activity = self.ledger.activity();
        let end = activity.end_of_phase(history.last());
        let evidence = Evidence {
            timeline: history.timeline(end),
            is_over: activity.is_over(history.last()),
            live_bytes: totals.live_bytes,
            live_blocks: totals.live_blocks,
            total_blocks: totals.total_blocks,
            pooled_bytes: totals.pooled_bytes,
            repetitions: history.repetitions(),
            span_ns: totals.last_ns.saturating_sub(totals.first_ns),
            age_ns: self.now_ns.saturating_sub(totals.first_ns),
            is_setup: is_setup(frames),
            lossy: self.ledger.accuracy().lossy,
        };
        Judgement { ages_s: found.ages.summary(), ..verdict::judge(&evidence) }
    }
}

/// Whether a model is set up here, or the state of an optimizer: of many parts, one after the other.
fn is_setup(frames: &[Frame]) -> bool {
    const MODULE: [&str; 10] = [
        "_apply",
        "to",
        "cuda",
        "half",
        "float",
        "double",
        "bfloat16",
        "type",
        "load_state_dict",
        "_load_from_state_dict",
    ];
    // What reads a model's weights.
    const LOADERS: [&str; 4] = [
        "/safetensors/",
        "/torch/serialization.py",
        "/transformers/modeling",
        "/accelerate/utils/",
    ];
    frames.iter().any(|frame| {
        let function = frame.function.as_str();
        (frame.file.ends_with("/torch/nn/modules/module.py") && MODULE.contains(&function))
            || (frame.file.contains("/torch/nn/") && function == "__init__")
            || (frame.file.contains("/torch/optim/") && function == "_init_group")
            || LOADERS.iter().any(|part| frame.file.contains(part))
    })
}

/// What makes sites of several runs the same line: all but the run. Of a cell the text of the line counts,
/// for a cell that is edited becomes another; else where it is.
type Line = (Level, Option<Device>, Option<String>, Vec<Place>, bool);
type Place = (String, String, Option<u32>);

fn line(site: &Site) -> Option<Line> {
    let is_in_cell = |frame: &Frame| frame.cell.is_some() || frame.cell_seen.is_some();
    if !site.frames.iter().any(is_in_cell) {
        return None;
    }
    let place = |frame: &Frame| {
        let function = frame.function.clone();
        match frame.source.as_ref().filter(|_| is_in_cell(frame)) {
            Some(source) => (function, source.clone(), None),
            None => (function, frame.file.clone(), frame.line),
        }
    };
    let places = site.frames.iter().map(place).collect();
    Some((site.level, site.device, site.caller.clone(), places, site.backward_pass))
}

/// What several runs of one cell say together, and the hints.
pub(super) fn by_runs(sites: &mut [Site]) {
    let mut lines: HashMap<Line, Vec<usize>> = HashMap::new();
    for (index, site) in sites.iter().enumerate() {
        if let Some(line) = line(site) {
            lines.entry(line).or_default().push(index);
        }
    }
    let mut earlier_bytes: Vec<u64> = vec![0; sites.len()];
    for mut runs in lines.into_values().filter(|runs| runs.len() > 1) {
        runs.sort_by(|&a, &b| sites[a].first_seen_s.total_cmp(&sites[b].first_seen_s));
        let shares: Vec<RunShare> = runs
            .iter()
            .map(|&index| RunShare {
                live_bytes: sites[index].live_bytes,
                peak_bytes: sites[index].peak_bytes,
            })
            .collect();
        let live: Vec<usize> =
            runs.iter().copied().filter(|&index| sites[index].live_bytes > 0).collect();
        if let Some((_, earlier)) = live.split_last() {
            let bytes = earlier.iter().map(|&index| sites[index].live_bytes).sum();
            live.iter().for_each(|&index| earlier_bytes[index] = bytes);
        }
        let Some(growth) = growth_by_run(&shares) else { continue };
        for &index in &live {
            let judgement = &mut sites[index].judgement;
            if judgement.verdict != Verdict::Growing {
                judgement.verdict = Verdict::Growing;
                judgement.growth_bytes_per_s = None;
                judgement.repetitions = runs.len() as u64;
                judgement.confidence = Some(confidence(runs.len() as u64, false));
            }
            judgement.growth_bytes_per_run = Some(growth);
        }
    }
    let trains = sites.iter().any(|site| site.backward_pass);
    for (site, earlier_bytes) in sites.iter_mut().zip(earlier_bytes) {
        let found = hint(&Subject {
            frames: &site.frames,
            level: site.level,
            live_bytes: site.live_bytes,
            backward_pass: site.backward_pass,
            verdict: site.judgement.verdict,
            earlier_bytes,
            is_leftover: site.judgement.is_leftover,
            trains,
        });
        site.judgement.hint_kind = found.map(|(kind, _)| kind);
        site.judgement.hint = found.map(|(_, text)| text.to_owned());
    }
}
