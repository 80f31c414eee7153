//! A simulator of CUDA's execution model: the very kernel files that run on a GPU, on the host's processor.
//!
//! A plan for a CUDA device is data (launches with symbolic arguments), so the simulator runs it unchanged. Its kernels are built
//! by the host's C++ compiler, which reports every load, store and basic block to the engine; each CUDA thread is a coroutine.
//! From that come
//!
//! - results, which the gate judges like any device's;
//! - counts ([`Report`]): requests of warps and the lanes in them, sectors of global memory, passes over the banks of shared
//!   memory, barriers, shuffles, votes and atomic operations, in all and by line;
//! - faults ([`Fault`]), by file and line: races in shared and global memory, missing or divergent barriers, accesses out of
//!   bounds, reads of what nothing wrote, shuffles from absent lanes, endless spins. None of them depends on luck: what nothing
//!   orders is a fault, whatever order the simulator ran it in.
//!
//! There is no model of time, so no time is told. Bulk copies and their barriers, clusters and tensor cores are not simulated;
//! rungs that use them say so.
//!
//! Linux, on any processor that `corosensei` and a C++ compiler know.

mod compiler;
mod engine;
mod library;
mod report;
mod sim;

pub use compiler::HostCompiler;
pub use engine::faults::{FaultKind, Thread};
pub use engine::requests::{Count, Kind};
pub use library::{Line, Place};
pub use report::{Fault, LaunchReport, Report};
pub use sim::{Prepared, Sim};
