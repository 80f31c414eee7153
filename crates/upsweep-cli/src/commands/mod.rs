//! The subcommands: each checks its arguments, asks the library or the gate, and makes a report.

pub mod bench;
pub mod checklist;
pub mod compare;
pub mod doctor;
pub mod explain;
pub mod ladder;
pub mod list;
pub mod review;
pub mod run;
pub mod shell;
pub mod verify;

mod rows;
#[cfg(feature = "sim")]
mod simulated;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};
use upsweep_gate::record::Record;
use upsweep_gate::verify::{Context, Progress};

/// Runs a piece of code with the operation of a name as a type; the name was checked when the arguments were read.
macro_rules! of_op {
    ($name:expr, $op:ident => $body:expr) => {
        upsweep::with_op!($name, $op => $body).ok_or_else(|| crate::failure::Failure::Usage(format!("unknown operation `{}`", $name)))?
    };
}
pub(crate) use of_op;

/// Refuses an operator that an operation does not have.
pub(crate) fn known_operator<O: upsweep_gate::judged::Judged>(operator: Option<&str>) -> anyhow::Result<()> {
    check_operator::<O>(operator, |name| O::operators().contains(&name))
}

/// Refuses what cannot be timed.
pub(crate) fn timed_operator<O: upsweep_gate::judged::Judged>(operator: Option<&str>) -> anyhow::Result<()> {
    check_operator::<O>(operator, O::can_be_timed)
}

fn check_operator<O: upsweep_gate::judged::Judged>(operator: Option<&str>, knows: fn(&str) -> bool) -> anyhow::Result<()> {
    match operator {
        Some(name) if !knows(name) => Err(crate::failure::Failure::Usage(format!(
            "`{name}` is not an operator of {}; allowed are {}",
            O::NAME,
            O::operators().join(", ")
        ))
        .into()),
        _ => Ok(()),
    }
}

/// The answer to a command that times, where there is no time.
pub(crate) fn no_time(command: &str) -> anyhow::Error {
    crate::failure::Failure::Usage(format!(
        "`{command}` times, and the simulator has no time; allowed there are verify, ladder, explain and run"
    ))
    .into()
}

/// A remark for people, on standard error. Standard error may be closed: then nobody reads it.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The seed that was asked for, or a fresh one. Either way it is printed with the result.
pub(crate) fn seed(asked: Option<u64>) -> u64 {
    // The standard library's hash keys are fresh random bits in every process. 53 bits survive JSON readers that hold
    // numbers as f64.
    asked.unwrap_or_else(|| RandomState::new().hash_one("seed") >> 11)
}

/// What records say of this run.
pub(crate) fn context() -> Context {
    // Where files lie is no part of what was measured.
    let without_folder = |word: String| match Path::new(&word).file_name() {
        Some(name) if Path::new(&word).exists() || word.starts_with(['.', '/']) => name.to_string_lossy().into_owned(),
        _ => word,
    };
    let words: Vec<String> = std::env::args().skip(1).map(without_folder).collect();
    Context { command: format!("upsweep {}", words.join(" ")), commit: crate::build::COMMIT.into() }
}

/// How often a log hears how far a run is.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// How far a run is, on standard error: a bar on a terminal, elsewhere a line now and then.
pub(crate) struct Bar {
    bar: ProgressBar,
    start: Instant,
    logged: Cell<Duration>,
}

impl Bar {
    pub(crate) fn new() -> Bar {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Bar { bar, start: Instant::now(), logged: Cell::default() }
    }

    pub(crate) fn show(&self, progress: Progress) {
        if self.bar.is_hidden() {
            let elapsed = self.start.elapsed();
            if elapsed - self.logged.get() >= LOG_EVERY {
                self.logged.set(elapsed);
                note(&format!("{}/{} after {} s: {}", progress.done, progress.total, elapsed.as_secs(), progress.what));
            }
            return;
        }
        self.bar.set_length(progress.total);
        self.bar.set_position(progress.done);
        self.bar.set_message(progress.what);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A record as JSON.
pub(crate) fn record_json(record: &Record) -> anyhow::Result<serde_json::Value> {
    Ok(serde_json::to_value(record)?)
}

/// The committed records that are of this schema; others are left out (an older page of the same book).
pub(crate) fn committed_records() -> impl Iterator<Item = (&'static str, Record)> {
    crate::build::RECORDS.iter().filter_map(|(path, text)| Record::from_json(text, path).ok().map(|record| (*path, record)))
}
