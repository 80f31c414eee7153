//! Reduction: many elements to one value by an associative operator, over a whole array or along a set of axes. Operators of the caller's own:
//! [`reduce_with`].

mod api;
#[cfg(feature = "cpu")]
mod cpu;
mod ladder;
pub mod operators;
pub mod oracle;
mod plan;
mod problem;
pub(crate) mod simd;
mod user;

#[cfg(feature = "cpu")]
pub(crate) use simd::chunk;
#[cfg(feature = "cpu")]
#[doc(hidden)]
pub use simd::{read_ceiling, vector_instructions};

pub use api::{
    ReduceDevice, Reduced, argmax, argmin, logsumexp, max, mean, min, nan_max, nan_min, prod, reduce, reduce_with_rung,
    run_on_host, run_plan, sum,
};
#[doc(hidden)]
pub use plan::state_sizes;
pub use plan::{Schedule, plan};
pub use problem::{ReduceDeviceOperands, ReduceOperands, ReduceProblem};
pub use user::reduce_with;
#[cfg(feature = "cpu")]
pub(crate) use user::run_user;

use crate::device::caps::{Caps, CudaCaps};
use crate::error::Result;
use crate::flow::{Bindings, DeviceMut, DeviceRef, HostSlice, HostSliceMut, Op, Operand, Plan, Problem, Program, Rung, Tuning};

/// The reduction operation.
#[derive(Debug)]
pub enum Reduce {}

/// A CPU rung: reduces the operands, which were checked against the problem.
pub type HostBody = fn(&ReduceProblem, ReduceOperands<'_>) -> Result<()>;
/// A rung of the reduction ladder.
pub type ReduceRung = Rung<Reduce>;
/// A plan of a reduction.
pub type ReducePlan = Plan<Reduce>;

impl Op for Reduce {
    const NAME: &'static str = "reduce";
    type Problem = ReduceProblem;
    type Schedule = Schedule;
    type HostBody = HostBody;
    type DeviceOperands<'a> = ReduceDeviceOperands<'a>;

    fn ladder() -> &'static [ReduceRung] {
        ladder::LADDER
    }

    fn plan(problem: &ReduceProblem, caps: &Caps) -> Result<ReducePlan> {
        plan::plan(problem, caps)
    }

    fn run_on_host(
        body: HostBody,
        problem: &ReduceProblem,
        input: HostSlice<'_>,
        _: Option<HostSlice<'_>>,
        output: HostSliceMut<'_>,
    ) -> Result<()> {
        problem.check_operands((input.dtype(), input.len() as u64), (output.dtype(), output.len() as u64))?;
        body(problem, ReduceOperands { input, output })
    }

    fn device_operands<'a>(input: DeviceRef<'a>, _: Option<DeviceRef<'a>>, output: DeviceMut<'a>) -> ReduceDeviceOperands<'a> {
        ReduceDeviceOperands { input, output }
    }

    fn claim(rung: &ReduceRung, problem: &ReduceProblem) -> Result<()> {
        plan::claim(rung, problem)
    }

    fn bind<'a>(problem: &ReduceProblem, operands: Self::DeviceOperands<'a>) -> Result<Bindings<'a>> {
        let ReduceDeviceOperands { input, output } = operands;
        problem.check_operands((input.dtype(), input.len()), (output.dtype(), output.len()))?;
        let mut bindings = Bindings::default();
        bindings.inputs[0] = Some(input);
        bindings.outputs[0] = Some(output);
        Ok(bindings)
    }

    fn lower(
        rung: &'static ReduceRung,
        schedule: &Schedule,
        problem: &ReduceProblem,
        caps: &CudaCaps,
        tuning: Tuning,
    ) -> Result<Program> {
        plan::lower(rung, schedule, problem, caps, tuning)
    }
}

impl Problem for ReduceProblem {
    fn input(&self) -> Operand {
        Operand { dtype: self.dtype(), len: self.required_len() }
    }

    fn output(&self) -> Operand {
        Operand { dtype: self.output_dtype(), len: self.shape().outputs }
    }

    fn bytes(&self) -> u64 {
        self.bytes()
    }
}
