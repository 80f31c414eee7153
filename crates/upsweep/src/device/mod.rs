//! Devices: what they can do ([`caps`]), and how a plan runs on them.

#[cfg(feature = "kernel-cache")]
pub mod cache;
pub mod caps;
#[cfg(feature = "cpu")]
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
