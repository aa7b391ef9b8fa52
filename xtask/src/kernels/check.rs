//! What the emulated machine printed, and whether the report is the simulator's count.

use std::{collections::BTreeMap, fmt, fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// A run that passed.
#[derive(Debug)]
pub struct Outcome {
    /// Seconds until the first process ran.
    pub booted_s: f64,
    /// Instructions that the verifier went through, by program; kernels before 5.16 do not tell.
    pub programs: BTreeMap<String, Option<u64>>,
    live_bytes: u64,
    /// Without the kernel's own type information there are no Python stacks, by design.
    stacks: bool,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ok: {} bytes, exact", self.live_bytes)?;
        if !self.stacks {
            write!(f, "; no BTF, so no Python stacks")?;
        }
        Ok(())
    }
}

/// Checks the console of a machine that ran `init.sh`.
///
/// # Errors
///
/// What differs from the simulator's count, or why there is no report.
pub fn check(console: &Path) -> Result<Outcome> {
    let bytes = fs::read(console).with_context(|| format!("no `{}`", console.display()))?;
    check_text(&String::from_utf8_lossy(&bytes).replace('\r', ""))
}

fn check_text(text: &str) -> Result<Outcome> {
    let booted_s = said(text, "booted").context("it did not boot")?.parse()?;
    let stacks = said(text, "btf").context("the console was cut off")? == "true";
    let python = section(text, "python").context("the console was cut off")?;
    if !python.contains("\"ready\"") {
        bail!("Python did not start: {}", last_line(python));
    }
    let messages = section(text, "messages").context("the console was cut off")?;
    let exit = said(text, "exit").context("the console was cut off")?;
    ensure!(exit == "0", "cudatrace ended with {exit}: {}", reason(messages));

    let count = python
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find(|line| line["done"] == true)
        .with_context(|| format!("the workload failed: {}", last_line(python)))?;
    let report = section(text, "report").context("the console was cut off")?;
    let report: Value = serde_json::from_str(report).context("the report is not JSON")?;
    compare(&report, &count, stacks)?;
    let programs: BTreeMap<String, Option<u64>> = messages.lines().filter_map(program).collect();
    ensure!(!programs.is_empty(), "no program was loaded");
    Ok(Outcome {
        booted_s,
        programs,
        live_bytes: count["live_bytes"].as_u64().unwrap_or_default(),
        stacks,
    })
}

/// The report says what the simulator counted, to the byte.
fn compare(report: &Value, count: &Value, stacks: bool) -> Result<()> {
    let tracer = &report["tracer"];
    ensure!(tracer["exact"] == true, "the report is not exact: {tracer}");
    ensure!(tracer["dropped"] == 0, "records were dropped: {tracer}");
    let process = &report["processes"][0];
    let sites: Vec<&Value> = process["sites"]
        .as_array()
        .context("the report has no sites")?
        .iter()
        .filter(|site| site["level"] == "driver")
        .collect();
    for field in ["live_bytes", "live_blocks"] {
        let found: u64 = sites.iter().filter_map(|site| site[field].as_u64()).sum();
        let counted = count[field].as_u64().context("the simulator did not count")?;
        ensure!(found == counted, "{field}: reported {found}, the simulator counts {counted}");
    }
    let failures = process["failures"].as_array().map_or(0, Vec::len) as u64;
    ensure!(
        count["failed"] == failures,
        "reported {failures} failures, the simulator counts {}",
        count["failed"]
    );
    if stacks {
        let frame = &sites.first().context("the report has no site")?["frames"][0];
        ensure!(
            frame["function"] == "keep" && frame["line"] == count["line"],
            "the first frame is {frame}, not line {} of keep()",
            count["line"]
        );
        ensure!(sites.len() == 2, "{} sites, not the two lines that call keep()", sites.len());
    }
    Ok(())
}

/// Name and size of a program, from what cudatrace logs when it has loaded it.
fn program(line: &str) -> Option<(String, Option<u64>)> {
    let (_, rest) = line.split_once("program ")?;
    let (name, rest) = rest.split_once(": ")?;
    let verified: u64 = rest.strip_suffix(" instructions verified")?.parse().ok()?;
    Some((name.to_owned(), Some(verified).filter(|&count| count > 0)))
}

/// What follows a word that `init.sh` said.
fn said<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let start = format!("==cudatrace {word} ");
    // The firmware's last line may not have ended.
    text.lines().find_map(|line| Some(line.split_once(&start)?.1.trim()))
}

/// A file that `init.sh` showed.
fn section<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("==cudatrace begin {name}\n"))?;
    Some(rest.split_once(&format!("==cudatrace end {name}\n"))?.0.trim())
}

/// Why cudatrace failed: what it says, and of the verifier's log only the verdict at its end.
fn reason(messages: &str) -> String {
    let first = messages.lines().find_map(|line| line.strip_prefix("cudatrace: "));
    let first = first.or_else(|| messages.lines().next()).unwrap_or("(nothing was said)");
    let is_end =
        |line: &str| line.starts_with("verification time") || line.starts_with("processed");
    let verdict = messages.lines().zip(messages.lines().skip(1)).find(|(_, next)| is_end(next));
    match verdict {
        Some((verdict, _)) => {
            let said = first.split(';').next().unwrap_or(first);
            let verdict = verdict.rsplit("Verifier output: ").next().unwrap_or(verdict);
            format!("{said}: {verdict}")
        }
        None => first.to_owned(),
    }
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or("(nothing was said)")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn console(live: u64, exit: &str) -> String {
        let frame = |line| json!([{ "function": "keep", "line": line }]);
        let site = |bytes: u64, blocks: u64| json!({ "level": "driver", "live_bytes": bytes, "live_blocks": blocks, "frames": frame(7) });
        let report = json!({
            "tracer": { "exact": true, "dropped": 0 },
            "processes": [{ "sites": [site(live, 2), site(10, 1)], "failures": [{}] }],
        });
        format!(
            "junk==cudatrace booted 2.5\n==cudatrace btf true\n\
             ==cudatrace exit {exit}\n\
             ==cudatrace begin python\n{{\"ready\": true}}\n{}\n==cudatrace end python\n\
             ==cudatrace begin messages\n\
             DEBUG tracer_user::bpf: program hook: 70 instructions verified\n\
             DEBUG tracer_user::bpf: program old: 0 instructions verified\n\
             cudatrace: no luck\nverifier\n==cudatrace end messages\n\
             ==cudatrace begin report\n{report}\n==cudatrace end report\n",
            json!({ "done": true, "live_bytes": 110, "live_blocks": 3, "failed": 1, "line": 7 })
        )
    }

    #[test]
    fn a_report_that_agrees_passes() {
        let outcome = check_text(&console(100, "0")).unwrap();
        let programs: Vec<_> = outcome.programs.iter().map(|(n, count)| (&**n, *count)).collect();
        assert_eq!(programs, [("hook", Some(70)), ("old", None)]);
        assert_eq!(outcome.to_string(), "ok: 110 bytes, exact");
    }

    #[test]
    fn a_byte_too_many_fails() {
        let error = check_text(&console(101, "0")).unwrap_err().to_string();
        assert_eq!(error, "live_bytes: reported 111, the simulator counts 110");
    }

    #[test]
    fn the_reason_of_a_failure_is_the_tracers_first_line() {
        let error = check_text(&console(100, "3")).unwrap_err().to_string();
        assert_eq!(error, "cudatrace ended with 3: no luck");
        let refused = "cudatrace: kernel 6 refused the program `p`; please report it: Verifier \
                       output: reg\n1: (85) call\nR2 unbounded\nprocessed 2 insns";
        assert_eq!(reason(refused), "kernel 6 refused the program `p`: R2 unbounded");
        let at_once = "cudatrace: refused; Verifier output: reserved fields\nverification time 1";
        assert_eq!(reason(at_once), "refused: reserved fields");
        assert!(check_text("").unwrap_err().to_string().contains("did not boot"));
    }
}
