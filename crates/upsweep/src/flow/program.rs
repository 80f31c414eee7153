//! What a CUDA plan does, as data: fills and launches with symbolic arguments. One executor runs every op's programs.

use crate::device::caps::CudaCaps;
use crate::error::{Error, Result};
use crate::kernels::tiles::{self, Cubin};
use std::fmt;
use std::sync::Arc;

/// A kernel source file of a ladder, embedded at build time.
#[derive(Clone, Copy, Debug)]
pub struct KernelFile {
    /// Path below `src/`, for messages and for the test that finds unlisted files.
    pub path: &'static str,
    /// The text.
    pub text: &'static str,
    /// What of it is compiled ahead of time (Rust tile kernels, see [`crate::kernels::tiles`]). Empty for CUDA C++, which
    /// is compiled for the device found.
    pub tiles: &'static [TileKernel],
}

impl KernelFile {
    /// A file of CUDA C++.
    pub const fn cuda(path: &'static str, text: &'static str) -> KernelFile {
        KernelFile { path, text, tiles: &[] }
    }

    /// The embedded cubin of one of its tile kernels for a device.
    ///
    /// # Errors
    /// [`Error::NotClaimed`] for a device that none was made for.
    pub(crate) fn cubin(&self, kernel: &TileKernel, caps: &CudaCaps, rung: &str) -> Result<&'static Cubin> {
        tiles::find(self.path, kernel, caps.compute).ok_or_else(|| {
            let ((major, minor), devices) = (caps.compute, tiles::devices());
            Error::NotClaimed {
                rung: rung.to_string(),
                why: format!("it is compiled ahead of time for {devices}; {} has {major}.{minor}", caps.name),
            }
        })
    }
}

/// One instantiation of a Rust tile kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileKernel {
    /// The entry function.
    pub function: &'static str,
    /// Its const generics: the extents of a tile, in elements.
    pub extents: &'static [u32],
    /// Warps that compute; 0 leaves it to the compiler, which may add warps that only load.
    pub worker_warps: u32,
}

impl TileKernel {
    /// For instance `sum<4096>`: what a launch names.
    pub fn expression(&self) -> String {
        let extents: Vec<String> = self.extents.iter().map(u32::to_string).collect();
        format!("{}<{}>", self.function, extents.join(", "))
    }
}

/// One instantiation of a kernel template.
#[derive(Clone, Debug)]
pub struct KernelSpec {
    /// The file that defines the template.
    pub file: KernelFile,
    /// The C++ name expression, for instance `upsweep::reduce_divergent<upsweep::Sum<float>, upsweep::Elements, 256>`, or
    /// [`TileKernel::expression`].
    pub expression: String,
}

/// A kernel argument, resolved to an address or a value when the program is enqueued.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// An input operand's address plus a byte offset.
    Input {
        /// Position among the op's inputs.
        operand: usize,
        /// Bytes to add to the address.
        bytes: u64,
    },
    /// An output operand's address.
    Output {
        /// Position among the op's outputs.
        operand: usize,
    },
    /// An address in the caller's scratch memory, in bytes from its aligned start.
    Scratch(u64),
    /// The prepared plan's control block.
    Control,
    /// A 64-bit value.
    U64(u64),
    /// A struct of 64-bit words, passed by value.
    Words(Vec<u64>),
}

/// One kernel launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What to run.
    pub kernel: KernelSpec,
    /// Blocks of the grid.
    pub grid: u32,
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Kernel arguments, in order.
    pub args: Vec<Arg>,
}

/// One step of a program.
#[derive(Clone, Debug)]
pub enum Step {
    /// A kernel launch.
    Launch(Launch),
}

/// The control block: zeroed once when a plan is prepared, kept by the kernels between calls.
/// Word 0: epoch; word 1: device error word; then `words` 64-bit words for published partial states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlBlock {
    /// 64-bit words after the two header words (16 bytes).
    pub words: u64,
}

impl ControlBlock {
    /// Bytes to allocate.
    pub fn bytes(self) -> u64 {
        16 + 8 * self.words
    }
}

/// A CUDA program: the steps of one enqueue.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Steps in stream order.
    pub steps: Vec<Step>,
    /// Bytes of caller scratch, at any alignment and with any content.
    pub scratch_bytes: u64,
    /// What the prepared plan keeps on the device.
    pub control: ControlBlock,
    /// The C++ struct of a user operator ([`crate::ops::user`]), which is compiled before the kernel files.
    pub operator: Option<Arc<str>>,
}

/// Alignment that the executor gives scratch addresses, in bytes; the stated scratch size includes the slack.
pub const SCRATCH_ALIGNMENT: u64 = 16;

impl Program {
    /// Kernel launches of one enqueue.
    pub fn launches(&self) -> usize {
        self.steps.len()
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Step::Launch(launch) in &self.steps {
            writeln!(
                f,
                "{}<<<{} x {} threads, {} B shared>>>",
                launch.kernel.expression.replace("upsweep::", ""),
                launch.grid,
                launch.block,
                launch.shared_bytes
            )?;
        }
        write!(f, "scratch {} B, control {} B", self.scratch_bytes, self.control.bytes())
    }
}
