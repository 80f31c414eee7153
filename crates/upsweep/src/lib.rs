//! Parallel primitives for Rust, on the CPU and on CUDA GPUs, under one contract.
//!
//! Every call takes the same walk, and each step can be used alone:
//!
//! ```text
//!  operator, dtype, layout             what the device can do
//!            |                                   |
//!            v                                   v
//!        Problem  ----------------------------> Plan            pure and printable: which rung, which launches, how much
//!   every wrong input is                         |              scratch, and why; needs no device
//!   an error here, before any                    v
//!   launch                                   Prepared           kernels built or loaded; owns the small control block
//!                                                |
//!   operands, scratch, stream  -------------->   |  enqueue      no allocation, no waiting; can be captured in a graph
//!   (the caller's)                               v
//!                                             result            the values, what ran, the device's error word checked
//! ```
//!
//! The one-line calls of [`ops`] make the walk for you, on a [`device::cpu::Cpu`] or, with the feature `cuda`, on a
//! device of CUDA. Features: `cpu` (default) and `cuda` (the driver and the kernel compiler are looked for at run time).

pub mod device;
mod error;
pub mod flow;
pub mod kernels;
pub mod ops;
pub mod types;

/// States of [`ops::user::UserOperator`] are plain data as this crate means it.
pub use bytemuck;
pub use error::{Error, Result};
#[doc(hidden)]
pub use half;

/// The README's example, compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct ReadmeExamples;
