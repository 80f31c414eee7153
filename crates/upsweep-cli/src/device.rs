//! Which device, and what it can do. The one place where backends plug into the command line.

use crate::args::DeviceChoice;
use crate::tensor::Tensor;
use std::path::PathBuf;
use upsweep::Error;
use upsweep::device::caps::{Caps, CpuCaps, DeviceKind};
use upsweep::device::cpu::Cpu;
use upsweep::flow::{Body, Op, Plan};
#[cfg(feature = "sim")]
use upsweep::kernels::HEADERS;
use upsweep_gate::cpu::CpuTarget;
use upsweep_gate::judged::Judged;
use upsweep_gate::target::Target;

#[cfg(feature = "cuda")]
use upsweep::device::cuda::Cuda;
#[cfg(feature = "sim")]
use upsweep_sim::Sim;

/// A device that was found.
#[derive(Debug)]
pub enum Device {
    /// The host processor.
    Cpu(CpuCaps),
    /// A CUDA device.
    #[cfg(feature = "cuda")]
    Cuda(Cuda),
    /// The simulator of a CUDA device.
    #[cfg(feature = "sim")]
    Sim(Sim),
}

impl Device {
    /// Finds the device that was asked for. Without CUDA, `auto` is the CPU.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the next step; [`Error::Driver`].
    pub fn select(choice: DeviceChoice) -> Result<Device, Error> {
        match choice {
            DeviceChoice::Cpu => Ok(Device::Cpu(cpu_caps())),
            DeviceChoice::Cuda(index) => cuda(index),
            DeviceChoice::Sim => sim(),
            // Only "there is none" means the CPU: a driver that fails is told, not hidden behind slower results.
            DeviceChoice::Auto => match cuda(0) {
                Err(Error::Unavailable { .. }) => Ok(Device::Cpu(cpu_caps())),
                found => found,
            },
        }
    }

    /// The simulator with other texts for kernel files, which are known by their names, and by the operation where two have one.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] on other devices, for a name that no kernel file has, and for a file that cannot be read.
    pub fn with_sources(self, files: &[PathBuf], op: Option<&str>) -> Result<Device, Error> {
        let refused = |got: String, allowed: String| Error::InvalidArgument { argument: "source", got, allowed };
        match self {
            #[cfg(feature = "sim")]
            Device::Sim(sim) => files
                .iter()
                .try_fold(sim, |sim, file| {
                    let rungs = upsweep::ops::rungs();
                    let shipped = rungs.iter().filter_map(|rung| Some(rung.file?.path)).chain(HEADERS.map(|(path, _)| path));
                    let known: std::collections::BTreeSet<&str> = shipped.collect();
                    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                    let named = |path: &&&str| path.rsplit('/').next() == Some(name.as_str());
                    let asked =
                        |path: &&&str| op.is_none_or(|op| !path.starts_with("ops/") || path.split('/').nth(1) == Some(op));
                    let candidates: Vec<&str> = known.iter().filter(|path| named(path) && asked(path)).copied().collect();
                    let [path] = candidates[..] else {
                        let allowed: Vec<&str> = known.iter().filter(asked).copied().collect();
                        return Err(refused(name, format!("allowed is the name of one of {}", allowed.join(", "))));
                    };
                    let text =
                        std::fs::read_to_string(file).map_err(|error| refused(file.display().to_string(), error.to_string()))?;
                    Ok(sim.replacing(path, &text))
                })
                .map(Device::Sim),
            other if files.is_empty() => Ok(other),
            other => Err(refused(
                format!("given for {}", other.name()),
                "only the simulator takes other sources: `--device sim`".into(),
            )),
        }
    }

    /// The kind of device.
    pub fn kind(&self) -> DeviceKind {
        self.caps().kind()
    }

    /// Whether it is the simulator, which has no time.
    pub fn is_simulated(&self) -> bool {
        matches!(self.caps(), Caps::Cuda(caps) if caps.simulated)
    }

    /// What it can do.
    pub fn caps(&self) -> Caps {
        match self {
            Device::Cpu(caps) => Caps::Cpu(caps.clone()),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => Caps::Cuda(cuda.caps().clone()),
            #[cfg(feature = "sim")]
            Device::Sim(sim) => Caps::Cuda(sim.caps().clone()),
        }
    }

    /// Name for people.
    pub fn name(&self) -> String {
        match self.caps() {
            Caps::Cpu(caps) => format!("cpu ({}, {} threads, {})", caps.name, caps.threads, caps.simd),
            Caps::Cuda(caps) if caps.simulated => format!("sim (compute {}.{})", caps.compute.0, caps.compute.1),
            Caps::Cuda(caps) => format!("cuda ({}, compute {}.{})", caps.name, caps.compute.0, caps.compute.1),
        }
    }

    /// The device as the gate sees it.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn target<O: Judged>(&self) -> Result<Box<dyn Target<O>>, upsweep_gate::GateError> {
        match self {
            Device::Cpu(caps) => Ok(Box::new(CpuTarget::new(caps.clone()))),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => Ok(Box::new(upsweep_gate::cuda::CudaTarget::new(cuda.clone())?)),
            #[cfg(feature = "sim")]
            Device::Sim(sim) => Ok(Box::new(upsweep_gate::sim::SimTarget::new(sim.clone()))),
        }
    }

    /// Runs a plan from host memory to host memory.
    ///
    /// # Errors
    /// Those of the library.
    pub fn run<O: Op>(&self, plan: &Plan<O>, input: &Tensor, output: &mut Tensor) -> Result<(), Error> {
        match (self, &plan.rung.body) {
            (Device::Cpu(_), Body::Cpu(body)) => {
                O::run_on_host(*body, &plan.problem, input.host_slice(), None, output.host_slice_mut())
            }
            #[cfg(feature = "cuda")]
            (Device::Cuda(cuda), Body::Cuda { .. }) => cuda.run_from_host(plan, input.host_slice(), output.host_slice_mut()),
            #[cfg(feature = "sim")]
            (Device::Sim(sim), Body::Cuda { .. }) => {
                // What a simulator is for: a result of a kernel with a fault is none.
                let report = sim.run_from_host(plan, input.host_slice(), output.host_slice_mut())?;
                report
                    .faults()
                    .next()
                    .map_or(Ok(()), |fault| Err(Error::FaultyKernel { rung: plan.rung.id(), fault: fault.to_string() }))
            }
            _ => Err(Error::NotClaimed { rung: plan.rung.id(), why: format!("it does not run on {}", self.name()) }),
        }
    }
}

#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Result<Device, Error> {
    Cuda::new(index).map(Device::Cuda)
}

#[cfg(feature = "sim")]
fn sim() -> Result<Device, Error> {
    let sim = Sim::new();
    // Without a compiler nothing could run: that is told at once, and not by each rung.
    sim.compiler()?;
    Ok(Device::Sim(sim))
}

#[cfg(not(feature = "sim"))]
fn sim() -> Result<Device, Error> {
    Err(Error::Unavailable {
        what: "the simulator",
        why: "this build has no `sim` feature".into(),
        next_step: "build with `cargo build --release --features sim`, or use the CPU's own rungs (`--device cpu`)".into(),
    })
}

#[cfg(not(feature = "cuda"))]
fn cuda(_: usize) -> Result<Device, Error> {
    Err(Error::Unavailable {
        what: "the CUDA backend",
        why: "this build has no `cuda` feature".into(),
        next_step: "build with `cargo build --release --features cuda`, or use the CPU (`--device cpu`)".into(),
    })
}

/// The host processor.
pub fn cpu_caps() -> CpuCaps {
    match Cpu::new().caps() {
        Caps::Cpu(caps) => caps.clone(),
        Caps::Cuda(_) => unreachable!("the CPU device has the CPU's capabilities"),
    }
}

/// How to get the CUDA ladder, if this machine has no CUDA device: one line.
pub fn cuda_hint() -> Option<String> {
    match cuda(0) {
        Err(Error::Unavailable { what, next_step, .. }) => {
            Some(format!("This is the CPU ladder; {what} was not found. For the CUDA ladder: {next_step}"))
        }
        _ => None,
    }
}
