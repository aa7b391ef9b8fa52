//! The connection file that a kernel was started with: it names the kernel, and lies where the Jupyter
//! server keeps its own.

use std::path::{Path, PathBuf};

/// The words of a kernel's command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionFile(PathBuf);

impl ConnectionFile {
    /// By the words of a command line: `-f FILE`, or an option that ends in `=FILE`. The file is
    /// `kernel-ID.json`.
    pub fn of<'a>(words: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let files = words.into_iter().map(|word| {
            let is_option = word.starts_with('-') && word.contains('=');
            if is_option { word.split_once('=').map_or(word, |(_, value)| value) } else { word }
        });
        files.map(PathBuf::from).find(|path| id(path).is_some()).map(Self)
    }

    /// Jupyter's id of the kernel.
    pub fn kernel_id(&self) -> String {
        id(&self.0).unwrap_or_default().to_owned()
    }

    /// The folder of the files of servers, as the kernel sees it; `None` if it is not known.
    pub fn folder(&self) -> Option<&Path> {
        self.0.parent().filter(|folder| folder.is_absolute())
    }
}

fn id(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    let id = name.strip_prefix("kernel-")?.strip_suffix(".json")?;
    (!id.is_empty() && id.len() <= 128).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_name_it() {
        let id = "0f1e2d3c-0000-4000-8000-123456789abc";
        let file = format!("/run/user/1000/jupyter/kernel-{id}.json");
        for words in [
            vec!["python", "-m", "ipykernel_launcher", "-f", &file],
            vec!["python", "-m", "ipykernel_launcher", &format!("--f={file}")],
            vec!["python", "-Xx", &format!("--IPKernelApp.connection_file={file}"), "--debug"],
        ] {
            let connection = ConnectionFile::of(words).unwrap();
            assert_eq!(connection.kernel_id(), id);
            assert_eq!(connection.folder(), Some(Path::new("/run/user/1000/jupyter")));
        }
        assert_eq!(ConnectionFile::of(["-f", "kernel-7.json"]).unwrap().folder(), None);
        for words in [["python", "kernel-.json"], ["-f", "/x/other.json"], ["", "--"]] {
            assert_eq!(ConnectionFile::of(words), None);
        }
    }
}
