//! `cargo xtask test`: the steps of CI, one after the other; a failed one does not hide those after it.

use crate::{kernels, licences, links, paths, tables, tiles};
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

type Step = (&'static str, fn() -> Result<()>);

const STEPS: &[Step] = &[
    ("format", || cargo(&["fmt", "--all", "--check"])),
    ("clippy: the workspace", || clippy(&["--workspace"])),
    ("clippy: upsweep without features", || clippy(&["-p", "upsweep", "--no-default-features"])),
    ("clippy: upsweep, CPU only", || clippy(&["-p", "upsweep", "--no-default-features", "--features", "cpu"])),
    ("clippy: the command without CUDA", || clippy(&["-p", "upsweep-cli", "--no-default-features", "--features", "sim"])),
    ("clippy: upsweep, CUDA only", || clippy(&["-p", "upsweep", "--no-default-features", "--features", "cuda"])),
    ("tests", tests),
    ("the CUDA rungs on the simulator", simulated),
    ("documentation", documentation),
    ("packages", packages),
    ("example: candle", candle),
    ("licences of dependencies", licences::check),
    ("kernels", || kernels::run(&kernels::Options::default())),
    ("tile kernels", tiles::check),
    ("generated tables", tables::check),
    ("links in the documents", links::check),
];

/// Runs every step, prints what became of each, and fails if one failed.
pub(crate) fn test() -> Result<()> {
    let mut outcomes = Vec::new();
    for (position, (name, step)) in STEPS.iter().enumerate() {
        println!("\n=== {}/{} {name}", position + 1, STEPS.len());
        let start = Instant::now();
        let outcome = step();
        if let Err(error) = &outcome {
            println!("FAILED: {error:#}");
        }
        outcomes.push((*name, outcome.is_ok(), start.elapsed()));
    }
    println!("\n=== summary");
    for (name, passed, time) in &outcomes {
        println!("{:>7.1} s  {}  {name}", time.as_secs_f64(), if *passed { "ok    " } else { "FAILED" });
    }
    let failed = outcomes.iter().filter(|(_, passed, _)| !passed).count();
    println!("{} passed, {failed} failed", outcomes.len() - failed);
    if failed > 0 {
        bail!("{failed} of {} steps failed", outcomes.len());
    }
    Ok(())
}

/// A cargo command in the workspace, with the toolchain that runs us.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(paths::root());
    // What `cargo run` sets for this program is not meant for the commands below it.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name.as_ref());
        }
    }
    command
}

fn finish(mut command: Command, arguments: &[&str]) -> Result<()> {
    let status = command.status().context("cargo did not start")?;
    if !status.success() {
        bail!("`cargo {}`: {status}", arguments.join(" "));
    }
    Ok(())
}

fn cargo(arguments: &[&str]) -> Result<()> {
    finish(command(arguments), arguments)
}

fn clippy(selection: &[&str]) -> Result<()> {
    let arguments: Vec<&str> = [&["clippy", "--quiet", "--all-targets"], selection, &["--", "-D", "warnings"]].concat();
    cargo(&arguments)
}

/// Tests of one `test result:` line: passed, failed, ignored.
fn counts(line: &str) -> Option<[u64; 3]> {
    let rest = line.strip_prefix("test result: ")?;
    let count = |word: &str| rest.split([';', '.']).find_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok());
    Some([count("passed")?, count("failed")?, count("ignored")?])
}

fn tests() -> Result<()> {
    let arguments = ["test", "--workspace", "--no-fail-fast"];
    let mut child = command(&arguments).stdout(Stdio::piped()).spawn().context("cargo did not start")?;
    let output = child.stdout.take().context("no output of cargo test")?;
    let mut total = [0u64; 3];
    for line in BufReader::new(output).lines() {
        let line = line?;
        if let Some(counted) = counts(&line) {
            total = std::array::from_fn(|i| total[i] + counted[i]);
        }
        println!("{line}");
    }
    let status = child.wait()?;
    println!("tests of the workspace: {} ran and were right, {} were wrong, {} ignored", total[0], total[1], total[2]);
    if !status.success() {
        bail!("`cargo {}`: {status}", arguments.join(" "));
    }
    if total[0] == 0 {
        bail!("no test ran");
    }
    Ok(())
}

/// In the profile of the tests, which has built everything already.
fn simulated() -> Result<()> {
    let command = ["run", "--quiet", "--profile", "test", "-p", "upsweep-cli", "--bin", "upsweep", "--"];
    cargo(&[&command[..], &["verify", "--device", "sim", "--cases", "quick", "--seed", "1"]].concat())
}

/// The library, and those above it, as cargo is told of them.
const LIBRARIES: [&str; 6] = ["-p", "upsweep", "-p", "upsweep-sim", "-p", "upsweep-gate"];

fn documentation() -> Result<()> {
    // The binary has the library's name, so their pages would overwrite each other: libraries, then nothing else.
    let arguments = [&["doc", "--quiet", "--no-deps", "--lib"], &LIBRARIES[..], &["--features", "upsweep/cuda"]].concat();
    let mut command = command(&arguments);
    command.env("RUSTDOCFLAGS", "-D warnings");
    finish(command, &arguments)
}

/// The example is a workspace of its own, so that candle is nobody else's dependency.
fn candle() -> Result<()> {
    const MANIFEST: &str = "examples/candle/Cargo.toml";
    cargo(&["fmt", "--check", "--manifest-path", MANIFEST])?;
    let target = paths::target().join("candle");
    let target = target.to_str().context("the target folder's name is no UTF-8")?;
    let common = ["--quiet", "--locked", "--manifest-path", MANIFEST, "--target-dir", target];
    cargo(&[&["clippy", "--all-targets"], &common[..], &["--", "-D", "warnings"]].concat())?;
    cargo(&[&["test"], &common[..]].concat())
}

fn packages() -> Result<()> {
    // `upsweep` is also built from its package. The three above it are packaged in the same call, so that their
    // dependency on the version in this tree resolves; their build would repeat what clippy and the tests did.
    cargo(&["package", "--quiet", "--allow-dirty", "-p", "upsweep"])?;
    let all = [&["package", "--quiet", "--allow-dirty", "--no-verify"], &LIBRARIES[..], &["-p", "upsweep-cli"]].concat();
    cargo(&all)?;
    let mut made: Vec<String> = std::fs::read_dir(paths::target().join("package"))?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".crate"))
        .collect();
    made.sort();
    println!("packages: {}", made.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::counts;

    #[test]
    fn result_lines_are_counted() {
        let line = "test result: ok. 12 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(counts(line), Some([12, 1, 3]));
        assert_eq!(counts("test result: FAILED. 0 passed; 2 failed; 0 ignored; 0 measured"), Some([0, 2, 0]));
        assert_eq!(counts("test tests::x ... ok"), None);
        assert_eq!(counts("test result: nonsense"), None);
    }
}
