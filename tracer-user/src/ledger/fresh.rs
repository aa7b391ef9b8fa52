//! Call sites that are new since somebody last looked, within bounds.

use super::SiteKey;

/// How many are remembered.
const MAX_FRESH: usize = 16 * 1024;

/// Sites that are new since they were last taken. Nothing is remembered before the first time.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    keys: Vec<SiteKey>,
    is_watched: bool,
    /// There were too many.
    is_over: bool,
}

impl Fresh {
    pub fn note(&mut self, key: SiteKey) {
        if !self.is_watched {
            return;
        }
        if self.keys.len() == MAX_FRESH {
            self.keys = Vec::new();
            self.is_watched = false;
            self.is_over = true;
            return;
        }
        self.keys.push(key);
    }

    /// Those since the last time, each once; `None` if there were too many.
    pub fn take(&mut self) -> Option<Vec<SiteKey>> {
        self.is_watched = true;
        let mut keys = std::mem::take(&mut self.keys);
        keys.sort_unstable();
        keys.dedup();
        (!std::mem::take(&mut self.is_over)).then_some(keys)
    }
}
