//! Softmax, log_softmax and logsumexp of the rows of an array, along any axis of any strides.
//!
//! | question | answer |
//! |---|---|
//! | NaN in a row | the row is NaN, wherever it stands |
//! | +inf in a row | NaN (softmax, log_softmax); +inf (logsumexp) |
//! | -inf among other elements | exactly 0 (softmax), -inf (log_softmax) |
//! | nothing but -inf | NaN, or what [`Masked::Zero`] says; -inf (logsumexp) |
//! | rows of no elements | an empty output; -inf (logsumexp) |
//! | f16, bf16 | computed in f32, rounded once |
//! | tiny probabilities | below 2^-126 they may be flushed to zero (f64: 2^-1022) |
//! | determinism | the same bits in every run; a row's bits do not depend on the other rows |
//! | in place | softmax and log_softmax of contiguous arrays |
//!
//! [`OnlineState`] is the state of a part of a row, and how parts merge.

mod api;
#[cfg(feature = "cpu")]
mod cpu;
mod ladder;
mod online;
pub mod oracle;
mod plan;
mod problem;
#[cfg(feature = "cpu")]
mod simd;

pub use api::{
    SoftmaxDevice, Softmaxed, along, log_softmax, log_softmax_in_place, logsumexp, run_on_host, run_plan, softmax,
    softmax_in_place, softmax_with_rung,
};
#[doc(inline)]
pub use online::OnlineState;
#[doc(hidden)]
pub use plan::state_sizes;
pub use plan::{Schedule, plan};
pub use problem::{DTYPES, Masked, SoftmaxDeviceOperands, SoftmaxKind, SoftmaxOperands, SoftmaxProblem};

use crate::device::caps::{Caps, CudaCaps};
use crate::error::Result;
use crate::flow::{Bindings, DeviceMut, DeviceRef, HostSlice, HostSliceMut, Op, Operand, Plan, Problem, Program, Rung, Tuning};

/// The softmax operation.
#[derive(Debug)]
pub enum Softmax {}

/// A CPU rung: computes the outputs from operands, which it checks against the problem.
pub type HostBody = fn(&SoftmaxProblem, SoftmaxOperands<'_>) -> Result<()>;
/// A rung of the softmax ladder.
pub type SoftmaxRung = Rung<Softmax>;
/// A plan of a softmax.
pub type SoftmaxPlan = Plan<Softmax>;

impl Op for Softmax {
    const NAME: &'static str = "softmax";
    type Problem = SoftmaxProblem;
    type Schedule = Schedule;
    type HostBody = HostBody;
    type DeviceOperands<'a> = SoftmaxDeviceOperands<'a>;

    fn ladder() -> &'static [SoftmaxRung] {
        ladder::LADDER
    }

    fn plan(problem: &SoftmaxProblem, caps: &Caps) -> Result<SoftmaxPlan> {
        plan::plan(problem, caps)
    }

    fn run_on_host(
        body: HostBody,
        problem: &SoftmaxProblem,
        input: HostSlice<'_>,
        _: Option<HostSlice<'_>>,
        output: HostSliceMut<'_>,
    ) -> Result<()> {
        problem.check_operands((input.dtype(), input.len() as u64), (output.dtype(), output.len() as u64))?;
        body(problem, SoftmaxOperands { input, output })
    }

    fn device_operands<'a>(input: DeviceRef<'a>, _: Option<DeviceRef<'a>>, output: DeviceMut<'a>) -> SoftmaxDeviceOperands<'a> {
        SoftmaxDeviceOperands { input, output }
    }

    fn claim(rung: &SoftmaxRung, problem: &SoftmaxProblem) -> Result<()> {
        plan::claim(rung, problem)
    }

    fn bind<'a>(problem: &SoftmaxProblem, operands: Self::DeviceOperands<'a>) -> Result<Bindings<'a>> {
        let SoftmaxDeviceOperands { input, output } = operands;
        problem.check_operands((input.dtype(), input.len()), (output.dtype(), output.len()))?;
        problem.check_overlap(input.address(), output.address())?;
        let mut bindings = Bindings::default();
        bindings.inputs[0] = Some(input);
        bindings.outputs[0] = Some(output);
        Ok(bindings)
    }

    fn lower(
        rung: &'static SoftmaxRung,
        schedule: &Schedule,
        problem: &SoftmaxProblem,
        caps: &CudaCaps,
        tuning: Tuning,
    ) -> Result<Program> {
        plan::lower(rung, schedule, problem, caps, tuning)
    }
}

impl Problem for SoftmaxProblem {
    fn input(&self) -> Operand {
        Operand { dtype: self.dtype(), len: self.required_len() }
    }

    fn output(&self) -> Operand {
        Operand { dtype: self.output_dtype(), len: self.output_len() }
    }

    fn bytes(&self) -> u64 {
        self.bytes()
    }
}
