//! Devices: what they can do ([`caps`]), and how a plan runs on them.

pub mod caps;
#[cfg(feature = "cpu")]
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
