//! Where things are: the workspace's folders and the user's cache.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// The workspace that this xtask was built in.
pub struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Finds it.
    ///
    /// # Errors
    ///
    /// When the folder that xtask was built in is gone.
    pub fn find() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let root =
            root.canonicalize().with_context(|| format!("no workspace at `{}`", root.display()))?;
        Ok(Self { root })
    }

    /// Its top folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A folder or file below `target`.
    pub fn target(&self, path: &str) -> PathBuf {
        self.root.join("target").join(path)
    }

    /// A folder for downloads and built tools, shared by every clone of this user:
    /// `$XDG_CACHE_HOME/cudatrace`, else `~/.cache/cudatrace`. Made if need be.
    ///
    /// # Errors
    ///
    /// When neither variable is set, or the folder cannot be made.
    pub fn cache(&self, path: &str) -> Result<PathBuf> {
        let base = match env::var_os("XDG_CACHE_HOME") {
            Some(base) => PathBuf::from(base),
            None => PathBuf::from(
                env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?,
            )
            .join(".cache"),
        };
        let folder = base.join("cudatrace").join(path);
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the cache folder `{}`", folder.display()))?;
        Ok(folder)
    }
}
