//! The state of online softmax: a maximum, and the sum of exponentials relative to it.

/// What is known of a part of a row: its largest element, and the sum of `exp(x - max)` over it. The state of a whole
/// row is the [`merge`](OnlineState::merge) of the states of its parts, in any tree and any order. It is the state of
/// the reduction operator logsumexp, and the (m, l) of attention.
///
/// # Why the merge is associative and commutative
/// Let a part's *mass* be `M = sum(exp(x))`, a real number that is too large or too small for floating point. Masses of
/// parts add, and addition is associative and commutative. A state writes the mass as a product, `M = exp(max) * sum`,
/// with `max` chosen so that `1 <= sum <= count`; the merge brings both summands to the larger maximum,
/// `exp(a.max - m)` and `exp(b.max - m)` being at most 1, and adds:
/// `exp(m) * (a.sum * exp(a.max - m) + b.sum * exp(b.max - m)) = Ma + Mb`. So a merge is an addition of masses in other
/// clothes, and the maximum is associative and commutative, too. Swapping the operands gives the same bits; another tree
/// differs by roundings alone.
///
/// # Why empty parts need a guard
/// No elements have mass 0 and maximum -inf, and so has a part of only -inf: a masked tile, or a thread beyond the end of
/// a short row. Merging two of them, the formula has `exp(-inf - -inf)`, which is NaN, and the NaN poisons the whole row.
/// Where a maximum equals the merged one the factor is 1 by definition, so no difference is taken. (A finite stand-in
/// for -inf, say -1e4, is no way out: rows of smaller logits exist.)
///
/// ```
/// use upsweep::ops::softmax::OnlineState;
/// let row = [1.0, -2.0, 3.0, 0.5];
/// let (left, right) = row.split_at(2);
/// let state = |part: &[f64]| part.iter().fold(OnlineState::empty(), |s, &x| s.push(x));
/// let merged = state(left).merge(state(right));
/// assert_eq!(merged.max, 3.0);
/// assert!((merged.finish() - state(&row).finish()).abs() < 1e-15);
/// assert_eq!(OnlineState::empty().merge(OnlineState::empty()), OnlineState::empty());
/// ```
pub use crate::ops::reduce::operators::MaxSum as OnlineState;

impl OnlineState {
    /// Nothing seen: -inf and 0.
    #[inline(always)]
    pub fn empty() -> OnlineState {
        OnlineState::EMPTY
    }

    /// The state with one more element.
    #[inline(always)]
    #[must_use]
    pub fn push(self, x: f64) -> OnlineState {
        self.merge(OnlineState { max: x, sum: 1.0 })
    }

    /// The logarithm of the mass: logsumexp of everything seen. -inf for nothing, +inf if +inf was seen, NaN for NaN.
    #[inline(always)]
    pub fn finish(self) -> f64 {
        if self.max.is_finite() { self.max + self.sum.ln() } else { self.max }
    }

    /// The softmax of an element `x` of what was seen. NaN if NaN or +inf was seen, or nothing but -inf.
    #[inline(always)]
    pub fn probability(self, x: f64) -> f64 {
        if self.max.is_finite() { (x - self.max).exp() / self.sum } else { f64::NAN }
    }

    /// The logarithm of [`OnlineState::probability`], accurate for large logits.
    #[inline(always)]
    pub fn log_probability(self, x: f64) -> f64 {
        if self.max.is_finite() { (x - self.max) - self.sum.ln() } else { f64::NAN }
    }
}
