//! What a reduction is asked to do: checked here, all errors here, no device needed.

use crate::error::{Error, Result};
use crate::flow::{DeviceMut, DeviceRef, HostSlice, HostSliceMut};
use crate::ops::user::{State, User, UserOperator};
use crate::types::{Accuracy, DType, Element, Layout, Operator, ReduceShape};
use std::fmt;

/// A checked reduction: operator, dtype, geometry and accuracy. Cannot be built wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceProblem {
    operator: Operator,
    dtype: DType,
    accuracy: Accuracy,
    shape: ReduceShape,
    required_len: u64,
    /// The operator where it is the caller's own.
    user: Option<User>,
}

impl ReduceProblem {
    /// A reduction of an array of `dtype` laid out as `layout`, along `axes` (negative ones count from the end; `None`
    /// reduces every axis to one value).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an operator that only scans; [`Error::UnsupportedDType`] if it is not defined for the
    /// dtype; [`Error::InvalidAxis`]; [`Error::EmptyInput`] if min, max, argmin or argmax would reduce nothing into an output that exists.
    pub fn new(operator: Operator, dtype: DType, layout: &Layout, axes: Option<&[i64]>) -> Result<ReduceProblem> {
        if !operator.row().reduces {
            let names: Vec<&str> = Operator::reductions().map(Operator::name).collect();
            return Err(Error::InvalidArgument {
                argument: "operator",
                got: operator.to_string(),
                allowed: format!("a reduction takes {}", names.join(", ")),
            });
        }
        if !operator.accepts(dtype) {
            return Err(Error::UnsupportedDType { argument: "input", operator, got: dtype, allowed: operator.accepted_names() });
        }
        let shape = ReduceShape::new(layout, axes)?;
        if operator.row().empty_is_error && shape.length == 0 && shape.outputs > 0 {
            return Err(Error::EmptyInput { argument: "input", operator });
        }
        Ok(ReduceProblem { operator, dtype, accuracy: Accuracy::Fast, shape, required_len: layout.required_len(), user: None })
    }

    /// A reduction by an operator of the caller's own, along `axes` of an array laid out as `layout`. Its
    /// [`ReduceProblem::operator`] is [`Operator::User`].
    ///
    /// # Errors
    /// [`Error::InvalidAxis`].
    pub fn of_operator<T: Element, S: State, R: Element>(
        operator: &UserOperator<T, S, R>,
        layout: &Layout,
        axes: Option<&[i64]>,
    ) -> Result<ReduceProblem> {
        Ok(ReduceProblem {
            operator: Operator::User,
            dtype: T::DTYPE,
            accuracy: Accuracy::Fast,
            shape: ReduceShape::new(layout, axes)?,
            required_len: layout.required_len(),
            user: Some(operator.user()),
        })
    }

    /// The reduction of `len` contiguous elements to one value.
    ///
    /// # Errors
    /// As [`ReduceProblem::new`].
    pub fn whole(operator: Operator, dtype: DType, len: u64) -> Result<ReduceProblem> {
        ReduceProblem::new(operator, dtype, &Layout::contiguous(&[len])?, None)
    }

    /// The same problem at another accuracy.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for [`Accuracy::Compensated`] with an operator other than sum and mean, or with
    /// integers (whose sums are exact already).
    pub fn with_accuracy(mut self, accuracy: Accuracy) -> Result<ReduceProblem> {
        let rounding_sum = matches!(self.operator, Operator::Sum | Operator::Mean) && self.dtype.is_float();
        if accuracy == Accuracy::Compensated && !rounding_sum {
            return Err(Error::InvalidArgument {
                argument: "accuracy",
                got: format!("Compensated for {} of {}", self.operator, self.dtype),
                allowed: "Compensated is defined for sum and mean of f32, f64, f16 and bf16".into(),
            });
        }
        self.accuracy = accuracy;
        Ok(self)
    }

    /// The operator.
    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// The input's dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The output's dtype.
    pub fn output_dtype(&self) -> DType {
        self.user.as_ref().map_or(self.operator.output_dtype(self.dtype), |user| user.facts().output)
    }

    /// The operator where it is the caller's own.
    pub(crate) fn user(&self) -> Option<&User> {
        self.user.as_ref()
    }

    /// The accuracy of floating-point sums.
    pub fn accuracy(&self) -> Accuracy {
        self.accuracy
    }

    /// The geometry.
    pub fn shape(&self) -> &ReduceShape {
        &self.shape
    }

    /// Elements the input memory must hold, from its base pointer.
    pub fn required_len(&self) -> u64 {
        self.required_len
    }

    /// The least bytes any implementation moves: every input element once, every output element once.
    pub fn bytes(&self) -> u64 {
        let s = &self.shape;
        s.outputs * s.length * self.dtype.size() + s.outputs * self.output_dtype().size()
    }

    /// Checks operand lengths and dtypes, given in elements from the base pointers.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`], [`Error::LengthMismatch`].
    pub fn check_operands(&self, input: (DType, u64), output: (DType, u64)) -> Result<()> {
        for (argument, got, expected) in [("input", input.0, self.dtype), ("output", output.0, self.output_dtype())] {
            if got != expected {
                return Err(Error::DTypeMismatch { argument, got, expected });
            }
        }
        let unit = "elements";
        if input.1 < self.required_len {
            return Err(Error::LengthMismatch { argument: "input", got: input.1, expected: self.required_len, unit });
        }
        if output.1 != self.shape.outputs {
            return Err(Error::LengthMismatch { argument: "output", got: output.1, expected: self.shape.outputs, unit });
        }
        Ok(())
    }
}

impl fmt::Display for ReduceProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.shape;
        let operator = self.user().map_or(self.operator.name(), |user| &user.facts().name);
        write!(f, "{operator} of {}", self.dtype)?;
        if s.whole {
            write!(f, " over {} elements", s.length)
        } else {
            write!(f, " along rows: {} outputs of {} elements", s.outputs, s.length)
        }
    }
}

/// The operands of a reduction in host memory.
#[derive(Debug)]
pub struct ReduceOperands<'a> {
    /// Elements as the problem's layout describes them, from the base pointer.
    pub input: HostSlice<'a>,
    /// One element for each output, C order over the kept axes.
    pub output: HostSliceMut<'a>,
}

/// The operands of a reduction in device memory.
#[derive(Debug)]
pub struct ReduceDeviceOperands<'a> {
    /// Elements as the problem's layout describes them, from the base pointer.
    pub input: DeviceRef<'a>,
    /// One element for each output, C order over the kept axes.
    pub output: DeviceMut<'a>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reduced_extent_of_zero_is_empty() {
        let problem = |shape: &[u64], axes: Option<&[i64]>, operator| {
            ReduceProblem::new(operator, DType::F32, &Layout::contiguous(shape).unwrap(), axes)
        };
        assert!(problem(&[0, 4], Some(&[1]), Operator::Max).is_ok());
        assert!(problem(&[0, 1], Some(&[1]), Operator::ArgMax).is_ok());
        assert_eq!(
            problem(&[4, 0], Some(&[1]), Operator::Max),
            Err(Error::EmptyInput { argument: "input", operator: Operator::Max })
        );
        assert!(problem(&[4, 0], Some(&[1]), Operator::Sum).is_ok());
        assert!(problem(&[0], None, Operator::Min).is_err());
        assert!(problem(&[0], None, Operator::Mean).is_ok());
    }

    #[test]
    fn dtypes_and_accuracy_are_checked_at_the_door() {
        let error = ReduceProblem::whole(Operator::LinearRecurrence, DType::F32, 4).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { argument: "operator", .. }), "{error}");
        let error = ReduceProblem::whole(Operator::LogSumExp, DType::I32, 4).unwrap_err();
        assert!(error.to_string().contains("f32, f64, f16, bf16"), "{error}");
        let compensated = |op, dtype| ReduceProblem::whole(op, dtype, 4).unwrap().with_accuracy(Accuracy::Compensated);
        assert!(compensated(Operator::Sum, DType::F32).is_ok());
        assert!(compensated(Operator::Max, DType::F32).is_err());
        assert!(compensated(Operator::Sum, DType::I32).is_err());
    }

    #[test]
    fn operands_are_checked() {
        let problem = ReduceProblem::whole(Operator::Sum, DType::U8, 300).unwrap();
        assert!(problem.check_operands((DType::U8, 300), (DType::U64, 1)).is_ok());
        assert!(problem.check_operands((DType::U8, 299), (DType::U64, 1)).is_err());
        assert!(problem.check_operands((DType::I8, 300), (DType::U64, 1)).is_err());
        assert!(problem.check_operands((DType::U8, 300), (DType::U64, 2)).is_err());
        assert_eq!(problem.bytes(), 308);
    }
}
