//! Why a command ends, and with which exit code.

use std::io;
use std::path::PathBuf;

/// What a command can end with beyond the library's errors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A case, a wrong kernel or a comparison failed; the report says which.
    #[error("{0}")]
    Gate(String),
    /// The arguments do not fit together.
    #[error("{0}")]
    Usage(String),
    /// An output file could not be written; nothing was left behind.
    #[error("cannot write {path}: {source}; nothing was written", path = path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Whoever read standard output has gone.
    #[error("standard output was closed")]
    PipeClosed,
}

/// A gate failed, or a figure got worse.
pub const EXIT_GATE: u8 = 1;
/// Wrong usage or input.
pub const EXIT_USAGE: u8 = 2;
/// No such device.
pub const EXIT_DEVICE: u8 = 3;

/// The exit code of an error.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    let is = |found: fn(&upsweep::Error) -> bool| error.chain().any(|e| e.downcast_ref::<upsweep::Error>().is_some_and(found));
    if let Some(failure) = error.chain().find_map(|e| e.downcast_ref::<Failure>()) {
        return match failure {
            Failure::Gate(_) => EXIT_GATE,
            Failure::Usage(_) | Failure::Output { .. } => EXIT_USAGE,
            // `upsweep list | head -1` did what was wanted.
            Failure::PipeClosed => 0,
        };
    }
    if is(|e| matches!(e, upsweep::Error::Unavailable { .. })) {
        return EXIT_DEVICE;
    }
    // A device that faults or a kernel that does not compile is no fault of the arguments.
    if is(|e| matches!(e, upsweep::Error::Driver { .. } | upsweep::Error::Compile { .. } | upsweep::Error::Device { .. })) {
        return EXIT_GATE;
    }
    EXIT_USAGE
}
