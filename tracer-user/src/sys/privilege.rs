//! May this process load BPF programs and look into others?

use std::fs;

use thiserror::Error;

/// Capabilities that tracing needs: name, number, and what for.
const NEEDED: [(&str, u32, &str); 3] = [
    ("CAP_SYS_ADMIN or CAP_BPF", 39, "load BPF programs"),
    ("CAP_SYS_ADMIN or CAP_PERFMON", 38, "attach uprobes"),
    ("CAP_SYS_PTRACE", PTRACE, "read the memory maps of other users' processes"),
];
const SYS_ADMIN: u32 = 21;
const PTRACE: u32 = 19;

/// Not allowed to trace.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("missing {missing}: run `sudo {command}`{container}")]
pub struct PrivilegeError {
    /// What is missing, and for what.
    pub missing: String,
    command: String,
    container: &'static str,
}

/// Checks the effective capabilities.
///
/// # Errors
///
/// Names every missing capability, what it is for, and the command that helps.
pub fn check(command: &[String]) -> Result<(), PrivilegeError> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uid = rustix::process::geteuid().as_raw();
    check_status(&status, uid, command)
}

fn check_status(status: &str, uid: u32, command: &[String]) -> Result<(), PrivilegeError> {
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map_or("", str::trim);
    let effective = u64::from_str_radix(field("CapEff:"), 16).unwrap_or(0);
    let has = |bit: u32| effective >> bit & 1 == 1;
    let missing: Vec<String> = NEEDED
        .iter()
        .filter(|(_, bit, _)| !(has(*bit) || (*bit != PTRACE && has(SYS_ADMIN))))
        .map(|(name, _, purpose)| format!("{name} (to {purpose})"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let container = if uid == 0 {
        "; as root in a container, start the container with these capabilities (Docker: \
         `--privileged --pid=host`)"
    } else {
        ""
    };
    Err(PrivilegeError { missing: missing.join(", "), command: shell_words(command), container })
}

/// The command line as it can be typed again.
fn shell_words(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    let quoted = words.iter().map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn an_ordinary_user_is_told_what_is_missing_and_what_to_type() {
        let error = check_status("CapEff:\t0000000000000000\n", 1000, &words("cudatrace --pid 12"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("CAP_BPF"), "{error}");
        assert!(error.ends_with("run `sudo cudatrace --pid 12`"), "{error}");
    }

    #[test]
    fn root_in_a_container_is_told_about_the_container() {
        let error = check_status("CapEff:\t00000000a80425fb\n", 0, &words("cudatrace"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("--pid=host"), "{error}");
    }

    #[test]
    fn full_root_and_root_without_sys_resource_may_trace() {
        assert_eq!(check_status("CapEff:\t000001ffffffffff\n", 0, &[]), Ok(()));
        assert_eq!(check_status("CapEff:\t000001fffeffffff\n", 0, &[]), Ok(()));
    }

    #[test]
    fn words_are_quoted_where_a_shell_needs_it() {
        assert_eq!(
            shell_words(&["a b".into(), "it's".into(), "x=1".into()]),
            r"'a b' 'it'\''s' x=1"
        );
    }
}
