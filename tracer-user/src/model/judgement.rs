//! What the behaviour of a call site says: docs/verdicts.md has the rules.

use serde::Serialize;

/// The kinds of behaviour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Each repetition leaves something behind: a leak, or a store without a bound.
    Growing,
    /// It holds about as much as before, in blocks that are replaced.
    Steady,
    /// Allocated once and kept: weights, the state of an optimizer.
    OneOff,
    /// What it allocates is given back.
    Transient,
    /// Reserve of a pool, which the pool's own sites hold or which lies free in it.
    Cache,
    /// Too little was seen of it.
    #[default]
    Unknown,
}

/// How much a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// Few repetitions, or events were lost.
    Low,
    /// Some.
    Medium,
    /// Many.
    High,
}

/// How long ago the live blocks of a site were allocated, in seconds: each a block, not a byte.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ages {
    /// The youngest.
    pub min: f64,
    /// Half are younger.
    pub median: f64,
    /// Nine of ten are younger.
    pub p90: f64,
    /// The oldest.
    pub max: f64,
}

/// The usual cause that a hint names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HintKind {
    /// A loss or an output is kept together with its graph.
    KeptGraph,
    /// An evaluation builds graphs.
    NoGrad,
    /// The graph is asked to be retained.
    RetainGraph,
    /// A hook keeps what passes it.
    Hook,
    /// IPython keeps the value of a cell's last line.
    CellResult,
    /// The traceback of an exception keeps the variables of its frames.
    Traceback,
    /// A cell was run again, and what its earlier runs made is still held.
    RerunCell,
    /// Gradients stay between the steps.
    KeptGradients,
    /// Something that is added to in every repetition.
    Collection,
}

/// A verdict, what it rests on, and what to try.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Judgement {
    /// Rise of what stays, per second of the time between the first and the last allocation; 0 where
    /// nothing grows, `null` while not judged.
    pub growth_bytes_per_s: Option<f64>,
    /// The same per repetition; `null` where nothing grows.
    pub growth_bytes_per_repetition: Option<u64>,
    /// The same per run of the cell that it is in; `null` where it is in no cell that ran again, or
    /// where nothing grows from run to run.
    pub growth_bytes_per_run: Option<u64>,
    /// Times that this was allocated anew after something had been freed: passes of a loop, as far as
    /// memory can tell.
    pub repetitions: u64,
    /// Of the blocks that were ever allocated here, the part that is live.
    pub survival: f64,
    /// Whether what it holds is the last of what it went through in a run of a cell that is over: most of
    /// its blocks were freed.
    pub is_leftover: bool,
    /// Ages of the live blocks; `null` where there are none, and below the pools.
    pub ages_s: Option<Ages>,
    /// What the behaviour says.
    pub verdict: Verdict,
    /// How much that rests on; `null` while not judged.
    pub confidence: Option<Confidence>,
    /// What to try: a suggestion.
    pub hint: Option<String>,
    /// What the suggestion is about.
    pub hint_kind: Option<HintKind>,
}
