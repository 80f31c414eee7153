//! Scan (prefix sums and their kin): each output combines all elements up to its own, over a whole array or along an axis.
//!
//! ```
//! use upsweep::{device::cpu::Cpu, ops::scan};
//! let cpu = Cpu::new();
//! assert_eq!(scan::cumsum(&cpu, &[3u8, 1, 4, 1, 5][..])?, [3, 4, 8, 9, 14]);
//! assert_eq!(scan::cummax(&cpu, &[3.0f32, 1.0, 4.0][..])?, [3.0, 3.0, 4.0]);
//! # Ok::<(), upsweep::Error>(())
//! ```
//!
//! Scans of two inputs: [`linear_recurrence`] (`h[i] = a[i] * h[i-1] + b[i]`), and [`scan_by_key`] and [`scan_segments`],
//! which start anew at every segment. Operators of the caller's own: [`scan_with`].

mod api;
#[cfg(feature = "cpu")]
mod cpu;
mod ladder;
#[cfg(feature = "cpu")]
mod operators;
pub mod oracle;
mod plan;
mod problem;
#[cfg(feature = "cpu")]
mod recurrence;
#[cfg(feature = "cpu")]
mod simd;
mod user;

pub use api::{
    ScanDevice, Scanned, cummax, cummin, cumprod, cumsum, exclusive_sum, linear_recurrence, logcumsumexp, run_on_host, run_plan,
    run_plan_of_two, scan, scan_by_key, scan_segments, scan_with_rung,
};
#[cfg(feature = "cpu")]
pub use cpu::scan_in_place;
#[doc(hidden)]
pub use plan::state_sizes;
pub use plan::{Schedule, plan};
pub use problem::{OPERATORS, Scalar, ScanDeviceOperands, ScanKind, ScanOperands, ScanProblem, ScanSpec, Segments};
#[cfg(feature = "cpu")]
pub(crate) use user::run_user;
pub use user::{ScanOptions, scan_with};

use crate::device::caps::{Caps, CudaCaps};
use crate::error::Result;
use crate::flow::{Bindings, DeviceMut, DeviceRef, HostSlice, HostSliceMut, Op, Operand, Plan, Problem, Program, Rung, Tuning};

/// The scan operation.
#[derive(Debug)]
pub enum Scan {}

/// A CPU rung: scans the operands, which it checks against the problem.
pub type HostBody = fn(&ScanProblem, ScanOperands<'_>) -> Result<()>;
/// A rung of the scan ladder.
pub type ScanRung = Rung<Scan>;
/// A plan of a scan.
pub type ScanPlan = Plan<Scan>;

impl Op for Scan {
    const NAME: &'static str = "scan";
    type Problem = ScanProblem;
    type Schedule = Schedule;
    type HostBody = HostBody;
    type DeviceOperands<'a> = ScanDeviceOperands<'a>;

    fn ladder() -> &'static [ScanRung] {
        ladder::LADDER
    }

    fn plan(problem: &ScanProblem, caps: &Caps) -> Result<ScanPlan> {
        plan::plan(problem, caps)
    }

    fn run_on_host(
        body: HostBody,
        problem: &ScanProblem,
        input: HostSlice<'_>,
        second: Option<HostSlice<'_>>,
        output: HostSliceMut<'_>,
    ) -> Result<()> {
        body(problem, ScanOperands { input, second, output })
    }

    fn device_operands<'a>(input: DeviceRef<'a>, second: Option<DeviceRef<'a>>, output: DeviceMut<'a>) -> ScanDeviceOperands<'a> {
        ScanDeviceOperands { input, second, output }
    }

    fn claim(rung: &ScanRung, problem: &ScanProblem) -> Result<()> {
        plan::claim(rung, problem)
    }

    fn bind<'a>(problem: &ScanProblem, operands: Self::DeviceOperands<'a>) -> Result<Bindings<'a>> {
        let ScanDeviceOperands { input, second, output } = operands;
        let of = |memory: &DeviceRef<'_>| (memory.dtype(), memory.len());
        problem.check_operands(of(&input), second.as_ref().map(of), (output.dtype(), output.len()))?;
        let mut bindings = Bindings::default();
        bindings.inputs[0] = Some(input);
        bindings.inputs[1] = second;
        bindings.outputs[0] = Some(output);
        Ok(bindings)
    }

    fn lower(
        rung: &'static ScanRung,
        schedule: &Schedule,
        problem: &ScanProblem,
        caps: &CudaCaps,
        tuning: Tuning,
    ) -> Result<Program> {
        plan::lower(rung, schedule, problem, caps, tuning)
    }
}

impl Problem for ScanProblem {
    fn input(&self) -> Operand {
        Operand { dtype: self.dtype(), len: self.required_len() }
    }

    fn second_input(&self) -> Option<Operand> {
        self.second_input()
    }

    fn output(&self) -> Operand {
        Operand { dtype: self.output_dtype(), len: self.output_len() }
    }

    fn bytes(&self) -> u64 {
        self.bytes()
    }
}
