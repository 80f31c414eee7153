//! What is asked of a rung: the list of cases.

/// How many cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A few seconds on two cores.
    Quick,
    /// A pairwise covering of every axis.
    Full,
    /// Beyond 2^31 elements; devices that make their own data only.
    Huge,
}
