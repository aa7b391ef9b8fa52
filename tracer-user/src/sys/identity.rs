//! Files as another user may see them: cudatrace runs with every right, and the paths that it is told by
//! a traced process are whatever that process likes. So they are opened with its user's rights, by this
//! thread alone.

use std::{fs::File, io, marker::PhantomData, path::Path};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, openat2},
    process::Gid,
};

/// Who a process is to files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its further groups.
    pub groups: Vec<u32>,
}

impl Identity {
    /// That of this thread.
    fn current() -> io::Result<Self> {
        let groups = rustix::process::getgroups()?;
        Ok(Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(Gid::as_raw).collect(),
        })
    }

    /// By the text of `/proc/PID/status`: the ids for files are the last of four.
    pub fn parse(status: &str) -> Option<Self> {
        let numbers = |name: &str| -> Option<Vec<u32>> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect())
        };
        Some(Self {
            uid: *numbers("Uid:")?.get(3)?,
            gid: *numbers("Gid:")?.get(3)?,
            groups: numbers("Groups:")?,
        })
    }
}

/// As long as it is there, this thread opens files with the rights of another user.
pub struct Borrowed {
    own: Identity,
    /// It is this thread's.
    _thread: PhantomData<*const ()>,
}

impl Borrowed {
    /// Takes the rights of `identity`.
    ///
    /// # Errors
    ///
    /// When that is not permitted; nothing has changed then.
    pub fn take(identity: &Identity) -> io::Result<Self> {
        let own = Identity::current()?;
        let borrowed = Self { own, _thread: PhantomData };
        if borrowed.own != *identity {
            set(identity)?;
        }
        Ok(borrowed)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Err(error) = set(&self.own) {
            tracing::warn!("cannot take back the own rights for files: {error}");
        }
    }
}

/// Changes this thread's ids for files. Leaving user 0 takes the capabilities that concern files out of
/// effect, and returning to it puts them back (capabilities(7)).
fn set(identity: &Identity) -> io::Result<()> {
    let root = rustix::process::geteuid().is_root();
    if root {
        set_file_ids(0, identity.gid)?;
        let groups = &identity.groups;
        // By number: the C library would change every thread.
        // SAFETY: the pointer and the length are those of a slice.
        let result = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    set_file_ids(identity.uid, identity.gid)
}

fn set_file_ids(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: numbers in, a number out; neither fails, they tell what was there before.
    let now = unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
        (libc::setfsuid(u32::MAX), libc::setfsgid(u32::MAX))
    };
    if now == (uid as i32, gid as i32) {
        Ok(())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

/// Opens a regular file by the path that a process has for it. Links lead where they lead there, also
/// absolute ones.
///
/// # Errors
///
/// When it is not there, not permitted, or no regular file.
pub fn open_in_root(root: &Path, path: &Path) -> io::Result<File> {
    let folder = File::open(root)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(openat2(&folder, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const NOBODY: Identity = Identity { uid: 65_534, gid: 65_534, groups: Vec::new() };

    #[test]
    fn what_its_user_cannot_read_is_not_read() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: it needs root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let file = |name: &str, mode| {
            let path = folder.path().join(name);
            std::fs::write(&path, name).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        };
        file("secret", 0o600);
        file("public", 0o644);
        symlink("/secret", folder.path().join("link")).unwrap();
        symlink("/public", folder.path().join("inside")).unwrap();
        let open = |name: &str| open_in_root(folder.path(), Path::new(name)).is_ok();
        let (ask, asked) = std::sync::mpsc::channel();
        let secret = folder.path().join("secret");
        let other_thread = std::thread::spawn(move || {
            asked.recv().unwrap();
            std::fs::read(secret).is_ok()
        });
        let before = Identity::current().unwrap();
        {
            let _user = Borrowed::take(&NOBODY).unwrap();
            ask.send(()).unwrap();
            assert!(other_thread.join().unwrap(), "the rights are this thread's alone");
            assert!(open("public") && open("/inside"));
            assert!(!open("secret") && !open("/link") && !open("/"));
        }
        assert_eq!(Identity::current().unwrap(), before);
        assert!(open("secret") && open("link"));
    }

    #[test]
    fn ids_for_files_are_the_last_ones() {
        let status = "Name:\tx\nUid:\t0\t1\t2\t3\nGid:\t4\t5\t6\t7\nGroups:\t8 9 \n";
        let identity = Identity { uid: 3, gid: 7, groups: vec![8, 9] };
        assert_eq!(Identity::parse(status), Some(identity));
        assert_eq!(Identity::parse("Uid:\t0\n"), None);
    }
}
