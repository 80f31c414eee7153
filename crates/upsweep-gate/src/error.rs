//! What can stop the judge. A rung that gives a wrong answer is not an error of the judge: it is a
//! [`Rejection`], which is a result.

use crate::record::RecordError;
use crate::verify::Rejection;

/// The result of everything in this crate.
pub type Result<T, E = GateError> = std::result::Result<T, E>;

/// What can go wrong while judging or timing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// The library refused: a wrong argument, a missing device, a failed driver call.
    #[error(transparent)]
    Library(#[from] upsweep::Error),
    /// A record cannot be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
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
    /// The rung did not pass, so there is nothing to time.
    #[error("{0}")]
    Rejected(Box<Rejection>),
    /// A verification of one device was used to time another.
    #[error("verified on {verified}, but the time was asked of {asked}: verify on the device that is timed")]
    OtherDevice {
        /// Where it was verified.
        verified: String,
        /// Where it was to be timed.
        asked: String,
    },
    /// A figure that cannot be: above the peak, a zero or backward time, no samples.
    #[error("error of measurement: {0}")]
    Measurement(String),
}
