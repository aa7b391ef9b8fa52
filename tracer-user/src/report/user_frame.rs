//! Which frame is the user's own line.

use crate::model::Frame;

/// Whether a file is the user's own code: a notebook cell, a script or a module of theirs, not an
/// installed package, the standard library, or the notebook's machinery.
pub fn is_user_file(file: &str) -> bool {
    if cell_of_file(file).is_some() {
        return true;
    }
    let installed = ["/site-packages/", "/dist-packages/", "/lib/python3"];
    !(installed.iter().any(|part| file.contains(part))
        || file.starts_with("<frozen")
        || file == "?")
}

/// The innermost frame of the user's own code.
pub(super) fn user_frame(frames: &[Frame]) -> Option<&Frame> {
    frames.iter().find(|frame| is_user_file(&frame.file))
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
        assert!(!is_user_file("<frozen runpy>"));
    }
}
