//! The command line. Every option stands only where it has an effect.

use crate::number::parse_count;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use upsweep::ops::softmax::SoftmaxKind;
use upsweep::types::{DType, Operator};

/// Verified, then timed: parallel primitives on the CPU and on CUDA GPUs.
#[derive(Debug, Parser)]
#[command(name = "upsweep", version = crate::build::VERSION, about, max_term_width = 110)]
#[command(after_help = "Exit codes: 0 fine, 1 a gate failed or a figure got worse, 2 wrong usage or input, 3 no such device.\n\
The result is on standard output; progress and notes are on standard error.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show operations, operators, dtypes and rungs
    List(ListArgs),
    /// Tell a rung's story: what changed, why it helps, cost, source, and its figures from the records
    Explain(ExplainArgs),
    /// Run the cases against the oracle, and the wrong kernels that must be rejected
    Verify(VerifyArgs),
    /// Climb the ladder: every rung at one size, verified and then timed
    Ladder(LadderArgs),
    /// Time the planner's choice over a sweep of sizes and shapes, each verified first
    Bench(BenchArgs),
    /// Name the points of a record of `bench --shapes` that stand out: worse than a neighbour, or no faster than a peer
    Review(ReviewArgs),
    /// Compare two records; exit 1 if the second is slower beyond the tolerance
    Compare(CompareArgs),
    /// The nine boxes of the assignment, each met or not with its evidence
    Checklist(ChecklistArgs),
    /// What was found (driver, compiler, devices, cache, CPU) and the next step for what was not
    Doctor(DoctorArgs),
    /// Reduce, scan or take the softmax of a tensor of a .npy or .safetensors file
    Run(RunArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Print the manual page (roff)
    Man,
}

/// Where the result goes.
#[derive(Debug, Clone, Args)]
pub struct OutputArgs {
    /// Form of the result
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Write the result to this file, whole or not at all, instead of standard output
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// Forms of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table for people
    Table,
    /// JSON in SI base units
    Json,
    /// Comma-separated values
    Csv,
    /// Markdown
    Md,
}

/// Which device.
#[derive(Debug, Clone, Args)]
pub struct DeviceArgs {
    /// cpu, cuda, cuda:INDEX, sim (the CUDA rungs on this machine's processor, counted and searched for faults, without a time),
    /// or auto (CUDA if there is a device, else the CPU)
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub device: DeviceChoice,
}

/// A device as it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    /// CUDA if there is a device, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The CUDA device of this index.
    Cuda(usize),
    /// The simulator.
    Sim,
}

impl FromStr for DeviceChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "sim" => Ok(DeviceChoice::Sim),
            "cuda" => Ok(DeviceChoice::Cuda(0)),
            _ => {
                let index = text.strip_prefix("cuda:").and_then(|i| i.parse().ok());
                index
                    .map(DeviceChoice::Cuda)
                    .ok_or_else(|| format!("`{text}` is not a device; allowed are cpu, cuda, cuda:INDEX, sim, auto"))
            }
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Sim => f.write_str("sim"),
            DeviceChoice::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

fn parse_dtype(text: &str) -> Result<DType, String> {
    DType::from_name(text).ok_or_else(|| {
        let names: Vec<_> = DType::all().map(DType::name).collect();
        format!("`{text}` is not a dtype; allowed are {}", names.join(", "))
    })
}

/// `list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Where the result goes.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Operation and rung, for instance reduce/4, reduce/warp_shuffle or cpu/reduce/3; an operation alone explains all
    /// its rungs
    #[arg(value_name = "OP/RUNG")]
    pub target: Target,
    /// Only the ladder of this device; without it a number that both ladders have explains both rungs
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,
    /// Where the result goes.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// An operation and, after a slash, one of its rungs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The operation's name.
    pub op: String,
    /// The rung's number or name.
    pub rung: Option<String>,
}

impl FromStr for Target {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (op, rung) = text.split_once('/').map_or((text, None), |(op, rung)| (op, Some(rung)));
        if rung == Some("") {
            return Err(format!("`{text}` names no rung after the slash; allowed is OP or OP/RUNG, for instance reduce/4"));
        }
        Ok(Target { op: known_op(op)?, rung: rung.map(str::to_string) })
    }
}

/// Checks an operation's name.
fn known_op(text: &str) -> Result<String, String> {
    let names = upsweep::ops::names();
    if names.contains(&text) {
        return Ok(text.to_string());
    }
    Err(format!("`{text}` is not an operation; known are {}", names.join(", ")))
}

/// `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Operation, or operation and rung; every operation if left out
    #[arg(value_name = "OP[/RUNG]")]
    pub target: Option<Target>,
    /// Which device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// How many cases: quick (seconds), full (every pair of the axes meets), huge (beyond 2^31 elements, large GPUs)
    #[arg(long, value_enum, default_value_t = Cases::Quick)]
    pub cases: Cases,
    /// Only cases of this dtype
    #[arg(long, value_parser = parse_dtype)]
    pub dtype: Option<DType>,
    /// Only cases of this operator
    #[arg(long)]
    pub operator: Option<String>,
    /// On the simulator, a changed copy of a kernel file (known by its name, for instance 02_sequential.cu) in place of the
    /// shipped one; may be repeated
    #[arg(long, value_name = "FILE")]
    pub source: Vec<PathBuf>,
    /// Leave the wrong kernels out: for memory checkers, which would rightly complain about them
    #[arg(long)]
    pub no_wrong_kernels: bool,
    /// Leave cases of tens of thousands of rows out: for tools under which each row takes long
    #[arg(long)]
    pub few_rows: bool,
    /// Seed of the inputs; a fresh one, printed, if left out
    #[arg(long)]
    pub seed: Option<u64>,
    /// Where the result goes.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// How many cases `verify` runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Cases {
    /// Seconds.
    Quick,
    /// Every pair of the axes meets.
    Full,
    /// Beyond 2^31 elements.
    Huge,
}

/// `ladder`.
#[derive(Debug, Args)]
pub struct LadderArgs {
    /// Operation
    #[arg(value_name = "OP", value_parser = known_op)]
    pub op: String,
    /// Which device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Number of elements: 2^28, 1e6, 64Mi, 2^20+13; default 2^28 on CUDA and 2^26 on the CPU
    #[arg(long, value_parser = parse_count, value_name = "COUNT")]
    pub n: Option<u64>,
    /// Dtype of the elements
    #[arg(long, value_parser = parse_dtype, default_value = "f32")]
    pub dtype: DType,
    /// Operator; the operation's first if left out (see `upsweep list`); of scans also sum_by_key, sum_in_segments_of_1024 and
    /// the like
    #[arg(long)]
    pub operator: Option<String>,
    /// Seed of the inputs; a fresh one, printed, if left out
    #[arg(long)]
    pub seed: Option<u64>,
    /// Threads of a block, on CUDA; without it the best of a small sweep, printed
    #[arg(long, value_name = "THREADS")]
    pub block: Option<u32>,
    /// Another library to verify and time beside ours (a shared library built from peers/); may be repeated
    #[arg(long, value_name = "FILE")]
    pub peer: Vec<PathBuf>,
    /// Timed repeats of each rung
    #[arg(long, value_name = "COUNT")]
    pub repeats: Option<u32>,
    /// Where the result goes.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Operation
    #[arg(value_name = "OP", value_parser = known_op)]
    pub op: String,
    /// Which device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Only these numbers of elements, separated by commas; without it a sweep of sizes and shapes
    #[arg(long, value_parser = parse_count, value_name = "COUNT", value_delimiter = ',', conflicts_with = "shapes")]
    pub n: Vec<u64>,
    /// The whole list of shapes (rows and columns from 1 to 2^28 elements, odd lengths, unaligned places), and which of them
    /// cost more than their neighbours
    #[arg(long)]
    pub shapes: bool,
    /// The problems for which the project has set itself figures on an H200, and whether they are met
    #[arg(long, conflicts_with_all = ["n", "shapes", "operator", "dtype"])]
    pub goals: bool,
    /// Leave larger shapes of the list out; default 2^28 on CUDA and 2^22 on the CPU
    #[arg(long, value_parser = parse_count, value_name = "COUNT", requires = "shapes")]
    pub up_to: Option<u64>,
    /// Dtype of the elements
    #[arg(long, value_parser = parse_dtype, default_value = "f32")]
    pub dtype: DType,
    /// Only these operators, separated by commas
    #[arg(long, value_delimiter = ',')]
    pub operator: Vec<String>,
    /// Another library to verify and time beside ours (a shared library built from peers/); may be repeated
    #[arg(long, value_name = "FILE")]
    pub peer: Vec<PathBuf>,
    /// Seed of the inputs; a fresh one, printed, if left out
    #[arg(long)]
    pub seed: Option<u64>,
    /// Timed repeats of each row
    #[arg(long, value_name = "COUNT")]
    pub repeats: Option<u32>,
    /// Where the result goes.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `review`.
#[derive(Debug, Args)]
pub struct ReviewArgs {
    /// The record, to which peers' rows may have been added since
    #[arg(value_name = "RECORD.json")]
    pub record: PathBuf,
    /// Where the result goes; as JSON it is the record with its findings made anew
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// The record before
    #[arg(value_name = "A.json")]
    pub before: PathBuf,
    /// The record after
    #[arg(value_name = "B.json")]
    pub after: PathBuf,
    /// By how many percent a row may be slower
    #[arg(long, default_value_t = 5.0, value_name = "PERCENT")]
    pub tolerance: f64,
    /// Where the result goes.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `checklist`.
#[derive(Debug, Args)]
pub struct ChecklistArgs {
    /// Which device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Number of elements of the ladder; default 2^28 on CUDA and 2^26 on the CPU
    #[arg(long, value_parser = parse_count, value_name = "COUNT")]
    pub n: Option<u64>,
    /// Seed of the inputs; a fresh one, printed, if left out
    #[arg(long)]
    pub seed: Option<u64>,
    /// Write the climb that the boxes quote to this file, too: the record of `upsweep ladder reduce`
    #[arg(long, value_name = "FILE")]
    pub ladder: Option<PathBuf>,
    /// Where the result goes.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell: bash, elvish, fish, powershell or zsh
    #[arg(value_name = "SHELL", value_enum)]
    pub shell: clap_complete::Shell,
}

/// `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Where the result goes.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// A reduction (sum, argmax, mean, logsumexp, ...; see `upsweep list`), cumsum, cumprod, cummin, cummax, logcumsumexp,
    /// softmax or log_softmax
    #[arg(value_name = "OP")]
    pub function: Function,
    /// A .npy or .safetensors file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Axes to reduce, repeated or separated by commas, or the one axis of a scan or a softmax; negative ones count from
    /// the end. If left out: reductions and scans take the whole array, softmaxes the last axis
    #[arg(long, value_name = "AXIS", value_delimiter = ',', allow_negative_numbers = true)]
    pub axis: Vec<i64>,
    /// Name of the tensor in a .safetensors file
    #[arg(long, value_name = "NAME")]
    pub tensor: Option<String>,
    /// How exactly float sums and means are wanted
    #[arg(long, value_enum, default_value_t = Accuracy::Fast)]
    pub accuracy: Accuracy,
    /// Which device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Form of what is printed
    #[arg(long, value_enum, default_value_t = RunFormat::Table)]
    pub format: RunFormat,
    /// Write the result to this .npy file, whole or not at all
    #[arg(long, value_name = "FILE.npy")]
    pub out: Option<PathBuf>,
}

/// What `run` computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// A reduction.
    Reduce(Operator),
    /// An inclusive scan.
    Scan(Operator),
    /// A softmax.
    Softmax(SoftmaxKind),
}

/// The scans by NumPy's names, and PyTorch's.
const SCANS: [(&str, Operator); 5] = [
    ("cumsum", Operator::Sum),
    ("cumprod", Operator::Prod),
    ("cummin", Operator::Min),
    ("cummax", Operator::Max),
    ("logcumsumexp", Operator::LogSumExp),
];

impl FromStr for Function {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let scan = || SCANS.iter().find(|(name, _)| *name == text).map(|(_, operator)| Function::Scan(*operator));
        let softmax = || SoftmaxKind::from_name(text).map(Function::Softmax);
        // logsumexp is a reduction like others: over the whole array, or along several axes.
        let reduction = Operator::from_name(text).filter(|operator| operator.row().reduces);
        reduction.map(Function::Reduce).or_else(scan).or_else(softmax).ok_or_else(|| {
            let names = Operator::reductions().map(Operator::name).chain(SCANS.iter().map(|(name, _)| *name));
            let names: Vec<&str> = names.chain(["softmax", "log_softmax"]).collect();
            format!("`{text}` is not a function; allowed are {}", names.join(", "))
        })
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Function::Reduce(operator) => operator.fmt(f),
            Function::Scan(operator) => f.write_str(SCANS.iter().find(|(_, o)| o == operator).map_or("scan", |(name, _)| name)),
            Function::Softmax(kind) => kind.fmt(f),
        }
    }
}

/// Accuracy of float sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Accuracy {
    /// A tree in the accumulator type
    Fast,
    /// f64 accumulation; double-double for f64
    Compensated,
}

/// Forms of what `run` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RunFormat {
    /// The scalar as the last word, or the shape and a few values
    Table,
    /// JSON
    Json,
}
