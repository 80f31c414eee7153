//! What is judged. A real rung and a wrong kernel are the same thing to the gate: a rung with claims, planned the same
//! way, run by the same target, compared by the same comparator.

use upsweep::Result;
use upsweep::device::caps::{Caps, CudaCaps};
use upsweep::flow::{Op, Plan, Program, Rung, Tuning};

/// A lowering of its own, for wrong kernels whose launches no schedule of the op describes.
pub type Lowering<O> = fn(&<O as Op>::Problem, &CudaCaps, Tuning) -> Result<Program>;

/// A rung to be judged.
pub struct Candidate<O: Op> {
    /// The rung: name, claims, determinism, expectation, body.
    pub rung: &'static Rung<O>,
    /// Replaces the op's lowering.
    pub lowering: Option<Lowering<O>>,
}

impl<O: Op> Clone for Candidate<O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O: Op> Copy for Candidate<O> {}

impl<O: Op> Candidate<O> {
    /// A rung of the ladder.
    pub fn real(rung: &'static Rung<O>) -> Candidate<O> {
        Candidate { rung, lowering: None }
    }

    /// The rungs of a device's ladder, in order.
    pub fn ladder(caps: &Caps) -> impl Iterator<Item = Candidate<O>> {
        let kind = caps.kind();
        O::ladder().iter().filter(move |rung| rung.device() == kind).map(Candidate::real)
    }

    /// `number-name`.
    pub fn name(&self) -> String {
        rung_name(self.rung)
    }

    /// The plan of this rung for a problem.
    ///
    /// # Errors
    /// [`upsweep::Error::NotClaimed`] if the rung is not for the problem or the device.
    pub fn plan(&self, problem: &O::Problem, caps: &Caps, tuning: Tuning) -> Result<Plan<O>> {
        match (self.lowering, caps) {
            (Some(lowering), Caps::Cuda(cuda)) => {
                O::claim(self.rung, problem)?;
                let program = Some(lowering(problem, cuda, tuning)?);
                Ok(Plan { problem: problem.clone(), rung: self.rung, why: "a wrong kernel".into(), program })
            }
            _ => Plan::with_rung(problem, caps, self.rung, tuning, "asked for by name".into()),
        }
    }
}

/// `number-name` of a rung.
pub fn rung_name<O: Op>(rung: &Rung<O>) -> String {
    format!("{}-{}", rung.number, rung.name)
}
