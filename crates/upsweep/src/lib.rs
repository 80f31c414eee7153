//! Parallel primitives for Rust, on the CPU and on CUDA GPUs, under one contract.

pub mod device;
mod error;
pub mod flow;
pub mod kernels;
pub mod ops;
pub mod types;

pub use error::{Error, Result};
#[doc(hidden)]
pub use half;

/// The README's example, compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct ReadmeExamples;
