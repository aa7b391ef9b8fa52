//! Symbols of the largest libraries there are: a plugin of JAX has 0.7 million of them.

use std::{fs, path::PathBuf, time::Instant};

use tracer_user::discover::{
    library::{LibraryFile, LibraryKind},
    plan::{Extras, for_library},
};

/// Highest resident memory of this process since the last call, in bytes.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    fs::write("/proc/self/clear_refs", "5").unwrap();
    kib << 10
}

/// The hook is found in little memory, and the second time where the first one was remembered.
#[test]
fn the_plugins_of_jax() {
    let cache = tempfile::tempdir().unwrap();
    // SAFETY: this is the only test of its process, and it has no other thread that reads it.
    unsafe { std::env::set_var("XDG_CACHE_HOME", cache.path()) };
    for plugin in cudatrace_tests::list("CUDATRACE_JAX_PLUGINS") {
        let library = LibraryFile {
            kind: LibraryKind::of(&plugin).unwrap(),
            path: plugin.clone(),
            open_path: plugin.clone(),
            mapped: true,
            inode: 0,
        };
        peak_memory();
        let before = peak_memory();
        let look = || {
            let start = Instant::now();
            let (sites, gaps) = for_library(&library, Extras::default());
            println!("{}: {:?}", plugin.display(), start.elapsed());
            assert_eq!((sites.len(), gaps.len()), (1, 0), "{gaps:?}");
            sites
        };
        let first = look();
        let used = peak_memory().saturating_sub(before);
        assert!(used < 64 << 20, "{used} bytes");
        let remembered: Vec<PathBuf> = fs::read_dir(cache.path().join("cudatrace/symbols"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(!remembered.is_empty());
        assert_eq!(look(), first);
        // Whatever is remembered wrongly is noticed, and looked for again.
        for path in &remembered {
            let text = fs::read_to_string(path).unwrap();
            let wrong: String = text
                .lines()
                .filter_map(|line| line.split_once(' '))
                .map(|(_, name)| format!("17 {name}\n"))
                .collect();
            fs::write(path, wrong).unwrap();
        }
        assert_eq!(look(), first);
        remembered.iter().for_each(|path| fs::remove_file(path).unwrap());
    }
}
