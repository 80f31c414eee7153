//! Typed errors: each names the argument, what came, and what is allowed or what to do next.

use crate::types::{DType, Operator};

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong. Everything a caller can get wrong is found before anything runs; nothing is half-written.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operator has no answer for zero elements (min, max, argmin, argmax).
    #[error("`{argument}` is empty: {operator} of nothing is undefined; pass at least one element along the reduced axes")]
    EmptyInput {
        /// The argument's name.
        argument: &'static str,
        /// The operator asked for.
        operator: Operator,
    },
    /// The operator is not defined for the dtype.
    #[error("`{argument}` has dtype {got}, but {operator} takes {allowed}")]
    UnsupportedDType {
        /// The argument's name.
        argument: &'static str,
        /// The operator asked for.
        operator: Operator,
        /// The dtype that came.
        got: DType,
        /// The dtypes that are allowed, in words.
        allowed: String,
    },
    /// A typed view was asked of memory that holds another dtype.
    #[error("`{argument}` has dtype {got}, but {expected} is needed")]
    DTypeMismatch {
        /// The argument's name.
        argument: &'static str,
        /// What came.
        got: DType,
        /// What is needed.
        expected: DType,
    },
    /// An axis is outside the shape, or named twice.
    #[error("`axes` names axis {axis}, but the shape has {rank} axes: allowed are {lowest}..={highest}, each once", lowest = -(*rank as i64), highest = (*rank as i64 - 1).max(0))]
    InvalidAxis {
        /// The axis that came.
        axis: i64,
        /// The number of axes of the shape.
        rank: usize,
    },
    /// A length does not match.
    #[error("`{argument}` has {got} {unit}, but {expected} are needed")]
    LengthMismatch {
        /// The argument's name.
        argument: &'static str,
        /// What came.
        got: u64,
        /// What is needed.
        expected: u64,
        /// The unit of both numbers.
        unit: &'static str,
    },
    /// A layout reaches outside its memory, or cannot be described in 64 bits.
    #[error("`{argument}`: {problem}")]
    InvalidLayout {
        /// The argument's name.
        argument: &'static str,
        /// What is wrong, with the numbers.
        problem: String,
    },
    /// A parameter has a value that is not allowed.
    #[error("`{argument}` is {got}, but {allowed}")]
    InvalidArgument {
        /// The argument's name.
        argument: &'static str,
        /// What came.
        got: String,
        /// What is allowed.
        allowed: String,
    },
    /// A pointer is not aligned to its element.
    #[error("`{argument}` at address {address:#x} is not aligned to its element of {alignment} bytes")]
    Misaligned {
        /// The argument's name.
        argument: &'static str,
        /// The address that came.
        address: u64,
        /// The alignment that is needed, in bytes.
        alignment: u64,
    },
    /// The rung does not claim this problem.
    #[error("rung {rung} does not claim this problem: {why}")]
    NotClaimed {
        /// The rung's full name, `op/number`.
        rung: String,
        /// Which claim is missing.
        why: String,
    },
    /// No rung with that name.
    #[error("there is no rung `{name}`; known are {known}")]
    UnknownRung {
        /// What came.
        name: String,
        /// The known names.
        known: String,
    },
    /// A device, its driver or its compiler is missing or too old.
    #[error("{what} is not available: {why}. Next step: {next_step}")]
    Unavailable {
        /// What is missing.
        what: &'static str,
        /// Why we think so.
        why: String,
        /// What the user can do.
        next_step: String,
    },
    /// A driver call failed.
    #[error("{call} failed ({asked}): {text}")]
    Driver {
        /// The call's name.
        call: &'static str,
        /// What was asked of it.
        asked: String,
        /// The driver's own text.
        text: String,
    },
    /// A kernel did not compile.
    #[error("kernel {kernel} did not compile for {target}: {log}")]
    Compile {
        /// The kernel's expression.
        kernel: String,
        /// The target architecture.
        target: String,
        /// The compiler's log.
        log: String,
    },
    /// An operator of the caller's own is not what it claims to be.
    #[error("operator `{operator}`: {law} does not hold: {example}")]
    OperatorLaw {
        /// The operator's name.
        operator: String,
        /// What should hold.
        law: &'static str,
        /// The elements and outputs that show it.
        example: String,
    },
    /// The device reported a fault through the error word.
    #[error("the device reported `{fault}` in {kernel}; its output must not be used")]
    Device {
        /// The rung that ran.
        kernel: String,
        /// What the device reported.
        fault: &'static str,
    },
    /// The simulator saw a kernel do what no device orders or allows, whatever came out.
    #[error("{rung} is faulty: {fault}")]
    FaultyKernel {
        /// The rung that ran.
        rung: String,
        /// The first fault: file, line, threads.
        fault: String,
    },
}
