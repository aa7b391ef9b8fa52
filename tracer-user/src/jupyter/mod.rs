//! What Jupyter and IPython know of a traced kernel, found from outside: the history of its cells, its
//! notebook, its id; and the text of source files. Everything is read by a thread of its own, with the
//! rights of the kernel's user: a file system or a server that does not answer holds up nothing else.

mod connection;
mod history;
mod kernel;
mod locate;
mod notebook;
mod server;
mod sqlite;

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use self::kernel::Kernel;
pub use self::{kernel::Clocks, locate::KernelFacts};
use crate::{
    model::Pid,
    naming::{HistoryPage, NotebookPage},
};

/// Time between two searches for a history that was not there.
const SEARCH_INTERVAL: u64 = 2_000_000_000;

/// Time between two questions to the server: a notebook can be renamed.
const FACTS_INTERVAL: u64 = 30_000_000_000;

/// How long an answer of a server is waited for, at each look.
const AT_ONCE: Duration = Duration::from_millis(20);

/// What the thread is asked to do.
#[derive(Debug)]
enum Request {
    /// A process is traced that started so many seconds after 1970.
    Attach(Pid, i64),
    /// Cells of it wait for their numbers.
    Look(Pid),
    /// The text of a file that it has loaded.
    Source(Pid, String),
    /// It is not traced any more.
    Forget(Pid),
}

/// What it has found.
#[derive(Debug)]
pub enum Answer {
    /// A process was looked at for the first time, or once more; whether it has a history.
    Looked(Pid, bool),
    /// New in its history.
    History(Pid, HistoryPage),
    /// The file of its notebook.
    Notebook(Pid, NotebookPage),
    /// What is known of the kernel.
    Facts(Pid, KernelFacts),
    /// The text of a file, or that it is not to be had.
    Source(Pid, String, Option<String>),
}

/// The thread.
pub struct Watcher {
    requests: Sender<Request>,
    answers: Receiver<Answer>,
}

impl Watcher {
    /// Starts it. `proc` is where the process file system is.
    pub fn start(proc: PathBuf, clocks: Clocks) -> Self {
        let (requests, requested) = channel();
        let (answer, answers) = channel();
        let mut desk = Desk { proc, clocks, answers: answer, kernels: HashMap::new() };
        thread::spawn(move || desk.serve(&requested));
        Self { requests, answers }
    }

    /// A process is traced. Waits until its history was looked at, so that what was run before is known,
    /// but not for long.
    pub fn attach(&self, pid: Pid, started_s: i64, patience: Duration) -> Vec<Answer> {
        self.request(Request::Attach(pid, started_s));
        self.wait(patience, |answer| matches!(answer, Answer::Looked(looked, _) if *looked == pid))
    }

    /// Asks for what is new of a process.
    pub fn look(&self, pid: Pid) {
        self.request(Request::Look(pid));
    }

    /// Asks for the text of a file that a process has loaded.
    pub fn source(&self, pid: Pid, path: &str) {
        self.request(Request::Source(pid, path.to_owned()));
    }

    /// A process is not traced any more.
    pub fn forget(&self, pid: Pid) {
        self.request(Request::Forget(pid));
    }

    fn request(&self, request: Request) {
        // It does not end before its requests do.
        let _ = self.requests.send(request);
    }

    /// What was found so far.
    pub fn answers(&self) -> Vec<Answer> {
        self.answers.try_iter().collect()
    }

    /// What is found until an answer is the last one that is wanted, or the patience is over.
    pub fn wait(
        &self,
        patience: Duration,
        mut is_last: impl FnMut(&Answer) -> bool,
    ) -> Vec<Answer> {
        let mut found = Vec::new();
        let deadline = std::time::Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            match self.answers.recv_timeout(left) {
                Ok(answer) => {
                    let last = is_last(&answer);
                    found.push(answer);
                    if last {
                        return found;
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return found,
            }
        }
    }
}

/// The thread's own.
struct Desk {
    proc: PathBuf,
    clocks: Clocks,
    answers: Sender<Answer>,
    kernels: HashMap<Pid, Watched>,
}

struct Watched {
    kernel: Kernel,
    /// When its history was last searched for.
    searched_ns: u64,
    facts: Facts,
    /// What was said of its history.
    complaints: HashSet<String>,
}

/// What a server says, which may take its time.
struct Facts {
    /// When it is asked again.
    next_ns: u64,
    answer: Option<Receiver<KernelFacts>>,
}

impl Facts {
    /// What has been found out since the last question, and the next question where it is time.
    fn ask(&mut self, kernel: &Kernel, now_ns: u64) -> Option<KernelFacts> {
        if self.answer.is_none() && now_ns >= self.next_ns {
            let (sender, receiver) = channel();
            let locator = kernel.locator();
            thread::spawn(move || sender.send(locator.facts()));
            self.answer = Some(receiver);
        }
        // Most servers answer at once.
        let answer = self.answer.as_ref()?;
        match answer.recv_timeout(AT_ONCE) {
            Ok(facts) => {
                self.answer = None;
                self.next_ns = now_ns + FACTS_INTERVAL;
                Some(facts)
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                self.answer = None;
                None
            }
        }
    }
}

impl Desk {
    fn serve(&mut self, requests: &Receiver<Request>) {
        while let Ok(request) = requests.recv() {
            match request {
                Request::Attach(pid, started_s) => {
                    let process = self.proc.join(pid.to_string());
                    if let Ok(kernel) = Kernel::find(&process, started_s, self.clocks) {
                        let searched_ns = (self.clocks.monotonic_ns)();
                        let facts = Facts { next_ns: 0, answer: None };
                        let complaints = HashSet::new();
                        let watched = Watched { kernel, searched_ns, facts, complaints };
                        self.kernels.insert(pid, watched);
                    }
                    self.look(pid);
                }
                Request::Look(pid) => self.look(pid),
                Request::Source(pid, path) => {
                    let kernel = self.kernels.get(&pid).map(|watched| &watched.kernel);
                    let text = kernel.and_then(|kernel| kernel.source(path.as_ref()));
                    self.answer(Answer::Source(pid, path, text));
                }
                Request::Forget(pid) => {
                    self.kernels.remove(&pid);
                }
            }
        }
    }

    fn answer(&self, answer: Answer) {
        // Nobody listens any more: the next request will not come.
        let _ = self.answers.send(answer);
    }

    fn look(&mut self, pid: Pid) {
        let now = (self.clocks.monotonic_ns)();
        let mut found = Vec::new();
        if let Some(watched) = self.kernels.get_mut(&pid) {
            if now > watched.searched_ns + SEARCH_INTERVAL {
                watched.searched_ns = now;
                watched.kernel.find_history();
            }
            if let Some(facts) = watched.facts.ask(&watched.kernel, now) {
                watched.kernel.set_notebook(facts.notebook.clone());
                found.push(Answer::Facts(pid, facts));
            }
            found.extend(watched.kernel.notebook().map(|page| Answer::Notebook(pid, page)));
            match watched.kernel.look() {
                Ok(page) => found.extend(page.map(|page| Answer::History(pid, page))),
                Err(complaint) => {
                    if watched.complaints.insert(complaint.clone()) {
                        tracing::warn!("process {pid}: {complaint}");
                    }
                }
            }
        }
        found.into_iter().for_each(|answer| self.answer(answer));
        let kernel = self.kernels.get(&pid).map(|watched| &watched.kernel);
        self.answer(Answer::Looked(pid, kernel.is_some_and(Kernel::has_history)));
    }
}
