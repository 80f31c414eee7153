//! The judge of upsweep. Nothing is timed that was not verified, and the judge itself is tested with wrong kernels.
//!
//! ```text
//! cases (what to ask) ── families (which data) ──┐
//!                                                ▼
//! candidate (a rung, or a wrong kernel) ── Target::run ── Observed ── comparator ◄── upsweep's oracle
//!                                                                         │
//!                                                           all passed    ▼
//!                                                           Verified ── Timing ── Throughput ── Record
//! ```
//!
//! A [`Throughput`](timing::Throughput) is only made from a [`Timing`](timing::Timing), a `Timing` only from a
//! [`Verified`](verify::Verified), and a `Verified` only by a verification that passed, in this process, for that rung,
//! operator, dtype, shape and device. None of the three can be written down, deserialised or built by hand.
//!
//! The entry points are [`verify::verify`], [`climb::climb`], [`bench::bench`], [`checklist::checklist`] and
//! [`compare::compare`]; each takes a [`Target`](target::Target), the device as the judge sees it.

#![warn(missing_docs)]

pub mod bench;
pub mod candidate;
pub mod cases;
pub mod checklist;
pub mod climb;
pub mod comparator;
pub mod compare;
pub mod counted;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
pub mod families;
pub mod findings;
pub mod goals;
pub mod judged;
pub mod pairwise;
pub mod points;
pub mod record;
pub mod reduce;
pub mod scan;
#[cfg(feature = "sim")]
pub mod sim;
pub mod softmax;
pub mod statistics;
pub mod target;
pub mod timing;
pub mod verify;

pub use error::{GateError, Result};
