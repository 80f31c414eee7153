//! The CPU device.

use super::caps::{Caps, CpuCaps};

/// The host processor: kernels run on the current rayon pool.
#[derive(Clone, Debug)]
pub struct Cpu {
    caps: Caps,
}

impl Default for Cpu {
    fn default() -> Self {
        Cpu::new()
    }
}

impl Cpu {
    /// The processor this runs on, with as many threads as the current rayon pool.
    pub fn new() -> Cpu {
        let caps = CpuCaps { threads: rayon::current_num_threads(), simd: simd(), name: name() };
        Cpu { caps: Caps::Cpu(caps) }
    }

    /// What it can do.
    pub fn caps(&self) -> &Caps {
        &self.caps
    }
}

/// The widest vector instructions that were found; kernels choose theirs by the same detection.
fn simd() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            return "avx512f";
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            return "avx2";
        }
        "sse2"
    }
    #[cfg(target_arch = "aarch64")]
    {
        "neon"
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        "none"
    }
}

/// The processor's name as Linux reports it, else the architecture.
fn name() -> String {
    let model = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_string())
    });
    model.unwrap_or_else(|| std::env::consts::ARCH.to_string())
}
