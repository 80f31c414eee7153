//! Which device, and what it can do. The one place where backends plug into the command line.

use crate::args::DeviceChoice;
use crate::tensor::Tensor;
use upsweep::Error;
use upsweep::device::caps::{Caps, CpuCaps, DeviceKind};
use upsweep::device::cpu::Cpu;
use upsweep::ops::reduce::{ReduceOperands, ReducePlan, run_on_host};
use upsweep_gate::cpu::CpuTarget;
use upsweep_gate::judged::Judged;
use upsweep_gate::target::Target;

#[cfg(feature = "cuda")]
use upsweep::{device::cuda::Cuda, ops::reduce::run_plan, types::dispatch};

/// A device that was found.
#[derive(Debug)]
pub enum Device {
    /// The host processor.
    Cpu(CpuCaps),
    /// A CUDA device.
    #[cfg(feature = "cuda")]
    Cuda(Cuda),
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
            // Only "there is none" means the CPU: a driver that fails is told, not hidden behind slower results.
            DeviceChoice::Auto => match cuda(0) {
                Err(Error::Unavailable { .. }) => Ok(Device::Cpu(cpu_caps())),
                found => found,
            },
        }
    }

    /// The kind of device.
    pub fn kind(&self) -> DeviceKind {
        self.caps().kind()
    }

    /// What it can do.
    pub fn caps(&self) -> Caps {
        match self {
            Device::Cpu(caps) => Caps::Cpu(caps.clone()),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => Caps::Cuda(cuda.caps().clone()),
        }
    }

    /// Name for people.
    pub fn name(&self) -> String {
        match self.caps() {
            Caps::Cpu(caps) => format!("cpu ({}, {} threads, {})", caps.name, caps.threads, caps.simd),
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
        }
    }

    /// Runs a plan from host memory to host memory.
    ///
    /// # Errors
    /// Those of the library.
    pub fn reduce(&self, plan: &ReducePlan, input: &Tensor, output: &mut Tensor) -> Result<(), Error> {
        match self {
            Device::Cpu(_) => run_on_host(plan, ReduceOperands { input: input.host_slice(), output: output.host_slice_mut() }),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => dispatch!(input.dtype(), T => {
                let uploaded = cuda.upload(input.host_slice().typed::<T>()?)?;
                dispatch!(output.dtype(), R => {
                    let reduced = run_plan::<_, T, R>(cuda, plan, &uploaded)?;
                    let target = output.host_slice_mut().typed::<R>()?;
                    if target.len() != reduced.values.len() {
                        let (got, expected) = (reduced.values.len() as u64, target.len() as u64);
                        return Err(Error::LengthMismatch { argument: "output", got, expected, unit: "elements" });
                    }
                    target.copy_from_slice(&reduced.values);
                    Ok(())
                })
            }),
        }
    }
}

#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Result<Device, Error> {
    Cuda::new(index).map(Device::Cuda)
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
