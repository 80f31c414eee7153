//! What the judge needs to know of an operation: which questions to ask, which data, which answers, which faults.
//!
//! Everything else in this crate is the same for every operation. A new one implements [`Judged`] in a module of its own
//! (`reduce`, `scan`, `softmax`) and is then verified, timed, compared and checked like the others.

use crate::candidate::Candidate;
use crate::cases::{Form, Level};
use crate::error::{GateError, Result};
use crate::families::Family;
use crate::goals::Goal;
use crate::points::Point;
pub use crate::record::Traffic;
use crate::target::Input;
use std::fmt;
use upsweep::device::caps::DeviceKind;
use upsweep::flow::{HostSlice, Op, Rung};
use upsweep::ops::reduce::oracle::Expected;
use upsweep::types::DType;

/// An operation that can be judged.
pub trait Judged: Op {
    /// One question.
    type Case: Ask<Self>;

    /// Names of the op's operators, in the command line's words.
    fn operators() -> Vec<&'static str>;

    /// One operator of each kind of state: what a benchmark times where nothing is asked.
    fn typical_operators() -> &'static [&'static str];

    /// The points of a benchmark on a CPU, where nothing is asked.
    fn cpu_sweep() -> Vec<Point>;

    /// The points of a benchmark on a CUDA device, where nothing is asked.
    fn cuda_sweep() -> Vec<Point>;

    /// The figures that the project has set itself on an H200.
    fn goals() -> Vec<Goal> {
        vec![]
    }

    /// Whether a name asks for something that [`Judged::problem_at`] knows: an operator, or a form of one.
    fn can_be_timed(name: &str) -> bool {
        Self::operators().contains(&name)
    }

    /// The operator of a problem, by its name.
    fn operator_of(problem: &Self::Problem) -> &'static str;

    /// Input elements that a problem reads, for sizes in tables.
    fn elements(problem: &Self::Problem) -> u64;

    /// What a problem moves.
    fn traffic(problem: &Self::Problem) -> Traffic;

    /// Whether a rung's claims leave room for a family of data; if not, why not.
    ///
    /// # Errors
    /// Why not.
    fn takes_data(_rung: &Rung<Self>, _family: Family) -> std::result::Result<(), String> {
        Ok(())
    }

    /// The cases of a level; none for [`Level::Huge`].
    fn cases(level: Level) -> Vec<Self::Case>;

    /// Cases in which an order of operations that varies would show.
    fn determinism_cases(level: Level) -> Vec<Self::Case>;

    /// Cases beyond 2^31 elements, with data and answers in closed form.
    fn huge_cases() -> Vec<Huge<Self>>;

    /// Every fault that must be seen.
    fn faults() -> Vec<Fault<Self>>;

    /// The CPU's forms of the faults.
    fn wrong_on_cpu() -> Vec<Candidate<Self>>;

    /// The CUDA forms of the faults.
    #[cfg(any(feature = "cuda", feature = "sim"))]
    fn wrong_on_cuda() -> Vec<Candidate<Self>>;

    /// The right answers for an input, and the second one where the problem has it, with their bounds.
    ///
    /// # Errors
    /// Mismatched operands.
    fn reference(problem: &Self::Problem, input: HostSlice<'_>, second: Option<HostSlice<'_>>) -> upsweep::Result<Vec<Expected>>;

    /// The second input of a problem that has one, for an input of a family of data, from a seed.
    ///
    /// # Errors
    /// What the library refuses.
    fn make_second(_problem: &Self::Problem, _family: Family, _seed: u64, _shift: u64) -> Result<Option<Input>> {
        Ok(None)
    }

    /// A problem's input, with its second one where it has it, from a family of data and a seed.
    ///
    /// # Errors
    /// A family that does not suit the problem.
    fn make(problem: &Self::Problem, family: Family, seed: u64, shift: u64) -> Result<Input>;

    /// Two families of data that a plan must be right on before it is timed; the first is timed.
    fn evidence(problem: &Self::Problem) -> [Family; 2];

    /// Problems on both sides of every choice that a lowering makes, for builds of every kernel without a device.
    ///
    /// # Errors
    /// None that a test has not excluded.
    fn lowering_problems() -> Result<Vec<Self::Problem>>;

    /// C++ types whose `State` the planner reckons with, and its bytes.
    fn state_sizes() -> Vec<(String, u64)>;

    /// The problem as other libraries are asked; `None` where their interface has no words for it.
    fn peer_problem(problem: &Self::Problem) -> Option<PeerProblem>;

    /// The point that is meant where only a number of elements is asked for.
    fn point_of_size(n: u64) -> Point {
        Point::whole(n)
    }

    /// The problem of a ladder or a benchmark at a point.
    ///
    /// # Errors
    /// An operator that does not exist, or does not take the dtype.
    fn problem_at(operator: &str, dtype: DType, point: &Point) -> Result<Self::Problem>;
}

/// A problem in the words of the peers' interface (`peers/README.md`).
#[derive(Clone, Debug, PartialEq)]
pub struct PeerProblem {
    /// For instance `reduce sum` or `scan inclusive sum`.
    pub what: String,
    /// Rows; 1 for a whole array.
    pub rows: u64,
    /// Elements of a row.
    pub columns: u64,
    /// What the peer writes: 16-bit sums are asked for in f32.
    pub output_dtype: DType,
}

/// One question: which problem, on which data, at which address.
pub trait Ask<O: Judged>: Clone + fmt::Debug + fmt::Display + PartialEq {
    /// The problem.
    ///
    /// # Errors
    /// [`upsweep::Error`] for a case that no library call could ask.
    fn problem(&self) -> upsweep::Result<O::Problem>;

    /// The operator's name.
    fn operator(&self) -> &'static str;

    /// The input's dtype.
    fn dtype(&self) -> DType;

    /// The data.
    fn family(&self) -> Family;

    /// Elements between an aligned address and the base pointer.
    fn shift(&self) -> u64;

    /// Elements along the op's axis.
    fn length(&self) -> u64;

    /// How the elements lie.
    fn form(&self) -> Form;

    /// The output is the input's own memory, where the device can do so.
    fn in_place(&self) -> bool {
        false
    }

    /// The data, from a seed.
    ///
    /// # Errors
    /// [`crate::GateError`] for a case whose family does not suit it.
    fn input(&self, problem: &O::Problem, seed: u64) -> Result<Input> {
        O::make(problem, self.family(), seed, self.shift())
    }
}

/// A case beyond 2^31 elements. Element `i` of the input is `i mod period` as the dtype, but `marked` holds the dtype's
/// greatest value; outputs are compared in windows, with answers in closed form.
pub struct Huge<O: Judged> {
    /// The problem.
    pub problem: O::Problem,
    /// Period of the data.
    pub period: u64,
    /// Index of the single greatest element.
    pub marked: u64,
    /// First output and number of outputs of each window.
    pub windows: Vec<(u64, u64)>,
    /// The answer at an output.
    pub answer: fn(&Huge<O>, u64) -> Expected,
}

impl<O: Judged> Huge<O> {
    /// The answers of all windows, one after the other.
    pub fn expected(&self) -> Vec<Expected> {
        let outputs = self.windows.iter().flat_map(|(first, count)| *first..first + count);
        outputs.map(|output| (self.answer)(self, output)).collect()
    }
}

impl<O: Judged> fmt::Display for Huge<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.problem.fmt(f)
    }
}

/// A fault that kernels of this sort have had, and the case that shows it.
pub struct Fault<O: Judged> {
    /// Name; a device's form has the same.
    pub name: &'static str,
    /// What is wrong.
    pub fault: &'static str,
    /// Devices that must bring a form.
    pub forms: &'static [DeviceKind],
    /// The case that must reject it.
    pub case: O::Case,
    /// The case is run so often, on the same input, and the bits compared (faults that show by chance or by repetition).
    pub runs: u32,
}

/// The error for an operator that an operation does not have.
pub(crate) fn unknown_operator<O: Judged>(name: &str) -> GateError {
    GateError::InvalidArgument { argument: "operator", got: name.into(), allowed: O::operators().join(", ") }
}
