//! What a scan is asked to do: checked here, all errors here, no device needed.

use crate::error::{Error, Result};
use crate::flow::{DeviceMut, DeviceRef, HostSlice, HostSliceMut};
use crate::types::{DType, Element, Layout, Operator, ReduceShape, dispatch};
use std::fmt;

/// The operators that scan: associative, and their state is one number.
pub const OPERATORS: [Operator; 6] =
    [Operator::Sum, Operator::Prod, Operator::Min, Operator::Max, Operator::WrappingSum, Operator::WrappingProd];

/// One value of any dtype.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scalar {
    dtype: DType,
    /// The value's own bytes, low ones first.
    bits: u64,
}

impl Scalar {
    /// A value with its dtype.
    pub fn new<T: Element>(value: T) -> Scalar {
        let mut bytes = [0u8; 8];
        // SAFETY: an element is plain data of at most 8 bytes without padding.
        unsafe { std::ptr::copy_nonoverlapping((&raw const value).cast(), bytes.as_mut_ptr(), size_of::<T>()) };
        Scalar { dtype: T::DTYPE, bits: u64::from_ne_bytes(bytes) }
    }

    /// The dtype.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// The value under its own type.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] if `T` is another type.
    pub fn typed<T: Element>(self) -> Result<T> {
        if T::DTYPE != self.dtype {
            return Err(Error::DTypeMismatch { argument: "initial", got: self.dtype, expected: T::DTYPE });
        }
        let bytes = self.bits.to_ne_bytes();
        let mut value = T::default();
        // SAFETY: the bytes were a `T` when the scalar was made, and each dtype is exactly one Rust type.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut value).cast(), size_of::<T>()) };
        Ok(value)
    }

    /// The value as f64 (nearest for 64-bit integers).
    pub(super) fn to_f64(self) -> f64 {
        dispatch!(self.dtype, T => self.typed::<T>().map_or(f64::NAN, Element::to_f64))
    }

    /// The value as i128 (truncated for floats).
    pub(super) fn to_i128(self) -> i128 {
        dispatch!(self.dtype, T => self.typed::<T>().map_or(0, Element::to_i128))
    }
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        dispatch!(self.dtype, T => match self.typed::<T>() {
            Ok(value) => write!(f, "{value:?} ({})", self.dtype),
            Err(_) => f.write_str(self.dtype.name()),
        })
    }
}

/// Which elements an output covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScanKind {
    /// Output `i` covers elements `0..=i`.
    Inclusive,
    /// Output `i` covers the initial value and elements `0..i`; without one, it starts with the operator's identity.
    Exclusive(Option<Scalar>),
}

/// What a scan computes, whatever it is computed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScanSpec {
    /// One of [`OPERATORS`].
    pub operator: Operator,
    /// Inclusive, or exclusive with an initial value.
    pub kind: ScanKind,
    /// From the last element to the first: `flip(scan(flip(x)))`.
    pub reverse: bool,
}

impl ScanSpec {
    /// Output `i` covers elements `0..=i`.
    pub fn inclusive(operator: Operator) -> ScanSpec {
        ScanSpec { operator, kind: ScanKind::Inclusive, reverse: false }
    }

    /// Output `i` covers elements `0..i`; output 0 is the operator's identity.
    pub fn exclusive(operator: Operator) -> ScanSpec {
        ScanSpec { operator, kind: ScanKind::Exclusive(None), reverse: false }
    }

    /// Output `i` covers the initial value, which is of the output's dtype, and elements `0..i`.
    pub fn exclusive_from<T: Element>(operator: Operator, initial: T) -> ScanSpec {
        ScanSpec { operator, kind: ScanKind::Exclusive(Some(Scalar::new(initial))), reverse: false }
    }

    /// The same from the last element to the first.
    pub fn reversed(self) -> ScanSpec {
        ScanSpec { reverse: !self.reverse, ..self }
    }
}

/// A checked scan: what, of which dtype, over which geometry. Cannot be built wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct ScanProblem {
    spec: ScanSpec,
    dtype: DType,
    shape: ReduceShape,
    inner: u64,
    output_shape: Vec<u64>,
    required_len: u64,
}

impl ScanProblem {
    /// A scan of an array of `dtype` laid out as `layout`, along `axis` (negative ones count from the end; `None` scans
    /// the whole array as one row, in C order).
    ///
    /// The output is contiguous, in C order of the input's shape. Where input and output have elements of one size and
    /// the input is contiguous, too, they may be the same memory: every rung reads an element before it writes there.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an operator that is none of [`OPERATORS`]; [`Error::UnsupportedDType`] if it is
    /// not defined for the dtype; [`Error::DTypeMismatch`] if the initial value is not of the output's dtype;
    /// [`Error::InvalidAxis`]; [`Error::InvalidLayout`].
    pub fn new(spec: ScanSpec, dtype: DType, layout: &Layout, axis: Option<i64>) -> Result<ScanProblem> {
        let operator = spec.operator;
        if !OPERATORS.contains(&operator) {
            let names: Vec<&str> = OPERATORS.iter().map(|o| o.name()).collect();
            return Err(Error::InvalidArgument {
                argument: "operator",
                got: operator.to_string(),
                allowed: format!("a scan takes {}", names.join(", ")),
            });
        }
        if !operator.accepts(dtype) {
            return Err(Error::UnsupportedDType { argument: "input", operator, got: dtype, allowed: operator.accepted_names() });
        }
        let expected = operator.output_dtype(dtype);
        if let ScanKind::Exclusive(Some(initial)) = spec.kind
            && initial.dtype() != expected
        {
            return Err(Error::DTypeMismatch { argument: "initial", got: initial.dtype(), expected });
        }
        let shape = ReduceShape::new(layout, axis.as_ref().map(std::slice::from_ref))?;
        let (inner, output_shape) = match axis {
            None => (1, vec![layout.len()]),
            Some(axis) => {
                let extents = layout.shape();
                // The axis was checked when the shape was split.
                let position = if axis < 0 { axis + extents.len() as i64 } else { axis } as usize;
                // Zero extents leave nothing to write; products of the others may be beyond 64 bits then.
                let inner = if layout.is_empty() { 1 } else { extents[position + 1..].iter().product() };
                (inner, extents)
            }
        };
        Ok(ScanProblem { spec, dtype, shape, inner, output_shape, required_len: layout.required_len() })
    }

    /// The scan of `len` contiguous elements.
    ///
    /// # Errors
    /// As [`ScanProblem::new`].
    pub fn whole(spec: ScanSpec, dtype: DType, len: u64) -> Result<ScanProblem> {
        ScanProblem::new(spec, dtype, &Layout::contiguous(&[len])?, None)
    }

    /// What is computed.
    pub fn spec(&self) -> ScanSpec {
        self.spec
    }

    /// The operator.
    pub fn operator(&self) -> Operator {
        self.spec.operator
    }

    /// Inclusive or exclusive.
    pub fn kind(&self) -> ScanKind {
        self.spec.kind
    }

    /// From the last element to the first.
    pub fn reverse(&self) -> bool {
        self.spec.reverse
    }

    /// The input's dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The output's dtype.
    pub fn output_dtype(&self) -> DType {
        self.spec.operator.output_dtype(self.dtype)
    }

    /// The input's geometry: kept dimensions number the rows, reduced ones are scanned along.
    pub fn shape(&self) -> &ReduceShape {
        &self.shape
    }

    /// Rows.
    pub fn rows(&self) -> u64 {
        self.shape.outputs
    }

    /// Elements of a row.
    pub fn length(&self) -> u64 {
        self.shape.length
    }

    /// Distance between neighbours of a row in the output: the product of the extents behind the axis.
    pub fn inner(&self) -> u64 {
        self.inner
    }

    /// The output's extents: the input's, or its number of elements where the whole array is one row.
    pub fn output_shape(&self) -> &[u64] {
        &self.output_shape
    }

    /// One row whose elements are neighbours in memory, in the input and in the output.
    pub fn is_contiguous_row(&self) -> bool {
        self.rows() == 1 && self.shape.rows_are_contiguous() && (self.inner == 1 || self.length() <= 1)
    }

    /// Index in the output of element 0 of a row.
    pub fn output_start(&self, row: u64) -> u64 {
        row / self.inner * (self.length() * self.inner) + row % self.inner
    }

    /// Elements the input memory must hold, from its base pointer.
    pub fn required_len(&self) -> u64 {
        self.required_len
    }

    /// Elements of the output.
    pub fn output_len(&self) -> u64 {
        self.rows() * self.length()
    }

    /// The least bytes any implementation moves: every input element once, every output element once.
    pub fn bytes(&self) -> u64 {
        self.output_len() * (self.dtype.size() + self.output_dtype().size())
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
        if output.1 != self.output_len() {
            return Err(Error::LengthMismatch { argument: "output", got: output.1, expected: self.output_len(), unit });
        }
        Ok(())
    }
}

impl fmt::Display for ScanProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.reverse() { "reverse " } else { "" };
        match self.kind() {
            ScanKind::Inclusive => write!(f, "{direction}inclusive {} scan of {}", self.operator(), self.dtype)?,
            ScanKind::Exclusive(None) => write!(f, "{direction}exclusive {} scan of {}", self.operator(), self.dtype)?,
            ScanKind::Exclusive(Some(initial)) => {
                write!(f, "{direction}exclusive {} scan of {} from {initial}", self.operator(), self.dtype)?;
            }
        }
        if self.shape.whole {
            write!(f, " over {} elements", self.length())
        } else {
            write!(f, " along {} rows of {} elements", self.rows(), self.length())
        }
    }
}

/// The operands of a scan in host memory.
#[derive(Debug)]
pub struct ScanOperands<'a> {
    /// Elements as the problem's layout describes them, from the base pointer.
    pub input: HostSlice<'a>,
    /// One element for each of the input's, in C order.
    pub output: HostSliceMut<'a>,
}

/// The operands of a scan in device memory. Contiguous input and output may be the same memory where their elements
/// have one size ([`DeviceRef::from_raw`] and [`DeviceMut::from_raw`] on one address).
#[derive(Debug)]
pub struct ScanDeviceOperands<'a> {
    /// Elements as the problem's layout describes them, from the base pointer.
    pub input: DeviceRef<'a>,
    /// One element for each of the input's, in C order.
    pub output: DeviceMut<'a>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn operators_dtypes_axes_and_initial_values_are_checked_at_the_door() {
        let error = ScanProblem::whole(ScanSpec::inclusive(Operator::ArgMax), DType::F32, 4).unwrap_err();
        assert!(error.to_string().contains("sum, prod, min, max"), "{error}");
        let error = ScanProblem::whole(ScanSpec::inclusive(Operator::WrappingSum), DType::F32, 4).unwrap_err();
        assert!(matches!(error, Error::UnsupportedDType { .. }), "{error}");
        let from = |initial| ScanProblem::whole(initial, DType::I32, 4);
        assert!(from(ScanSpec::exclusive_from(Operator::Sum, 5i64)).is_ok());
        assert_eq!(
            from(ScanSpec::exclusive_from(Operator::Sum, 5i32)),
            Err(Error::DTypeMismatch { argument: "initial", got: DType::I32, expected: DType::I64 })
        );
        assert!(from(ScanSpec::exclusive_from(Operator::Max, 5i32)).is_ok());
        let layout = Layout::contiguous(&[2, 3]).unwrap();
        let along = |axis| ScanProblem::new(ScanSpec::inclusive(Operator::Sum), DType::F32, &layout, Some(axis));
        assert_eq!(along(2), Err(Error::InvalidAxis { axis: 2, rank: 2 }));
        assert_eq!(along(-3), Err(Error::InvalidAxis { axis: -3, rank: 2 }));
        assert_eq!(along(-1).unwrap(), along(1).unwrap());
    }

    #[test]
    fn rows_and_their_places_in_the_output() {
        let layout = Layout::contiguous(&[2, 3, 4]).unwrap();
        let spec = ScanSpec::inclusive(Operator::Sum);
        let middle = ScanProblem::new(spec, DType::U8, &layout, Some(1)).unwrap();
        assert_eq!((middle.rows(), middle.length(), middle.inner()), (8, 3, 4));
        assert_eq!(middle.output_start(5), 12 + 1);
        assert_eq!(middle.output_shape(), [2, 3, 4]);
        assert_eq!(middle.bytes(), 24 + 24 * 8);
        assert!(!middle.is_contiguous_row());
        let whole = ScanProblem::new(spec, DType::U8, &layout, None).unwrap();
        assert_eq!(whole.output_shape(), [24]);
        assert!(whole.is_contiguous_row());
        let column = Layout::contiguous(&[5, 1]).unwrap();
        assert!(ScanProblem::new(spec, DType::U8, &column, Some(0)).unwrap().is_contiguous_row());
        let empty = Layout::contiguous(&[0, 4]).unwrap();
        for axis in [None, Some(0), Some(1)] {
            let nothing = ScanProblem::new(ScanSpec::inclusive(Operator::Max), DType::F32, &empty, axis).unwrap();
            assert_eq!((nothing.output_len(), nothing.bytes()), (0, 0));
        }
    }

    #[test]
    fn operands_are_checked() {
        let problem = ScanProblem::whole(ScanSpec::inclusive(Operator::Sum), DType::U8, 300).unwrap();
        assert!(problem.check_operands((DType::U8, 300), (DType::U64, 300)).is_ok());
        assert!(problem.check_operands((DType::U8, 299), (DType::U64, 300)).is_err());
        assert!(problem.check_operands((DType::I8, 300), (DType::U64, 300)).is_err());
        assert!(problem.check_operands((DType::U8, 300), (DType::U64, 1)).is_err());
    }

    #[test]
    fn scalars_keep_their_value_and_dtype() {
        assert_eq!(Scalar::new(-3i8).typed::<i8>(), Ok(-3));
        assert_eq!(Scalar::new(f16::from_f32(0.5)).to_f64(), 0.5);
        assert_eq!(Scalar::new(u64::MAX).to_i128(), u64::MAX.into());
        assert_eq!(Scalar::new(true).typed::<bool>(), Ok(true));
        assert!(Scalar::new(1.0f32).typed::<f64>().is_err());
        assert_eq!(Scalar::new(1.5f32).to_string(), "1.5 (f32)");
    }
}
