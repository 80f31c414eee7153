//! Operators of the caller's own, for reductions and scans on every device.
//!
//! An operator is a state, and four pieces: `lift` makes the state of one element, `combine` the state of two stretches of
//! elements that follow each other, `finish` the output of a state, and `identity` is the state of no elements. On the CPU
//! the pieces are Rust closures; for CUDA devices the same four are given once more as C++ text ([`DeviceText`]).
//!
//! Combining must be associative, and the identity neutral on both sides: results are combined in any grouping, and where
//! a thread has no element it has the identity. It need not commute: elements keep their order. What is claimed here can be
//! tested: [`UserOperator::check`] for the laws, `UserOperator::check_on` for a device's form against the closures.
//!
//! The mean and the variance in one pass, by Chan's way of joining two stretches:
//!
//! ```
//! use upsweep::device::cpu::Cpu;
//! use upsweep::ops::{reduce, scan, user::UserOperator};
//!
//! // Count, mean, and the sum of squared distances from the mean.
//! let variance = UserOperator::new(
//!     "variance",
//!     [0.0f64; 3],
//!     |x: f32| [1.0, f64::from(x), 0.0],
//!     |a: [f64; 3], b: [f64; 3]| {
//!         if a[0] == 0.0 || b[0] == 0.0 {
//!             return if a[0] == 0.0 { b } else { a };
//!         }
//!         let (count, distance) = (a[0] + b[0], b[1] - a[1]);
//!         [count, a[1] + distance * b[0] / count, a[2] + b[2] + distance * distance * a[0] * b[0] / count]
//!     },
//!     |state| state[2] / state[0],
//! )?
//! .commutative();
//! let x = [2.0f32, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
//! variance.check(&x, 1e-12)?;
//!
//! let cpu = Cpu::new();
//! let all = reduce::reduce_with(&cpu, &variance, &x[..], None, None)?;
//! assert_eq!(all.values, [4.0]);
//! let so_far = scan::scan_with(&cpu, &variance, scan::ScanOptions::default(), &x[..], None, None)?;
//! assert_eq!(so_far.values[..2], [0.0, 1.0]);
//! # Ok::<(), upsweep::Error>(())
//! ```
//!
//! [`examples`] has operators with their C++ text, one of which does not commute.

mod check;
pub mod examples;
// Without the CPU device only the pieces themselves are called, by the tests of laws.
#[cfg_attr(not(feature = "cpu"), allow(dead_code))]
mod host;
mod source;

pub use source::DeviceText;

use crate::error::{Error, Result};
#[cfg(feature = "cpu")]
use crate::flow::{HostSlice, HostSliceMut};
#[cfg(feature = "cpu")]
use crate::ops::{reduce, scan};
use crate::types::{DType, Element};
use host::{Closures, HostForm};
#[cfg(feature = "cpu")]
pub(crate) use host::{STRIPS, chunk_total, fronts};
use std::fmt;
use std::sync::Arc;

/// A state: plain data of one to eight 32-bit words, as arrays of numbers are, and structs that derive [`bytemuck::Pod`].
pub trait State: bytemuck::Pod + Send + Sync {}
impl<S: bytemuck::Pod + Send + Sync> State for S {}

/// Most 32-bit words of a state.
pub const MOST_WORDS: usize = 8;

/// An operator of the caller's own over elements `T`, with state `S` and outputs `R`. Cheap to clone.
///
/// An exponential average, `h -> 0.5 * h + 0.5 * x`, as affine maps that follow each other, on every device:
///
/// ```
/// use upsweep::device::cpu::Cpu;
/// use upsweep::ops::scan::{ScanOptions, scan_with};
/// use upsweep::ops::user::{DeviceText, UserOperator};
/// let average = UserOperator::new(
///     "average",
///     [1.0f32, 0.0],
///     |x: f32| [0.5, 0.5 * x],
///     |a: [f32; 2], b: [f32; 2]| [a[0] * b[0], a[1] * b[0] + b[1]],
///     |state| state[1],
/// )?
/// .with_device(&DeviceText {
///     state: "float factor, sum;",
///     lift: "return {0.5f, 0.5f * x};",
///     combine: "return {a.factor * b.factor, a.sum * b.factor + b.sum};",
///     finish: "return state.sum;",
/// });
/// average.check(&[1.0, -2.0, 0.25, 3.0], 1e-6)?;
/// let x = [4.0f32, 4.0, 0.0, 8.0];
/// let averages = scan_with(&Cpu::new(), &average, ScanOptions::default(), &x[..], None, None)?;
/// assert_eq!(averages.values, [2.0, 3.0, 1.5, 4.75]);
/// # Ok::<(), upsweep::Error>(())
/// ```
pub struct UserOperator<T, S, R> {
    facts: Facts,
    identity: S,
    host: Arc<dyn HostForm<T, S, R>>,
}

/// What a problem needs to know of a user operator.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Facts {
    pub(crate) name: Arc<str>,
    pub(crate) input: DType,
    pub(crate) output: DType,
    pub(crate) state_bytes: u64,
    pub(crate) commutative: bool,
    /// The C++ struct, if there is one.
    pub(crate) device: Option<Arc<str>>,
}

impl<T: Element, S: State, R: Element> UserOperator<T, S, R> {
    /// An operator of the four pieces, for the CPU. The name, of up to 64 letters, digits, `_`, `-` and spaces, stands in
    /// errors and in the compiler's messages.
    ///
    /// `combine` is called on many threads and in any grouping; what the closures do besides is their own business.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a name of other characters, and for a state that is not one to eight 32-bit words.
    pub fn new(
        name: &str,
        identity: S,
        lift: impl Fn(T) -> S + Send + Sync + 'static,
        combine: impl Fn(S, S) -> S + Send + Sync + 'static,
        finish: impl Fn(S) -> R + Send + Sync + 'static,
    ) -> Result<Self> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ' ');
        if !(1..=64).contains(&name.len()) || !name.chars().all(allowed) {
            return Err(Error::InvalidArgument {
                argument: "name",
                got: format!("{name:?}"),
                allowed: "a name has 1 to 64 ASCII letters, digits, `_`, `-` and spaces".into(),
            });
        }
        let bytes = size_of::<S>();
        if !bytes.is_multiple_of(4) || !(1..=MOST_WORDS).contains(&(bytes / 4)) || align_of::<S>() > 8 {
            return Err(Error::InvalidArgument {
                argument: "identity",
                got: format!("a state of {bytes} bytes that is aligned to {}", align_of::<S>()),
                allowed: format!("a state is 1 to {MOST_WORDS} words of 32 bits, aligned to 8 bytes at most"),
            });
        }
        let facts = Facts {
            name: name.into(),
            input: T::DTYPE,
            output: R::DTYPE,
            state_bytes: bytes as u64,
            commutative: false,
            device: None,
        };
        Ok(UserOperator { facts, identity, host: Arc::new(Closures { identity, lift, combine, finish }) })
    }

    /// The same operator, whose `combine(a, b)` is `combine(b, a)`: a CUDA device may reduce in lanes that take turns, which
    /// is faster, and reduces along axes. Scans keep the order either way.
    pub fn commutative(mut self) -> Self {
        self.facts.commutative = true;
        self
    }

    /// The same operator with its C++ form, for CUDA devices.
    ///
    /// The text is compiled with the kernels when a plan is first prepared, and kept in the cache of kernels under a key
    /// that holds it. What does not compile gives [`Error::Compile`] with the compiler's messages, which count the lines of
    /// each piece and name operator and piece.
    pub fn with_device(mut self, text: &DeviceText<'_>) -> Self {
        let text = source::of(&self.facts, bytemuck::bytes_of(&self.identity), text);
        self.facts.device = Some(text.into());
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.facts.name
    }

    /// The identity.
    pub fn identity(&self) -> S {
        self.identity
    }

    /// Whether it was said to commute.
    pub fn is_commutative(&self) -> bool {
        self.facts.commutative
    }

    /// The C++ struct that kernels are compiled with: [`DeviceText`] in the shape that they ask for.
    pub fn device_source(&self) -> Option<&str> {
        self.facts.device.as_deref()
    }

    pub(crate) fn host(&self) -> &dyn HostForm<T, S, R> {
        &*self.host
    }

    /// What a problem keeps.
    pub(crate) fn user(&self) -> User {
        User(Arc::new(self.clone()))
    }
}

impl<T, S: Copy, R> Clone for UserOperator<T, S, R> {
    fn clone(&self) -> Self {
        UserOperator { facts: self.facts.clone(), identity: self.identity, host: self.host.clone() }
    }
}

impl<T, S, R> fmt::Debug for UserOperator<T, S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operator `{}` of {}", self.facts.name, self.facts.input)
    }
}

/// An operator whose types a problem does not know.
pub(crate) trait Erased: fmt::Debug + Send + Sync {
    fn facts(&self) -> &Facts;
    /// Where the closures lie: what tells two operators of the same facts apart.
    fn address(&self) -> usize;
    /// Scans operands that were checked; `in_turn`: one element after the other.
    #[cfg(feature = "cpu")]
    fn scan(&self, problem: &scan::ScanProblem, input: HostSlice<'_>, output: HostSliceMut<'_>, in_turn: bool) -> Result<()>;
    /// Reduces operands that were checked; `in_turn`: one element after the other.
    #[cfg(feature = "cpu")]
    fn reduce(&self, problem: &reduce::ReduceProblem, operands: reduce::ReduceOperands<'_>, in_turn: bool) -> Result<()>;
}

impl<T: Element, S: State, R: Element> Erased for UserOperator<T, S, R> {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.host).cast::<()>() as usize
    }

    #[cfg(feature = "cpu")]
    fn scan(&self, problem: &scan::ScanProblem, input: HostSlice<'_>, output: HostSliceMut<'_>, in_turn: bool) -> Result<()> {
        scan::run_user(self, problem, input, output, in_turn)
    }

    #[cfg(feature = "cpu")]
    fn reduce(&self, problem: &reduce::ReduceProblem, operands: reduce::ReduceOperands<'_>, in_turn: bool) -> Result<()> {
        reduce::run_user(self, problem, operands, in_turn)
    }
}

/// A problem's user operator.
#[derive(Clone, Debug)]
pub(crate) struct User(Arc<dyn Erased>);

impl User {
    pub(crate) fn facts(&self) -> &Facts {
        self.0.facts()
    }

    #[cfg(feature = "cpu")]
    pub(crate) fn erased(&self) -> &dyn Erased {
        &*self.0
    }

    /// The C++ text, or why there are no kernels.
    pub(crate) fn device(&self) -> std::result::Result<&Arc<str>, String> {
        let facts = self.facts();
        facts.device.as_ref().ok_or_else(|| format!("operator `{}` has no C++ text (`UserOperator::with_device`)", facts.name))
    }
}

impl PartialEq for User {
    fn eq(&self, other: &User) -> bool {
        self.0.address() == other.0.address() && self.facts() == other.facts()
    }
}
