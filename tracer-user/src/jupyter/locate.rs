//! Which kernel a process is, and which notebook it runs.

use std::{
    fs::{self, File},
    path::PathBuf,
};

use super::{
    connection::ConnectionFile,
    kernel::{MAX_FILE, read},
    server::{ServerFile, is_server_file},
};
use crate::sys::identity::{Borrowed, Identity, open_in_root};

/// Files of servers that are looked at.
const MAX_SERVERS: usize = 64;

/// What is known of a kernel from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelFacts {
    /// Jupyter's id of it.
    pub kernel_id: Option<String>,
    /// Path of its notebook.
    pub notebook: Option<PathBuf>,
}

/// What finds it out.
#[derive(Clone, Debug)]
pub struct Locator {
    /// The process's folder in the process file system.
    pub process: PathBuf,
    /// Its rights for files.
    pub identity: Identity,
}

impl Locator {
    /// The kernel's id, and the notebook that it runs: by its server, else as it was when the server
    /// started it. May take as long as the server does.
    pub fn facts(&self) -> KernelFacts {
        let connection = self.connection();
        let kernel_id = connection.as_ref().map(ConnectionFile::kernel_id);
        let asked = connection.zip(kernel_id.as_ref());
        let notebook = asked.and_then(|(connection, id)| self.ask_servers(&connection, id));
        KernelFacts { kernel_id, notebook: notebook.or_else(|| self.told_at_start()) }
    }

    fn words(&self, file: &str) -> Option<String> {
        let bytes = read(File::open(self.process.join(file)).ok()?, MAX_FILE)?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn connection(&self) -> Option<ConnectionFile> {
        ConnectionFile::of(self.words("cmdline")?.split('\0'))
    }

    fn ask_servers(&self, connection: &ConnectionFile, kernel_id: &str) -> Option<PathBuf> {
        let _user = Borrowed::take(&self.identity).ok()?;
        let root = self.process.join("root");
        let folder = connection.folder()?;
        let entries = fs::read_dir(root.join(folder.strip_prefix("/").ok()?)).ok()?.flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut servers = names.filter(|name| is_server_file(name)).take(MAX_SERVERS);
        servers.find_map(|name| {
            let text = read(open_in_root(&root, &folder.join(&name)).ok()?, MAX_FILE)?;
            let server = ServerFile::parse(&String::from_utf8_lossy(&text))?;
            match server.notebook(kernel_id, &root) {
                Ok(notebook) => notebook,
                Err(error) => {
                    tracing::debug!("the Jupyter server of `{name}`: {error}");
                    None
                }
            }
        })
    }

    /// jupyter_server tells a kernel the path of its notebook by `JPY_SESSION_NAME` (2.0).
    fn told_at_start(&self) -> Option<PathBuf> {
        let variables = self.words("environ")?;
        let path = variables.split('\0').find_map(|line| line.strip_prefix("JPY_SESSION_NAME="))?;
        path.ends_with(".ipynb").then(|| PathBuf::from(path))
    }
}
