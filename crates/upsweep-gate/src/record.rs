//! Records: what a run found, as versioned JSON in SI base units (seconds, bytes, bytes per second).
//!
//! Everything the command prints is in its record, so a table can be made again without the device.

use crate::counted::Counted;
use crate::findings::Findings;
use crate::goals::Figure;
use crate::points::Point;
use crate::statistics::Spread;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use upsweep::flow::NOT_SIMULATED;

/// The schema's version. A reader refuses any other.
pub const SCHEMA: u32 = 1;

/// What sort of run a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Cases against the oracle, and the wrong kernels.
    Verify,
    /// Every rung at one size.
    Ladder,
    /// The planner's choice over sizes and shapes.
    Bench,
    /// The planner's choice over the whole list of shapes.
    Shapes,
    /// The planner's choice for problems that have figures to meet.
    Goals,
    /// The document's nine boxes.
    Checklist,
    /// Other libraries beside ours.
    Peers,
    /// What the simulator counted of every rung at one size.
    Counted,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What sort of run.
    pub kind: Kind,
    /// The operation, for instance `reduce`.
    pub op: String,
    /// The command line.
    pub command: String,
    /// The commit that was measured.
    pub commit: String,
    /// The seed that every datum follows from.
    pub seed: u64,
    /// The machine.
    pub host: Host,
    /// The device.
    pub device: Device,
    /// The device's stated memory bandwidth, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<Peak>,
    /// Ceilings measured in this run.
    #[serde(default)]
    pub ceilings: Vec<Ceiling>,
    /// Why the run's figures must not be used (a ceiling too low, for instance). Empty: they may.
    #[serde(default)]
    pub invalid: Vec<String>,
    /// Timed rows.
    #[serde(default)]
    pub rows: Vec<Row>,
    /// What stands out among the points of the list of shapes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub findings: Option<Findings>,
    /// Counts of cases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifySummary>,
    /// Each rung's counts.
    #[serde(default)]
    pub rungs: Vec<RungSummary>,
    /// The wrong kernels and what caught them.
    #[serde(default)]
    pub wrong_kernels: Vec<WrongKernel>,
    /// The document's boxes.
    #[serde(default)]
    pub boxes: Vec<ChecklistBox>,
    /// What the simulator counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counted: Vec<Counted>,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Processor name.
    pub name: String,
    /// Threads that run kernels.
    pub cores: u64,
}

/// The device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// `cpu` or `cuda`.
    pub kind: String,
    /// Device name.
    pub name: String,
    /// Driver version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// CUDA version the driver supports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<String>,
    /// NVRTC version that compiled the kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvrtc: Option<String>,
    /// Compute capability, or the vector instructions in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<String>,
    /// Multiprocessor clock while measuring, in hertz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_hertz: Option<f64>,
    /// Memory clock while measuring, in hertz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_clock_hertz: Option<f64>,
    /// Why clocks were lowered, if they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttle: Option<String>,
    /// Last-level cache in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_bytes: Option<u64>,
}

/// A stated memory bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peak {
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Where the figure is from.
    pub source: String,
}

/// What moves through memory: decides which ceiling a figure stands beside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Traffic {
    /// Next to nothing is written.
    #[default]
    Read,
    /// As much is written as is read.
    Copy,
}

impl Traffic {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Traffic::Read => "read",
            Traffic::Copy => "copy",
        }
    }
}

/// A measured ceiling: the best plain read, or copy, at this number of bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// The kernel's name.
    pub name: String,
    /// What it moves.
    #[serde(default)]
    pub traffic: Traffic,
    /// Bytes it moved, reads and writes together.
    pub bytes: u64,
    /// Median seconds.
    pub seconds: f64,
    /// Shortest.
    pub seconds_min: f64,
    /// `bytes / seconds`.
    pub bytes_per_second: f64,
}

/// The least time that the device needs for a problem, measured in the same run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Least {
    /// For moving the problem's bytes: its bytes over the ceiling at that number of bytes.
    pub ceiling_seconds: f64,
    /// For a launch: a plain kernel on a single word, timed as the row is where that is of few elements.
    pub launch_seconds: f64,
}

impl Least {
    /// The larger of the two.
    pub fn seconds(self) -> f64 {
        self.ceiling_seconds.max(self.launch_seconds)
    }
}

/// Seconds that the host spends on a call, whatever the device then does: batches of calls that fit the driver's queue, the
/// two kinds by turns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostCost {
    /// Calls of a batch; a sample is a batch over that.
    pub calls: u64,
    /// Of enqueueing a prepared plan.
    pub enqueue: Spread,
    /// Of the driver's own call on the same kernels with the same arguments.
    pub raw_launch: Spread,
}

/// One timed (or refused) row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The operation.
    pub op: String,
    /// `number-name` of the rung.
    pub rung: String,
    /// `cpu` or `cuda`.
    pub device: String,
    /// The operator.
    pub operator: String,
    /// The input's dtype.
    pub dtype: String,
    /// Input elements.
    pub n: u64,
    /// The shape, `n` or `rows x columns`, and which axis is reduced.
    pub shape: String,
    /// The shape for programs, of our own rows of a benchmark; other libraries' rows have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<Point>,
    /// What the problem moves.
    #[serde(default)]
    pub traffic: Traffic,
    /// Threads of a block, where the device has blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<u32>,
    /// The result was verified in this run. A row that is not has no time.
    pub verified: bool,
    /// Largest error that was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// The bound it was held to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<f64>,
    /// Whether the document's flat relative tolerance of 1e-4 holds too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtol_1e4_met: Option<bool>,
    /// Runs gave the same bits (only where it was checked).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deterministic: Option<bool>,
    /// Median seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Shortest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_min: Option<f64>,
    /// 10th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_p10: Option<f64>,
    /// 90th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_p90: Option<f64>,
    /// Timed calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<u64>,
    /// The least bytes any implementation moves.
    pub bytes: u64,
    /// `bytes / seconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<f64>,
    /// Of [`Record::peak`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent_of_peak: Option<f64>,
    /// Of the ceiling at the same number of bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent_of_ceiling: Option<f64>,
    /// What the row's time should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<Figure>,
    /// What the device needs at least, of the rows that have a point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least: Option<Least>,
    /// The median over that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times_least: Option<f64>,
    /// Against the first rung's median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speedup: Option<f64>,
    /// Median seconds of the first kernel alone, for rungs of several passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_pass_seconds: Option<f64>,
    /// Median seconds a call of the eager (not replayed) form, below the size at which replays are timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eager_seconds: Option<f64>,
    /// What the host spends on a call, below the size at which replays are timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostCost>,
    /// Kernel launches of one call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launches: Option<u64>,
    /// `cache-resident`, `launch-bound`, `not deterministic`, ...
    #[serde(default)]
    pub marks: Vec<String>,
    /// Why there is no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// Counts of cases.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VerifySummary {
    /// `quick`, `full` or `huge`.
    pub level: String,
    /// Cases asked.
    pub cases: u64,
    /// Right.
    pub passed: u64,
    /// Wrong.
    pub failed: u64,
    /// Not claimed, by reason.
    pub skipped: BTreeMap<String, u64>,
}

/// One rung's counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RungSummary {
    /// `number-name`.
    pub rung: String,
    /// `passed`, `failed`, `unverified` (no case was for it), `not claimed` (nor is the operator or dtype asked for),
    /// or `not simulated` (it uses what the simulator has not).
    pub verdict: String,
    /// Right.
    pub passed: u64,
    /// Wrong.
    pub failed: u64,
    /// Not claimed, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// The first failures, in words.
    #[serde(default)]
    pub failures: Vec<String>,
    /// Largest error as a part of its bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst_error_over_bound: Option<f64>,
    /// Repeated runs gave the same bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deterministic: Option<bool>,
}

impl RungSummary {
    /// It passed, or is not for what was asked.
    pub fn is_right(&self) -> bool {
        matches!(self.verdict.as_str(), "passed" | "not claimed" | NOT_SIMULATED)
    }
}

/// A wrong kernel and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WrongKernel {
    /// Its name.
    pub name: String,
    /// The fault it has.
    pub fault: String,
    /// The gate refused it, as it must.
    pub rejected: bool,
    /// It was not run: the device has no form of this fault, and need not have one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    /// The first case that refused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl WrongKernel {
    /// What became of it, in a word for tables; `PASSED` is the gate's failure.
    pub fn verdict(&self) -> &'static str {
        match (self.rejected, self.skipped) {
            (true, _) => "rejected",
            (false, true) => "skipped",
            (false, false) => "PASSED",
        }
    }
}

/// One of the document's boxes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChecklistBox {
    /// 1 to 9.
    pub number: u32,
    /// What it asks.
    pub text: String,
    /// Met, not met, or (`None`) not built yet.
    pub met: Option<bool>,
    /// Why we say so.
    pub evidence: String,
}

/// Why a record cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// It is not JSON, or not a record.
    #[error("{origin} is not a record: {why}")]
    Malformed {
        /// The file, or `record`.
        origin: String,
        /// The parser's words.
        why: String,
    },
    /// It is of another schema.
    #[error("{origin} has schema {got}, this version reads schema {SCHEMA}")]
    UnknownSchema {
        /// The file, or `record`.
        origin: String,
        /// What came.
        got: String,
    },
    /// The file cannot be read or written.
    #[error("{path}: {why}")]
    File {
        /// The file.
        path: String,
        /// The system's words.
        why: String,
    },
}

impl Record {
    /// Reads a record from JSON text; `origin` names it in errors.
    ///
    /// # Errors
    /// [`RecordError::Malformed`], [`RecordError::UnknownSchema`].
    pub fn from_json(text: &str, origin: &str) -> Result<Record, RecordError> {
        let malformed = |why: String| RecordError::Malformed { origin: origin.into(), why };
        let value: serde_json::Value = serde_json::from_str(text).map_err(|e| malformed(e.to_string()))?;
        // The version first: a newer schema may differ in anything else.
        match value.get("schema") {
            None => return Err(malformed("it has no `schema`".into())),
            Some(schema) if schema.as_u64() != Some(SCHEMA.into()) => {
                return Err(RecordError::UnknownSchema { origin: origin.into(), got: schema.to_string() });
            }
            Some(_) => {}
        }
        serde_json::from_value(value).map_err(|e| malformed(e.to_string()))
    }

    /// JSON text, ending in a newline.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_else(|e| unreachable!("a record is plain data: {e}"));
        text.push('\n');
        text
    }

    /// Reads a record's file.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn read(path: &Path) -> Result<Record, RecordError> {
        let text = std::fs::read_to_string(path).map_err(|e| file_error(path, &e))?;
        Record::from_json(&text, &path.display().to_string())
    }

    /// Writes a record's file: it appears whole or not at all.
    ///
    /// # Errors
    /// [`RecordError::File`].
    pub fn write(&self, path: &Path) -> Result<(), RecordError> {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.part", std::process::id()));
        let partial: PathBuf = path.with_file_name(name);
        let written = std::fs::write(&partial, self.to_json()).and_then(|()| std::fs::rename(&partial, path));
        written.map_err(|e| {
            // The first error is the one to report; a partial file that cannot be removed either is harmless.
            let _ = std::fs::remove_file(&partial);
            file_error(path, &e)
        })
    }
}

fn file_error(path: &Path, error: &std::io::Error) -> RecordError {
    RecordError::File { path: path.display().to_string(), why: error.to_string() }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample(rows: Vec<Row>) -> Record {
        Record {
            schema: SCHEMA,
            kind: Kind::Ladder,
            op: "reduce".into(),
            command: "upsweep ladder reduce".into(),
            commit: "0123abc".into(),
            seed: 7,
            host: Host { name: "host".into(), cores: 2 },
            device: Device { kind: "cpu".into(), name: "host".into(), ..Device::default() },
            peak: None,
            ceilings: vec![],
            invalid: vec![],
            rows,
            findings: None,
            verify: None,
            rungs: vec![],
            wrong_kernels: vec![],
            boxes: vec![],
            counted: vec![],
        }
    }

    #[test]
    fn a_record_survives_the_round_trip() {
        let row = Row { op: "reduce".into(), rung: "3-threads".into(), seconds: Some(0.25), verified: true, ..Row::default() };
        let record = sample(vec![row]);
        assert_eq!(Record::from_json(&record.to_json(), "record").unwrap(), record);
    }

    #[test]
    fn wrong_records_are_typed_errors() {
        let text = sample(vec![]).to_json();
        let newer = text.replace("\"schema\": 1", "\"schema\": 2");
        assert!(matches!(Record::from_json(&newer, "a.json"), Err(RecordError::UnknownSchema { got, .. }) if got == "2"));
        for bad in ["", "[1, 2]", "{", "{\"schema\": 1}", &text.replace("\"seed\": 7", "\"seed\": \"x\"")] {
            assert!(matches!(Record::from_json(bad, "a.json"), Err(RecordError::Malformed { .. })), "{bad}");
        }
        let missing = Path::new("/nonexistent/record.json");
        assert!(matches!(Record::read(missing), Err(RecordError::File { .. })));
        assert!(matches!(sample(vec![]).write(missing), Err(RecordError::File { .. })));
    }
}
