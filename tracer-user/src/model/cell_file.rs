//! Names that notebook hosts give to the code of a cell, in the place of a file's.

/// What the file name of a cell's code says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellFile<'a> {
    /// `<ipython-input-7-0123456789ab>` (ipykernel to 5, IPython in a terminal): the execution count,
    /// and the first digits of the SHA-1 of the source after IPython's transformations. Colab's
    /// `ipython-input-7-1234.py` has no such digest.
    Numbered {
        /// `In[n]`.
        count: u32,
        /// Hexadecimal digits.
        digest: Option<&'a str>,
    },
    /// `/tmp/ipykernel_4242/3409123.py` (ipykernel from 6 on): the MurmurHash2 of the source as typed.
    Hashed(u32),
    /// Another host's cell, and what it calls it.
    Named {
        /// The kind of its names.
        kind: &'static str,
        /// Its own name.
        name: &'a str,
    },
}

impl<'a> CellFile<'a> {
    /// What a file name says; `None` where it is not a cell's.
    pub fn of(file: &'a str) -> Option<Self> {
        if let Some(input) = inside(file, "<ipython-input-", ">") {
            let (count, digest) = input.split_once('-')?;
            return Some(Self::Numbered { count: count.parse().ok()?, digest: Some(digest) });
        }
        // Databricks; some versions add a second number.
        if let Some(name) = inside(file, "<command-", ">") {
            return starts_with_digit(name).then_some(Self::Named { kind: "command", name });
        }
        if let Some(place) = file.strip_prefix("vscode-notebook-cell:") {
            let (_, name) = place.rsplit_once('#')?;
            return Some(Self::Named { kind: "cell", name });
        }
        let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
        let name = name.strip_suffix(".py").unwrap_or(name);
        if let Some(cell) = name.strip_prefix("__marimo__cell_") {
            let name = cell.split('_').next().filter(|id| !id.is_empty())?;
            return Some(Self::Named { kind: "cell", name });
        }
        if let Some(input) = name.strip_prefix("ipython-input-").filter(|_| file.ends_with(".py")) {
            return match input.split_once('-') {
                Some((count, hash)) if is_number(hash) => {
                    Some(Self::Numbered { count: count.parse().ok()?, digest: None })
                }
                Some(_) => None,
                None => is_number(input).then(|| input.parse().ok().map(Self::Hashed))?,
            };
        }
        let pid = folder.rsplit('/').next()?.strip_prefix("ipykernel_")?;
        let is_kernel = is_number(pid) && is_number(name) && file.ends_with(".py");
        is_kernel.then(|| name.parse().ok().map(Self::Hashed))?
    }

    /// What it is called where its number is not known.
    pub fn label(&self) -> String {
        match self {
            Self::Numbered { count, .. } => format!("In[{count}]"),
            Self::Hashed(hash) => format!("cell {hash}"),
            Self::Named { kind, name } => format!("{kind} {name}"),
        }
    }
}

/// The name of the code at the top of a cell: some versions of IPython call it `<cell line: 1>`.
pub fn is_cell_top(function: &str) -> bool {
    function == "<module>" || function.starts_with("<cell line: ")
}

fn inside<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    text.strip_prefix(start)?.strip_suffix(end)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn starts_with_digit(text: &str) -> bool {
    text.bytes().next().is_some_and(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_has_its_names() {
        let digest = Some("0123456789ab");
        for (file, cell) in [
            ("<ipython-input-7-0123456789ab>", CellFile::Numbered { count: 7, digest }),
            ("/tmp/ipython-input-12-99.py", CellFile::Numbered { count: 12, digest: None }),
            ("/tmp/ipython-input-99.py", CellFile::Hashed(99)),
            ("/tmp/ipykernel_4242/3409123.py", CellFile::Hashed(3_409_123)),
            ("…/ipykernel_4242/3409123.py", CellFile::Hashed(3_409_123)),
            ("<command-3029>", CellFile::Named { kind: "command", name: "3029" }),
            ("<command-3029-7>", CellFile::Named { kind: "command", name: "3029-7" }),
            (
                "/tmp/marimo_77/__marimo__cell_Hbol_.py",
                CellFile::Named { kind: "cell", name: "Hbol" },
            ),
            ("__marimo__cell_MJUe_output", CellFile::Named { kind: "cell", name: "MJUe" }),
            (
                "vscode-notebook-cell:/home/me/a.ipynb#W0sZmlsZQ%3D%3D",
                CellFile::Named { kind: "cell", name: "W0sZmlsZQ%3D%3D" },
            ),
        ] {
            assert_eq!(CellFile::of(file), Some(cell), "{file}");
        }
    }

    #[test]
    fn what_looks_like_a_cell_and_is_none() {
        for file in [
            "train.py",
            "<ipython-input-x-0123456789ab>",
            "<ipython-input-7>",
            "<ipython-input-99999999999-00>",
            "<command-line>",
            "/home/me/ipykernel_notes/1.py",
            "/tmp/ipykernel_4242/helper.py",
            "/tmp/ipykernel_4242/99999999999.py",
            "/tmp/ipykernel_4242/12",
            "/home/me/ipython-input-notes.py",
            "__marimo__cell_",
            "vscode-notebook-cell:x",
            "",
            "/",
            ".py",
        ] {
            assert_eq!(CellFile::of(file), None, "{file}");
        }
    }
}
