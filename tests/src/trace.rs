//! Traces inside the test's own process.

use std::time::Duration;

use serde_json::Value;
use tracer_user::{
    bpf::{LoadOptions, Occupancy},
    discover::plan::Extras,
    model::{DeviceSnapshot, Level, Pid, ProcessSnapshot, Snapshot},
    report::{Options, write_text},
    session::Session,
};

use crate::child::Talker;

/// A running trace of one process.
pub struct Trace {
    session: Session,
}

impl Trace {
    /// Attaches to `pid`.
    ///
    /// # Panics
    ///
    /// When that fails.
    pub fn attach(pid: u32, options: &LoadOptions) -> Self {
        Self::attach_with(pid, options, Extras::default())
    }

    /// Attaches to several processes.
    ///
    /// # Panics
    ///
    /// When that fails.
    pub fn attach_all(pids: &[u32], options: &LoadOptions) -> Self {
        let ids: Vec<Pid> = pids.iter().copied().map(Pid).collect();
        match Session::start(&ids, options, Extras::default()) {
            Ok(session) => Self { session },
            Err(error) => panic!("cannot attach to {pids:?}: {:#}", anyhow::Error::from(error)),
        }
    }

    /// Attaches to `pid`, for more than what is always traced.
    ///
    /// # Panics
    ///
    /// When that fails.
    pub fn attach_with(pid: u32, options: &LoadOptions, extras: Extras) -> Self {
        match Session::start(&[Pid(pid)], options, extras) {
            Ok(session) => Self { session },
            Err(error) => panic!("cannot attach to {pid}: {:#}", anyhow::Error::from(error)),
        }
    }

    /// The next line of a process, while events are taken all the time.
    ///
    /// # Panics
    ///
    /// When none comes within three minutes.
    pub fn line(&mut self, talker: &mut Talker) -> Value {
        for _ in 0..18_000 {
            self.session.tick();
            if let Some(line) = talker.try_line(Duration::from_millis(10)) {
                self.session.tick();
                return line;
            }
        }
        panic!("no answer in time");
    }

    /// Lets a process go on, and returns its next line.
    ///
    /// # Panics
    ///
    /// Those of [`Trace::line`].
    pub fn go(&mut self, talker: &mut Talker) -> Value {
        talker.say("go");
        self.line(talker)
    }

    /// Takes what has come.
    pub fn tick(&mut self) {
        self.session.tick();
    }

    /// The picture now.
    pub fn snapshot(&mut self) -> Snapshot {
        self.session.tick();
        self.session.snapshot()
    }

    /// Whether the process is still traced.
    pub fn is_active(&self) -> bool {
        self.session.is_active()
    }

    /// How full the kernel half's tables are.
    pub fn occupancy(&self) -> Occupancy {
        self.session.occupancy()
    }

    /// The last picture.
    pub fn finish(mut self) -> Snapshot {
        self.session.finish()
    }
}

/// The report for people.
///
/// # Panics
///
/// Never: memory can be written to.
pub fn text(snapshot: &Snapshot) -> String {
    let mut text = Vec::new();
    if let Err(error) = write_text(snapshot, &Options::default(), &mut text) {
        panic!("cannot write to memory: {error}");
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The only process of a snapshot.
///
/// # Panics
///
/// When there is not exactly one.
pub fn only_process(snapshot: &Snapshot) -> &ProcessSnapshot {
    match snapshot.processes.as_slice() {
        [process] => process,
        others => panic!("{} processes", others.len()),
    }
}

/// A device of a process.
///
/// # Panics
///
/// When it is not there.
pub fn device(process: &ProcessSnapshot, index: usize) -> &DeviceSnapshot {
    let found = process.devices.iter().find(|d| d.index.is_some_and(|i| usize::from(i.0) == index));
    match found {
        Some(device) => device,
        None => panic!("no device {index} in {:?}", process.devices),
    }
}

/// Sum of the live bytes of a level's sites on a device.
pub fn live_bytes(process: &ProcessSnapshot, level: Level, index: usize) -> u64 {
    process
        .sites
        .iter()
        .filter(|site| site.level == level)
        .filter(|site| site.device.is_some_and(|device| usize::from(device.0) == index))
        .map(|site| site.live_bytes)
        .sum()
}

/// A number in a JSON line.
///
/// # Panics
///
/// When it is not there.
pub fn number(value: &Value, pointer: &str) -> u64 {
    match value.pointer(pointer).and_then(Value::as_u64) {
        Some(number) => number,
        None => panic!("no number at {pointer} in {value}"),
    }
}
