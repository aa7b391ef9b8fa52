//! Which notebook a kernel runs, as the Jupyter server that started it says: `GET api/sessions`, with the
//! token that the server keeps for its user, over the loopback.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use serde_json::Value;

/// How long a server is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes of an answer that are read.
const MAX_ANSWER: u64 = 8 << 20;

/// What a server writes about itself into `jpserver-PID.json` (before 1.0: `nbserver-PID.json`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServerFile {
    /// TCP port; 0 where it listens on a socket.
    pub port: u16,
    /// Path of that socket.
    pub sock: String,
    /// What every path of its begins with.
    pub base_url: String,
    /// What to show it.
    pub token: String,
    /// Whether it speaks TLS only.
    pub secure: bool,
    /// The folder that its paths are in.
    pub root_dir: String,
    /// The same before 1.0.
    pub notebook_dir: String,
}

/// Whether this is the name of a server's file.
pub fn is_server_file(name: &str) -> bool {
    (name.starts_with("jpserver-") || name.starts_with("nbserver-")) && name.ends_with(".json")
}

impl ServerFile {
    /// Reads one.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Asks for the sessions, and returns the path of the notebook that the kernel runs. `root` is the
    /// file system that the server's socket is in.
    ///
    /// # Errors
    ///
    /// When it does not answer, or not as a Jupyter server does.
    pub fn notebook(&self, kernel_id: &str, root: &Path) -> io::Result<Option<PathBuf>> {
        let answer = self.get("api/sessions", root)?;
        let sessions: Value = serde_json::from_slice(&answer)?;
        let path = notebook_of(&sessions, kernel_id);
        let folder = if self.root_dir.is_empty() { &self.notebook_dir } else { &self.root_dir };
        Ok(path.map(|path| Path::new(folder).join(path.trim_start_matches('/'))))
    }

    fn get(&self, path: &str, root: &Path) -> io::Result<Vec<u8>> {
        if self.secure {
            return Err(io::Error::other("it speaks TLS only"));
        }
        if !self.sock.is_empty() {
            let socket = root.join(self.sock.trim_start_matches('/'));
            let stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            return self.exchange(stream, path);
        }
        // Never anywhere else, whatever the file says.
        let loopbacks = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let connect =
            |address| TcpStream::connect_timeout(&SocketAddr::new(address, self.port), PATIENCE);
        let stream = connect(loopbacks[0]).or_else(|_| connect(loopbacks[1]))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        self.exchange(stream, path)
    }

    /// HTTP/1.0: the answer ends with the connection.
    fn exchange(&self, mut stream: impl Read + Write, path: &str) -> io::Result<Vec<u8>> {
        let base = self.base_url.trim_matches('/');
        let target = if base.is_empty() { format!("/{path}") } else { format!("/{base}/{path}") };
        let is_clean = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_clean(&target) || !is_clean(&self.token) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut request = format!("GET {target} HTTP/1.0\r\nHost: localhost\r\n");
        if !self.token.is_empty() {
            request.push_str(&format!("Authorization: token {}\r\n", self.token));
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
        body(&answer)
    }
}

/// The body of an answer that says `200`.
fn body(answer: &[u8]) -> io::Result<Vec<u8>> {
    let malformed = || io::Error::other("it answers with something else than HTTP");
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or_else(malformed)?;
    let head = std::str::from_utf8(&answer[..end]).map_err(|_utf8| malformed())?;
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    match status.ok_or_else(malformed)? {
        "200" => Ok(answer[end + 4..].to_vec()),
        status => Err(io::Error::other(format!("it answers with status {status}"))),
    }
}

/// The notebook's path in a list of sessions.
fn notebook_of<'a>(sessions: &'a Value, kernel_id: &str) -> Option<&'a str> {
    let sessions = sessions.as_array()?;
    let session = sessions
        .iter()
        .find(|session| session.pointer("/kernel/id").and_then(Value::as_str) == Some(kernel_id))?;
    let path = session.pointer("/notebook/path").or_else(|| session.get("path"))?;
    path.as_str().filter(|path| !path.is_empty())
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    /// A server that answers one request; gives back what it was asked.
    fn serve(answer: &'static str) -> (u16, thread::JoinHandle<String>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let thread = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            let length = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        (port, thread)
    }

    #[test]
    fn the_notebook_of_a_kernel() {
        let (port, thread) = serve(
            "HTTP/1.1 200 OK\r\nServer: TornadoServer\r\n\r\n\
             [{\"path\": \"a.ipynb\", \"kernel\": {\"id\": \"k1\"}},\
             {\"path\": \"sub/b.ipynb\", \"kernel\": {\"id\": \"k2\"}}]",
        );
        let file = ServerFile::parse(&format!(
            "{{\"port\": {port}, \"token\": \"t0\", \"base_url\": \"/user/ada/\", \"sock\": \"\", \
             \"root_dir\": \"/home/ada\", \"secure\": false, \"version\": \"2.0\"}}"
        ));
        let found = file.unwrap().notebook("k2", Path::new("/")).unwrap();
        assert_eq!(found.as_deref(), Some(Path::new("/home/ada/sub/b.ipynb")));
        let request = thread.join().unwrap();
        assert!(request.starts_with("GET /user/ada/api/sessions HTTP/1.0\r\n"), "{request}");
        assert!(request.contains("\r\nAuthorization: token t0\r\n"), "{request}");
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for answer in [
            "HTTP/1.1 403 Forbidden\r\n\r\n{}",
            "HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\nnot json",
            "SSH-2.0-x\r\n\r\n",
            "",
        ] {
            let (port, thread) = serve(answer);
            let file = ServerFile { port, ..ServerFile::default() };
            assert!(file.notebook("k", Path::new("/")).is_err(), "{answer}");
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_token_cannot_add_to_the_request() {
        let (port, thread) = serve("");
        let token = "x\r\nX-Other: 1".to_owned();
        let file = ServerFile { port, token, ..ServerFile::default() };
        assert!(file.notebook("k", Path::new("/")).is_err());
        assert_eq!(thread.join().unwrap(), "");
    }

    #[test]
    fn names_of_files_of_servers() {
        assert!(is_server_file("jpserver-77.json") && is_server_file("nbserver-77.json"));
        assert!(!is_server_file("jpserver-77-open.html") && !is_server_file("kernel-7.json"));
    }
}
