//! The walk of a call, the same for every operation and device:
//! problem (checked) -> plan (pure, printable) -> prepared (compiled, owns its control block) -> enqueue -> outcome.

mod memory;
mod program;
mod rung;

pub use memory::{Bindings, DeviceMut, DeviceRef, HostSlice, HostSliceMut};
pub use program::{Arg, ControlBlock, KernelFile, KernelSpec, Launch, Program, SCRATCH_ALIGNMENT, Step, TileKernel};
pub use rung::{BLOCK_SIZES, Body, Claims, Expect, Explain, Forms, NOT_SIMULATED, Plan, Rung, RungFacts, Tuning};

use crate::device::caps::{Caps, CudaCaps};
use crate::error::Result;
use crate::types::DType;
use std::fmt;

/// An operand as a problem asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// The element type.
    pub dtype: DType,
    /// Elements from the base pointer.
    pub len: u64,
}

/// What every problem tells of itself, whatever the operation.
pub trait Problem: Clone + PartialEq + fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// The input: at least so many elements from the base pointer.
    fn input(&self) -> Operand;
    /// The second input, where the problem has one: at least so many elements from the base pointer.
    fn second_input(&self) -> Option<Operand> {
        None
    }
    /// The output: exactly so many elements.
    fn output(&self) -> Operand;
    /// The least bytes any implementation moves: every element of each input once, every output element once.
    fn bytes(&self) -> u64;
}

/// An operation: its problem type, its operands, and its ladder of rungs.
pub trait Op: Sized + Send + Sync + 'static {
    /// Name in the command line and in records, for instance `reduce`.
    const NAME: &'static str;
    /// What is asked: checked when built, independent of any device.
    type Problem: Problem;
    /// What a CUDA rung supplies to the op's one lowering: numbers, not code.
    type Schedule: Copy + fmt::Debug + Send + Sync;
    /// What a CPU rung supplies: a function over the op's problem and named host operands.
    type HostBody: Copy + Send + Sync;
    /// Named operands in device memory.
    type DeviceOperands<'a>;

    /// Chooses the rung and its numbers for a problem on a device, and says why. Pure: needs no device.
    ///
    /// # Errors
    /// [`crate::Error::NotClaimed`] if no rung of the device is for the problem.
    fn plan(problem: &Self::Problem, caps: &Caps) -> Result<Plan<Self>>;

    /// Runs a CPU rung's body on the input, the second one where the problem has it ([`Problem::second_input`]), and the
    /// output.
    ///
    /// # Errors
    /// [`crate::Error::DTypeMismatch`], [`crate::Error::LengthMismatch`].
    fn run_on_host(
        body: Self::HostBody,
        problem: &Self::Problem,
        input: HostSlice<'_>,
        second: Option<HostSlice<'_>>,
        output: HostSliceMut<'_>,
    ) -> Result<()>;

    /// Names the input, the second one where the problem has it, and the output in device memory.
    fn device_operands<'a>(
        input: DeviceRef<'a>,
        second: Option<DeviceRef<'a>>,
        output: DeviceMut<'a>,
    ) -> Self::DeviceOperands<'a>;

    /// THE list of rungs, in the order they are climbed: CPU rungs, then CUDA rungs.
    fn ladder() -> &'static [Rung<Self>];

    /// Whether the rung is for this problem; the error says which claim is missing.
    ///
    /// # Errors
    /// [`crate::Error::NotClaimed`].
    fn claim(rung: &Rung<Self>, problem: &Self::Problem) -> Result<()>;

    /// Checks device operands against the problem and puts them in the order in which programs name them.
    ///
    /// # Errors
    /// [`crate::Error::DTypeMismatch`], [`crate::Error::LengthMismatch`].
    fn bind<'a>(problem: &Self::Problem, operands: Self::DeviceOperands<'a>) -> Result<Bindings<'a>>;

    /// Turns a CUDA rung's numbers into launches for a problem on a device. Pure: needs no device.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] for a block size the rung cannot use.
    fn lower(
        rung: &'static Rung<Self>,
        schedule: &Self::Schedule,
        problem: &Self::Problem,
        caps: &CudaCaps,
        tuning: Tuning,
    ) -> Result<Program>;
}
