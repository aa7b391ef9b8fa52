//! Which frame is the user's own line.

use crate::model::Frame;

/// Whether a file is the user's own code: a notebook cell, a script or a module of theirs, not an
/// installed package, the standard library, or the notebook's machinery.
pub fn is_user_file(file: &str) -> bool {
    if cell_of_file(file).is_some() {
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
pub(super) fn is_user(frame: &Frame) -> bool {
    frame.cell.is_some() || is_user_file(&frame.file)
}

/// The innermost frame of the user's own code.
pub(super) fn user_frame(frames: &[Frame]) -> Option<&Frame> {
    frames.iter().find(|frame| is_user(frame))
}

/// The name of the notebook cell that a file name stands for: the hash of its source from
/// ipykernel 6 on, `In[n]` before.
pub(super) fn cell_of_file(file: &str) -> Option<String> {
    if let Some(rest) = file.strip_prefix("<ipython-input-") {
        let number = rest.split('-').next()?;
        return number.parse::<u32>().ok().map(|number| format!("In[{number}]"));
    }
    let mut parts = file.rsplit('/');
    let hash = parts.next()?.strip_suffix(".py")?;
    let pid = parts.next()?.strip_prefix("ipykernel_")?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(hash) && digits(pid)).then(|| format!("cell {hash}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_by_file_name() {
        for (file, cell) in [
            ("/tmp/ipykernel_4242/3409123.py", Some("cell 3409123")),
            ("<ipython-input-7-0123456789ab>", Some("In[7]")),
            ("/home/me/ipykernel_notes/1.py", None),
            ("/tmp/ipykernel_4242/helper.py", None),
            ("train.py", None),
        ] {
            assert_eq!(cell_of_file(file).as_deref(), cell, "{file}");
        }
    }

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
