//! Tests of what an operator claims, on elements of the caller's choice.

use super::{State, UserOperator};
use crate::error::{Error, Result};
use crate::types::Element;

/// Elements that are combined in all triples; more are combined in neighbouring ones.
const ALL_TRIPLES: usize = 12;

/// States that stand in front of and behind others, so that what an output does not show shows in the next one.
const CONTEXTS: usize = 3;

/// A state, and the elements that it came from.
#[derive(Clone)]
struct Sample<S> {
    state: S,
    of: String,
}

impl<T: Element, S: State, R: Element> UserOperator<T, S, R> {
    /// Tests on `samples` that combining is associative, that the identity is neutral on both sides, and, if it was claimed,
    /// that combining commutes. It proves nothing, but a wrong operator seldom passes a dozen varied samples; put in those
    /// that are special: NaN, infinities, zeros, ties.
    ///
    /// Two states agree if their outputs do, also with other states in front or behind. Two outputs agree if they are equal
    /// or both NaN, or if they differ by at most `tolerance` times the larger of 1 and their magnitudes. An operator that
    /// does not round passes with 0.
    ///
    /// ```
    /// use upsweep::{Error, ops::user::UserOperator};
    /// let minus = UserOperator::new("minus", [0i32], |x: i32| [x], |a, b| [a[0].wrapping_sub(b[0])], |s| s[0])?;
    /// let error = minus.check(&[1, 2, 3], 0.0).unwrap_err();
    /// assert!(matches!(error, Error::OperatorLaw { .. }));
    /// assert!(error.to_string().contains("the identity is neutral")); // 0 - x is not x
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OperatorLaw`] with the elements that show it; [`Error::InvalidArgument`] for a tolerance that is NaN or
    /// negative.
    pub fn check(&self, samples: &[T], tolerance: f64) -> Result<()> {
        check_tolerance(tolerance)?;
        let lifted: Vec<Sample<S>> =
            samples.iter().map(|x| Sample { state: self.host().lift(*x), of: format!("{x:?}") }).collect();
        let contexts: Vec<S> = lifted.iter().take(CONTEXTS).map(|sample| sample.state).collect();
        let rule = |law, elements: String, left: S, right: S| match self.differ(left, right, &contexts, tolerance) {
            None => Ok(()),
            Some((a, b)) => Err(self.law(law, format!("for {elements} the outputs are {a:?} and {b:?}"))),
        };
        let combine = |a: S, b: S| self.host().combine(a, b);
        let identity = self.identity();
        rule("the identity is neutral", "no elements".into(), combine(identity, identity), identity)?;
        for Sample { state, of } in &lifted {
            rule("the identity is neutral", format!("the identity before {of}"), combine(identity, *state), *state)?;
            rule("the identity is neutral", format!("the identity behind {of}"), combine(*state, identity), *state)?;
        }
        let associative = |a: &Sample<S>, b: &Sample<S>, c: &Sample<S>| {
            let (left, right) = (combine(combine(a.state, b.state), c.state), combine(a.state, combine(b.state, c.state)));
            rule("combining is associative", format!("({}), ({}), ({})", a.of, b.of, c.of), left, right)?;
            if self.is_commutative() {
                let (ab, ba) = (combine(a.state, b.state), combine(b.state, a.state));
                rule("combining commutes", format!("({}), ({})", a.of, b.of), ab, ba)?;
            }
            Ok(())
        };
        // Single elements, and stretches of two.
        let few = &lifted[..lifted.len().min(ALL_TRIPLES)];
        let pair = |pair: &[Sample<S>]| Sample {
            state: combine(pair[0].state, pair[1].state),
            of: format!("{}, {}", pair[0].of, pair[1].of),
        };
        let pool: Vec<Sample<S>> = few.iter().cloned().chain(few.windows(2).map(pair)).collect();
        for a in &pool {
            for b in &pool {
                for c in &pool {
                    associative(a, b, c)?;
                }
            }
        }
        lifted.windows(3).try_for_each(|triple| associative(&triple[0], &triple[1], &triple[2]))
    }

    /// Tests that the C++ form gives on a device what the closures give: a scan and a reduction of `samples`, in order, with
    /// outputs compared as by [`UserOperator::check`]. Some thousands of samples use more than one block.
    ///
    /// # Errors
    /// [`Error::OperatorLaw`] with the first output that differs; [`Error::Unavailable`] without C++ text or a compiler;
    /// [`Error::Compile`]; [`Error::InvalidArgument`] for a tolerance that is NaN or negative; [`Error::Driver`].
    #[cfg(feature = "cuda")]
    pub fn check_on(&self, cuda: &crate::device::cuda::Cuda, samples: &[T], tolerance: f64) -> Result<()> {
        use crate::device::caps::Caps;
        use crate::ops::{reduce, scan};
        use crate::types::Layout;
        check_tolerance(tolerance)?;
        let (caps, layout) = (Caps::Cuda(cuda.caps().clone()), Layout::contiguous(&[samples.len() as u64])?);
        let mut expected = vec![R::default(); samples.len()];
        let last = self.host().in_turn(samples, self.identity(), true, Some(&mut expected));
        let mut got = expected.clone();
        let scanned = scan::ScanProblem::of_operator(self, scan::ScanOptions::default(), &layout, None)?;
        cuda.run_from_host(&scan::plan(&scanned, &caps)?, samples.into(), got.as_mut_slice().into())?;
        expected.push(self.host().finish(last));
        let mut total = [R::default()];
        let reduced = reduce::ReduceProblem::of_operator(self, &layout, None)?;
        cuda.run_from_host(&reduce::plan(&reduced, &caps)?, samples.into(), total.as_mut_slice().into())?;
        got.extend(total);
        let wrong = got.iter().zip(&expected).position(|(got, expected)| !agree(*got, *expected, tolerance));
        let Some(index) = wrong else { return Ok(()) };
        let what = if index < samples.len() { format!("output {index} of the scan") } else { "the reduction".into() };
        Err(self.law(
            "both forms agree",
            format!("{what} is {:?} on {} and {:?} by the closures", got[index], cuda.caps().name, expected[index]),
        ))
    }

    fn law(&self, law: &'static str, example: String) -> Error {
        Error::OperatorLaw { operator: self.name().to_string(), law, example }
    }

    /// Outputs by which two states differ.
    fn differ(&self, left: S, right: S, contexts: &[S], tolerance: f64) -> Option<(R, R)> {
        if bytemuck::bytes_of(&left) == bytemuck::bytes_of(&right) {
            return None;
        }
        let combine = |a, b| self.host().combine(a, b);
        let before = contexts.iter().map(|c| (combine(*c, left), combine(*c, right)));
        let behind = contexts.iter().map(|c| (combine(left, *c), combine(right, *c)));
        let outputs = [(left, right)].into_iter().chain(before).chain(behind);
        outputs.map(|(a, b)| (self.host().finish(a), self.host().finish(b))).find(|(a, b)| !agree(*a, *b, tolerance))
    }
}

/// Equal, both NaN, or as near as allowed.
#[allow(clippy::eq_op)]
fn agree<R: Element>(a: R, b: R, tolerance: f64) -> bool {
    let (x, y) = (a.to_f64(), b.to_f64());
    a == b
        || (a != a && b != b)
        || (tolerance > 0.0 && (x - y).abs() <= tolerance * x.abs().max(y.abs()).max(1.0) && x.is_finite() && y.is_finite())
}

fn check_tolerance(tolerance: f64) -> Result<()> {
    if tolerance >= 0.0 {
        return Ok(());
    }
    Err(Error::InvalidArgument {
        argument: "tolerance",
        got: tolerance.to_string(),
        allowed: "allowed is 0 or a positive number".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::examples;
    use super::*;

    type Operator = UserOperator<f32, [f32; 2], f32>;

    /// An affine map of each element, made wrong in one way.
    fn affine(identity: [f32; 2], combine: fn([f32; 2], [f32; 2]) -> [f32; 2]) -> Operator {
        UserOperator::new("affine", identity, |x: f32| [0.5, x], combine, |s: [f32; 2]| s[1]).unwrap()
    }

    fn then(a: [f32; 2], b: [f32; 2]) -> [f32; 2] {
        [a[0] * b[0], a[1] * b[0] + b[1]]
    }

    fn law(operator: &Operator, tolerance: f64) -> String {
        match operator.check(&[1.0, -3.0, 0.25, 7.0], tolerance) {
            Ok(()) => "none".into(),
            Err(Error::OperatorLaw { law, .. }) => law.into(),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn each_broken_law_is_named() {
        assert_eq!(law(&affine([1.0, 0.0], then), 1e-5), "none");
        assert_eq!(law(&affine([1.0, 0.0], then).commutative(), 1e-5), "combining commutes");
        assert_eq!(law(&affine([0.0, 0.0], then), 1e-5), "the identity is neutral");
        assert_eq!(law(&affine([1.0, 1.0], then), 1e-5), "the identity is neutral");
        // The output of two elements does not show the lost coefficient, that of a third does.
        assert_eq!(law(&affine([1.0, 0.0], |a, b| [b[0], a[1] * b[0] + b[1]]), 1e-5), "the identity is neutral");
        let blend = |a: [f32; 2], b: [f32; 2]| match (a, b) {
            ([1.0, 0.0], other) | (other, [1.0, 0.0]) => other,
            _ => [0.5, a[1] * 0.5 + b[1] * 0.5],
        };
        assert_eq!(law(&affine([1.0, 0.0], blend), 1e-5), "combining is associative");
    }

    #[test]
    fn the_examples_keep_their_laws() {
        let floats = [0.5f32, -2.0, f32::NAN, 3.0, 0.0, 1e3];
        examples::fill_forward().unwrap().check(&floats, 0.0).unwrap();
        examples::variance().unwrap().check(&[0.5, -2.0, 3.0, 0.0, 1e3, 1e3], 1e-12).unwrap();
        examples::polynomial_hash().unwrap().check(&[0, 1, 255, 7, 7, 128], 0.0).unwrap();
        examples::largest_span().unwrap().check(&[0, -4, 3, i32::MAX, i32::MIN, 5, -1], 0.0).unwrap();
        // Rounding alone is no fault, but not exact either.
        let sum = UserOperator::new("sum", [0.0f32], |x: f32| [x], |a, b| [a[0] + b[0]], |s| s[0]).unwrap().commutative();
        sum.check(&[0.1, 1e7, -1e7, 0.3], 1e-6).unwrap_err();
        sum.check(&[0.1, 0.2, 0.3, 0.7], 1e-6).unwrap();
        sum.check(&[0.1, 0.2, 0.3, 0.7], 0.0).unwrap_err();
    }

    #[test]
    fn names_states_and_tolerances_are_checked_at_the_door() {
        let new = |name: &str| UserOperator::new(name, [0u32], |x: u32| [x], |a: [u32; 1], _| a, |s| s[0]);
        for name in ["", "a\"b", "a\nb", "a\\b", "é", &"a".repeat(65)] {
            assert!(matches!(new(name), Err(Error::InvalidArgument { argument: "name", .. })), "{name:?}");
        }
        let first = new("first of 2").unwrap();
        assert!(matches!(first.check(&[], f64::NAN), Err(Error::InvalidArgument { argument: "tolerance", .. })));
        assert!(first.check(&[], -1.0).is_err());
        let bytes = UserOperator::new("bytes", [0u8; 6], |x: u8| [x; 6], |a, _| a, |s| s[0]).unwrap_err();
        assert!(matches!(bytes, Error::InvalidArgument { argument: "identity", .. }), "{bytes}");
        let nine = UserOperator::new("nine", [0u32; 9], |x: u32| [x; 9], |a, _| a, |s| s[0]);
        assert!(nine.unwrap_err().to_string().contains("36 bytes"));
        assert!(UserOperator::new("none", [0u32; 0], |_: u32| [], |a, _| a, |_| 0u32).is_err());
    }
}
