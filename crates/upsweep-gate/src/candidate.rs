//! What is judged. A real rung and a wrong kernel are the same thing to the gate: a rung with claims, planned the same
//! way, run by the same target, compared by the same comparator.

use upsweep::Result;
use upsweep::device::caps::{Caps, CudaCaps};
use upsweep::flow::{Op, Plan, Program, Tuning};
use upsweep::ops::reduce::{Reduce, ReducePlan, ReduceProblem, ReduceRung};

/// A lowering of its own, for wrong kernels whose launches no [`upsweep::ops::reduce::Schedule`] describes.
pub type Lowering = fn(&ReduceProblem, &CudaCaps, Tuning) -> Result<Program>;

/// A rung to be judged.
#[derive(Clone, Copy)]
pub struct Candidate {
    /// The rung: name, claims, determinism, expectation, body.
    pub rung: &'static ReduceRung,
    /// Replaces the op's lowering.
    pub lowering: Option<Lowering>,
}

impl Candidate {
    /// A rung of the ladder.
    pub fn real(rung: &'static ReduceRung) -> Candidate {
        Candidate { rung, lowering: None }
    }

    /// The rungs of a device's ladder, in order.
    pub fn ladder(caps: &Caps) -> impl Iterator<Item = Candidate> {
        let kind = caps.kind();
        Reduce::ladder().iter().filter(move |rung| rung.device() == kind).map(Candidate::real)
    }

    /// `number-name`.
    pub fn name(&self) -> String {
        rung_name(self.rung)
    }

    /// The plan of this rung for a problem.
    ///
    /// # Errors
    /// [`upsweep::Error::NotClaimed`] if the rung is not for the problem or the device.
    pub fn plan(&self, problem: &ReduceProblem, caps: &Caps, tuning: Tuning) -> Result<ReducePlan> {
        match (self.lowering, caps) {
            (Some(lowering), Caps::Cuda(cuda)) => {
                Reduce::claim(self.rung, problem)?;
                let program = Some(lowering(problem, cuda, tuning)?);
                Ok(Plan { problem: problem.clone(), rung: self.rung, why: "a wrong kernel".into(), program })
            }
            _ => Plan::with_rung(problem, caps, self.rung, tuning, "asked for by name".into()),
        }
    }
}

/// `number-name` of a rung.
pub fn rung_name(rung: &ReduceRung) -> String {
    format!("{}-{}", rung.number, rung.name)
}
