//! What a device can do, as plain data, so that planning needs no device.

/// A device's capabilities.
#[derive(Clone, Debug, PartialEq)]
pub enum Caps {
    /// The host processor.
    Cpu(CpuCaps),
    /// A CUDA device.
    Cuda(CudaCaps),
}

impl Caps {
    /// `cpu` or `cuda`.
    pub fn kind(&self) -> DeviceKind {
        match self {
            Caps::Cpu(_) => DeviceKind::Cpu,
            Caps::Cuda(_) => DeviceKind::Cuda,
        }
    }
}

/// The kinds of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// The host processor.
    Cpu,
    /// A CUDA device.
    Cuda,
}

impl DeviceKind {
    /// Name in the command line and in records.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
        }
    }
}

/// The host processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuCaps {
    /// Threads of the pool that runs the kernels.
    pub threads: usize,
    /// The vector instructions that were found and are used.
    pub simd: &'static str,
    /// Processor name, as the system reports it.
    pub name: String,
}

/// A CUDA device.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaCaps {
    /// Device name, as the driver reports it.
    pub name: String,
    /// Compute capability, major and minor.
    pub compute: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Resident threads of one multiprocessor.
    pub threads_per_multiprocessor: u32,
    /// Shared memory a block may ask for, in bytes (opt-in limit).
    pub shared_bytes_per_block: u32,
    /// Second-level cache, in bytes.
    pub l2_bytes: u64,
    /// Device memory, in bytes.
    pub memory_bytes: u64,
    /// Peak memory bandwidth in bytes per second from clock and bus width, where the driver tells them.
    pub bus_bytes_per_second: Option<f64>,
    /// The kernels are executed by the simulator (`upsweep-sim`), which has no asynchronous copies, clusters or tensor cores.
    pub simulated: bool,
}

/// Memory bandwidths that vendors state, by device name: the longest name contained in the device's name wins.
/// Source: NVIDIA's data sheets for each product.
const PEAKS: &[(&str, f64)] = &[
    ("H200", 4.8e12),
    ("H100 NVL", 3.938e12),
    ("H100 PCIe", 2.039e12),
    ("H100", 3.35e12),
    ("GH200", 4.0e12),
    ("B200", 8.0e12),
    ("A100-SXM4-80GB", 2.039e12),
    ("A100", 1.555e12),
    ("RTX 4090", 1.008e12),
    ("Tesla T4", 0.320e12),
    ("T4", 0.320e12),
];

impl CudaCaps {
    /// Peak memory bandwidth in bytes per second and where the figure is from.
    pub fn peak(&self) -> Option<(f64, &'static str)> {
        let stated = PEAKS
            .iter()
            .filter(|(name, _)| self.name.split_whitespace().collect::<Vec<_>>().join(" ").contains(name))
            .max_by_key(|(name, _)| name.len())
            .map(|(_, peak)| (*peak, "data sheet, by device name"));
        stated.or(self.bus_bytes_per_second.map(|peak| (peak, "2 x memory clock x bus width")))
    }

    /// The architecture to compile for, as the compiler's option value.
    pub fn target(&self) -> String {
        let suffix = match self.compute {
            // The targets with `a` have what a kernel may use on that architecture alone.
            (9, 0) | (10, 0) => "a",
            _ => "",
        };
        format!("sm_{}{}{suffix}", self.compute.0, self.compute.1)
    }

    /// Known devices, for planner tests and for looking at a plan without the device.
    pub fn known() -> Vec<CudaCaps> {
        let device = |name: &str, compute, multiprocessors, threads, shared_kib: u32, l2_mib: u64, memory_gib: u64| CudaCaps {
            name: name.to_string(),
            compute,
            multiprocessors,
            threads_per_multiprocessor: threads,
            shared_bytes_per_block: shared_kib << 10,
            l2_bytes: l2_mib << 20,
            memory_bytes: memory_gib << 30,
            bus_bytes_per_second: None,
            simulated: false,
        };
        vec![
            device("Tesla T4", (7, 5), 40, 1024, 64, 4, 15),
            device("NVIDIA GeForce RTX 4090", (8, 9), 128, 1536, 99, 72, 24),
            device("NVIDIA A100-SXM4-80GB", (8, 0), 108, 2048, 163, 40, 80),
            device("NVIDIA H100 80GB HBM3", (9, 0), 132, 2048, 227, 50, 80),
            device("NVIDIA H200", (9, 0), 132, 2048, 227, 60, 140),
            device("NVIDIA B200", (10, 0), 148, 2048, 227, 126, 180),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_are_found_by_the_longest_name() {
        let peak = |name: &str| {
            let mut caps = CudaCaps::known().remove(4);
            caps.name = name.to_string();
            caps.peak()
        };
        assert_eq!(peak("NVIDIA H200").unwrap().0, 4.8e12);
        assert_eq!(peak("NVIDIA H100 80GB HBM3").unwrap().0, 3.35e12);
        assert_eq!(peak("NVIDIA H100 PCIe").unwrap().0, 2.039e12);
        assert_eq!(peak("NVIDIA Unknown"), None);
    }

    #[test]
    fn targets() {
        let targets: Vec<String> = CudaCaps::known().iter().map(CudaCaps::target).collect();
        assert_eq!(targets, ["sm_75", "sm_89", "sm_80", "sm_90a", "sm_90a", "sm_100a"]);
    }
}
