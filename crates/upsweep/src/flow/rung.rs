//! Rungs and plans.

use super::{KernelFile, Op, Program, Step};
use crate::device::caps::{Caps, CudaCaps, DeviceKind};
use crate::error::{Error, Result};
use crate::types::{DType, Operator};
use std::fmt;

/// What a rung is for.
#[derive(Clone, Copy, Debug)]
pub struct Claims {
    /// Operators; empty means every operator of the op.
    pub operators: &'static [Operator],
    /// Dtypes; empty means every dtype the operator accepts.
    pub dtypes: &'static [DType],
    /// Layouts.
    pub forms: Forms,
    /// Lowest compute capability (CUDA rungs).
    pub compute: (u32, u32),
    /// Largest number of elements of one output.
    pub max_length: u64,
}

/// Layout forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forms {
    /// The whole of a contiguous array.
    Whole,
    /// Rows whose elements are neighbours in memory, at one distance from each other; a contiguous array is one of them.
    Rows,
    /// An axis before the last, where what lies behind it is contiguous: columns that are neighbours in memory.
    Columns,
    /// Any axes of any strides.
    Any,
}

/// What the gate expects of a rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Every case passes.
    Pass,
    /// Cases of the named input family must be rejected: the rung teaches a fault, and `verify` fails if it passes.
    Rejected(&'static str),
}

/// A rung's story, printed by `explain` and in the book.
#[derive(Clone, Copy, Debug)]
pub struct Explain {
    /// What changed since the rung before.
    pub changed: &'static str,
    /// Why it helps.
    pub helps: &'static str,
    /// Bytes moved, launches, barriers, steps.
    pub cost: &'static str,
    /// Paper, slide or manual section.
    pub source: &'static str,
}

/// One rung of a ladder.
pub struct Rung<O: Op> {
    /// Number on its device's ladder, for instance `5a`.
    pub number: &'static str,
    /// Name, for instance `divergent`.
    pub name: &'static str,
    /// What it is for.
    pub claims: Claims,
    /// Two runs on the same device and input give the same bits.
    pub deterministic: bool,
    /// What the gate expects.
    pub expect: Expect,
    /// Its story.
    pub explain: Explain,
    /// How it runs.
    pub body: Body<O>,
}

/// What there is to tell of a rung, whatever its operation.
#[derive(Clone, Copy, Debug)]
pub struct RungFacts {
    /// The operation's name.
    pub op: &'static str,
    /// Number on its device's ladder.
    pub number: &'static str,
    /// Name.
    pub name: &'static str,
    /// The kind of device it runs on.
    pub device: DeviceKind,
    /// What it is for.
    pub claims: Claims,
    /// Two runs on the same device and input give the same bits.
    pub deterministic: bool,
    /// What the gate expects.
    pub expect: Expect,
    /// Its story.
    pub explain: Explain,
    /// Its kernel file (CUDA).
    pub file: Option<KernelFile>,
}

impl RungFacts {
    /// `number-name`.
    pub fn full_name(&self) -> String {
        format!("{}-{}", self.number, self.name)
    }

    /// `op/number-name`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.op, self.full_name())
    }

    /// Whether `text` is its number, its name or both.
    pub fn is(&self, text: &str) -> bool {
        self.number == text || self.name == text || self.full_name() == text
    }
}

/// How a rung runs.
pub enum Body<O: Op> {
    /// On the host.
    Cpu(O::HostBody),
    /// On a CUDA device: a kernel file, and the numbers for the op's lowering.
    Cuda {
        /// The kernel file.
        file: KernelFile,
        /// The numbers.
        schedule: O::Schedule,
    },
}

impl<O: Op> Rung<O> {
    /// The kind of device it runs on.
    pub fn device(&self) -> DeviceKind {
        match self.body {
            Body::Cpu(_) => DeviceKind::Cpu,
            Body::Cuda { .. } => DeviceKind::Cuda,
        }
    }

    /// Full name, `op/number-name`.
    pub fn id(&self) -> String {
        self.facts().id()
    }

    /// What there is to tell of it.
    pub fn facts(&self) -> RungFacts {
        RungFacts {
            op: O::NAME,
            number: self.number,
            name: self.name,
            device: self.device(),
            claims: self.claims,
            deterministic: self.deterministic,
            expect: self.expect,
            explain: self.explain,
            file: match &self.body {
                Body::Cpu(_) => None,
                Body::Cuda { file, .. } => Some(*file),
            },
        }
    }

    /// The rung of a device with this number, name or `number-name`.
    ///
    /// # Errors
    /// [`Error::UnknownRung`], listing the known ones.
    pub fn find(device: DeviceKind, name: &str) -> Result<&'static Rung<O>> {
        let on_device = || O::ladder().iter().filter(move |r| r.device() == device);
        on_device().find(|r| r.facts().is(name)).ok_or_else(|| Error::UnknownRung {
            name: name.to_string(),
            known: on_device().map(|r| format!("{}-{}", r.number, r.name)).collect::<Vec<_>>().join(", "),
        })
    }
}

impl<O: Op> fmt::Debug for Rung<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id())
    }
}

/// How the reason begins why a rung does not run on the simulator.
pub const NOT_SIMULATED: &str = "not simulated";

fn not_simulated(file: KernelFile, compute: (u32, u32), simulator: &CudaCaps) -> Option<&'static str> {
    if !file.tiles.is_empty() {
        return Some("Rust tile kernels are compiled ahead of time, for devices");
    }
    (compute > simulator.compute).then_some("bulk copies and their barriers (compute capability 9.0)")
}

/// Threads of a block that kernels are written for.
pub const BLOCK_SIZES: [u32; 5] = [64, 128, 256, 512, 1024];

/// Free choices of a plan; zero means the rung's or planner's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Threads of a block.
    pub block: u32,
}

impl Tuning {
    /// The threads of a block: what was asked for, or a rung's own number.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a number that is none of [`BLOCK_SIZES`].
    pub fn block_size(self, default: u32) -> Result<u32> {
        match self.block {
            0 => Ok(default),
            block if BLOCK_SIZES.contains(&block) => Ok(block),
            block => Err(Error::InvalidArgument {
                argument: "block",
                got: block.to_string(),
                allowed: format!("allowed are {BLOCK_SIZES:?} threads"),
            }),
        }
    }
}

/// A plan: which rung runs a problem on a device, with which launches, and why.
pub struct Plan<O: Op> {
    /// What is asked.
    pub problem: O::Problem,
    /// What runs.
    pub rung: &'static Rung<O>,
    /// Why this rung and these numbers.
    pub why: String,
    /// The launches (CUDA).
    pub program: Option<Program>,
}

impl<O: Op> Plan<O> {
    /// The plan of a named rung.
    ///
    /// # Errors
    /// [`Error::NotClaimed`] if the rung is not for the problem or the device;
    /// [`Error::InvalidArgument`] for a block size it cannot use.
    pub fn with_rung(problem: &O::Problem, caps: &Caps, rung: &'static Rung<O>, tuning: Tuning, why: String) -> Result<Self> {
        O::claim(rung, problem)?;
        let missing = |why: String| Error::NotClaimed { rung: rung.id(), why };
        let program = match (&rung.body, caps) {
            (Body::Cpu(_), Caps::Cpu(_)) => None,
            (Body::Cuda { file, schedule }, Caps::Cuda(cuda)) => {
                if cuda.simulated
                    && let Some(why) = not_simulated(*file, rung.claims.compute, cuda)
                {
                    return Err(missing(format!("{NOT_SIMULATED}: {why}")));
                }
                if cuda.compute < rung.claims.compute {
                    let ((major, minor), (has_major, has_minor)) = (rung.claims.compute, cuda.compute);
                    return Err(missing(format!(
                        "it needs compute capability {major}.{minor}, {} has {has_major}.{has_minor}",
                        cuda.name
                    )));
                }
                let program = O::lower(rung, schedule, problem, cuda, tuning)?;
                let shared = program.steps.iter().map(|Step::Launch(launch)| launch.shared_bytes).max().unwrap_or(0);
                if shared > cuda.shared_bytes_per_block {
                    return Err(missing(format!(
                        "a block needs {shared} bytes of shared memory, {} gives it {} at most",
                        cuda.name, cuda.shared_bytes_per_block
                    )));
                }
                Some(program)
            }
            _ => return Err(missing(format!("it runs on {}, not on {}", rung.device().name(), caps.kind().name()))),
        };
        Ok(Plan { problem: problem.clone(), rung, why, program })
    }

    /// Bytes of scratch the caller must supply; any alignment, any content.
    pub fn scratch_bytes(&self) -> u64 {
        self.program.as_ref().map_or(0, |p| p.scratch_bytes)
    }
}

impl<O: Op> Clone for Plan<O> {
    fn clone(&self) -> Self {
        Plan { problem: self.problem.clone(), rung: self.rung, why: self.why.clone(), program: self.program.clone() }
    }
}

impl<O: Op> fmt::Debug for Plan<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<O: Op> fmt::Display for Plan<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} for {}: {}", self.rung.id(), self.problem, self.why)?;
        if let Some(program) = &self.program {
            write!(f, "{program}")?;
        }
        Ok(())
    }
}
