//! Which frame is the user's own line.

use super::{cell_file::CellFile, snapshot::Frame};

/// Whether a file is the user's own code: a notebook cell, a script or a module of theirs, not an
/// installed package, the standard library, or the notebook's machinery.
pub fn is_user_file(file: &str) -> bool {
    if CellFile::of(file).is_some() {
        return true;
    }
    let installed = ["/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3"];
    // Also where they are not installed but run from their sources.
    let notebook = |part: &str| matches!(part, "IPython" | "ipykernel" | "ipykernel_launcher.py");
    // numpy and decorator generate code under names like these.
    let generated = ["<frozen", "<decorator-gen-", "<__array_function__"];
    !(installed.iter().any(|part| file.contains(part))
        || generated.iter().any(|start| file.starts_with(start))
        || file.split('/').any(notebook)
        || file == "?")
}

/// Whether a frame is of the user's own code.
pub fn is_user(frame: &Frame) -> bool {
    frame.cell.is_some() || frame.cell_seen.is_some() || is_user_file(&frame.file)
}

/// The innermost frame of the user's own code.
pub fn user_frame(frames: &[Frame]) -> Option<&Frame> {
    user_position(frames).and_then(|position| frames.get(position))
}

/// Where it is. Code that `exec` was given has no line to look at: a frame of it only if there is no other.
pub fn user_position(frames: &[Frame]) -> Option<usize> {
    let is_own = |frame: &Frame| is_user(frame) && frame.file != "<string>";
    frames.iter().position(is_own).or_else(|| frames.iter().position(is_user))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_code_is_not_the_users() {
        assert!(is_user_file("/home/me/train.py"));
        assert!(is_user_file("<string>"));
        assert!(is_user_file("/tmp/ipykernel_1/2.py"));
        assert!(!is_user_file("/opt/env/lib/python3.11/site-packages/torch/nn/modules/linear.py"));
        assert!(!is_user_file("/usr/lib/python3.11/threading.py"));
        for file in [
            "<frozen runpy>",
            "<decorator-gen-53>",
            "/src/ipython/IPython/core/interactiveshell.py",
            "/src/ipykernel/ipykernel/zmqshell.py",
            "/src/ipykernel_launcher.py",
            "?",
        ] {
            assert!(!is_user_file(file), "{file}");
        }
        assert!(is_user_file("/home/me/ipykernel_notes/train.py"));
        // A temporary folder may lie anywhere.
        assert!(is_user_file("/usr/lib/python3/dist-packages/tmp/ipykernel_1/2.py"));
    }
}
