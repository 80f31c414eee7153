//! What a scan is asked to do: checked here, all errors here, no device needed.

use super::user::ScanOptions;
use crate::error::{Error, Result};
use crate::flow::{DeviceMut, DeviceRef, HostSlice, HostSliceMut, Operand};
use crate::ops::user::{State, User, UserOperator};
use crate::types::{DType, Element, Kind, Layout, MAX_ELEMENTS, Operator, ReduceShape, dispatch};
use std::fmt;

/// The operators that scan one input: associative, and their output has the type of a state's one number, or of its logarithm.
/// [`Operator::LinearRecurrence`] scans, too, over two inputs.
pub const OPERATORS: [Operator; 7] = [
    Operator::Sum,
    Operator::Prod,
    Operator::Min,
    Operator::Max,
    Operator::WrappingSum,
    Operator::WrappingProd,
    Operator::LogSumExp,
];

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

/// Which elements an output covers, after the initial value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScanKind {
    /// Output `i` covers elements `0..=i`.
    Inclusive,
    /// Output `i` covers elements `0..i`; output 0 is the initial value.
    Exclusive,
}

/// Where a scan starts anew, with the initial value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Segments {
    /// At the start of each row and nowhere else.
    #[default]
    Rows,
    /// Where the key changes: the second input holds one key of this integer dtype for each element of the input, laid out
    /// as the input is. Neighbours with equal keys form a segment; the same key further on forms another one.
    Keys(DType),
    /// At given elements: the second input holds `count + 1` offsets of u64 in elements, the first 0, the last the number
    /// of elements, none less than the one before. Segment `i` is elements `offsets[i]..offsets[i + 1]` and may be empty.
    Offsets {
        /// Number of segments.
        count: u64,
    },
}

/// What a scan computes, whatever it is computed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScanSpec {
    /// One of [`OPERATORS`], or [`Operator::LinearRecurrence`]; of a problem by an operator of the caller's own
    /// ([`ScanProblem::of_operator`]) [`Operator::User`].
    pub operator: Operator,
    /// Inclusive or exclusive.
    pub kind: ScanKind,
    /// From the last element to the first: `flip(scan(flip(x)))`, in each segment.
    pub reverse: bool,
    /// What stands before the first element in the scan's direction, of the output's dtype: for a linear recurrence the
    /// state `h[-1]`. Without one, the operator's identity; for a linear recurrence 0.
    pub initial: Option<Scalar>,
    /// Where the scan starts anew.
    pub segments: Segments,
}

impl ScanSpec {
    fn new(operator: Operator, kind: ScanKind, initial: Option<Scalar>) -> ScanSpec {
        ScanSpec { operator, kind, reverse: false, initial, segments: Segments::Rows }
    }

    /// Output `i` covers elements `0..=i`.
    pub fn inclusive(operator: Operator) -> ScanSpec {
        ScanSpec::new(operator, ScanKind::Inclusive, None)
    }

    /// Output `i` covers the initial value, which is of the output's dtype, and elements `0..=i`.
    pub fn inclusive_from<T: Element>(operator: Operator, initial: T) -> ScanSpec {
        ScanSpec::new(operator, ScanKind::Inclusive, Some(Scalar::new(initial)))
    }

    /// Output `i` covers elements `0..i`; output 0 is the operator's identity.
    pub fn exclusive(operator: Operator) -> ScanSpec {
        ScanSpec::new(operator, ScanKind::Exclusive, None)
    }

    /// Output `i` covers the initial value, which is of the output's dtype, and elements `0..i`.
    pub fn exclusive_from<T: Element>(operator: Operator, initial: T) -> ScanSpec {
        ScanSpec::new(operator, ScanKind::Exclusive, Some(Scalar::new(initial)))
    }

    /// The same from the last element to the first.
    pub fn reversed(self) -> ScanSpec {
        ScanSpec { reverse: !self.reverse, ..self }
    }

    /// The same in segments of equal keys of an integer dtype: see [`Segments::Keys`].
    pub fn by_key(self, keys: DType) -> ScanSpec {
        ScanSpec { segments: Segments::Keys(keys), ..self }
    }

    /// The same in `count` segments between offsets: see [`Segments::Offsets`].
    pub fn by_offsets(self, count: u64) -> ScanSpec {
        ScanSpec { segments: Segments::Offsets { count }, ..self }
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
    /// The operator where it is the caller's own.
    user: Option<User>,
}

impl ScanProblem {
    /// A scan of an array of `dtype` laid out as `layout`, along `axis` (negative ones count from the end; `None` scans
    /// the whole array as one row, in C order).
    ///
    /// The output is contiguous, in C order of the input's shape. Where input and output have elements of one size and
    /// the input is contiguous, too, they may be the same memory: every rung reads an element before it writes there.
    ///
    /// A second input is never the output's memory.
    ///
    /// Segments other than rows are for the operators of [`OPERATORS`] and for the whole of a contiguous array.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an operator that does not scan, for keys that are no integers, and for segments that
    /// the operator or the number of elements does not allow; [`Error::UnsupportedDType`] if the operator is not defined
    /// for the dtype; [`Error::DTypeMismatch`] if the initial value is not of the output's dtype; [`Error::InvalidAxis`];
    /// [`Error::InvalidLayout`], also for segments of an array that is not contiguous or of more than one row.
    pub fn new(spec: ScanSpec, dtype: DType, layout: &Layout, axis: Option<i64>) -> Result<ScanProblem> {
        let operator = spec.operator;
        if !OPERATORS.contains(&operator) && operator != Operator::LinearRecurrence {
            let names: Vec<&str> = OPERATORS.iter().chain([&Operator::LinearRecurrence]).map(|o| o.name()).collect();
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
        if let Some(initial) = spec.initial.filter(|initial| initial.dtype() != expected) {
            return Err(Error::DTypeMismatch { argument: "initial", got: initial.dtype(), expected });
        }
        ScanProblem::over(spec, dtype, None, layout, axis)
    }

    /// A scan by an operator of the caller's own, along `axis` of an array laid out as `layout`; the rest as
    /// [`ScanProblem::new`]. Its [`ScanProblem::operator`] is [`Operator::User`].
    ///
    /// # Errors
    /// [`Error::InvalidAxis`]; [`Error::InvalidLayout`].
    pub fn of_operator<T: Element, S: State, R: Element>(
        operator: &UserOperator<T, S, R>,
        options: ScanOptions,
        layout: &Layout,
        axis: Option<i64>,
    ) -> Result<ScanProblem> {
        let spec = ScanSpec { reverse: options.reverse, ..ScanSpec::new(Operator::User, options.kind(), None) };
        ScanProblem::over(spec, T::DTYPE, Some(operator.user()), layout, axis)
    }

    fn over(spec: ScanSpec, dtype: DType, user: Option<User>, layout: &Layout, axis: Option<i64>) -> Result<ScanProblem> {
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
        let problem = ScanProblem { spec, dtype, shape, inner, output_shape, required_len: layout.required_len(), user };
        problem.check_segments()?;
        Ok(problem)
    }

    fn check_segments(&self) -> Result<()> {
        let (operator, length) = (self.spec.operator, self.length());
        let refuse = |argument, got: String, allowed: String| Err(Error::InvalidArgument { argument, got, allowed });
        match self.spec.segments {
            Segments::Rows => return Ok(()),
            Segments::Keys(keys) if !is_integer(keys) => {
                let names: Vec<&str> = DType::all().filter(|dtype| is_integer(*dtype)).map(DType::name).collect();
                return refuse("keys", keys.to_string(), format!("a key is one of {}", names.join(", ")));
            }
            Segments::Offsets { count: 0 } if length > 0 => {
                let allowed = format!("{length} elements need at least one segment");
                return refuse("offsets", "of no segment".into(), allowed);
            }
            Segments::Offsets { count } if count >= MAX_ELEMENTS => {
                return refuse("offsets", format!("of {count} segments"), format!("fewer than {MAX_ELEMENTS} are allowed"));
            }
            Segments::Keys(_) | Segments::Offsets { .. } => {}
        }
        if !OPERATORS.contains(&operator) {
            let names: Vec<&str> = OPERATORS.iter().map(|o| o.name()).collect();
            return refuse("operator", operator.to_string(), format!("a scan in segments takes {}", names.join(", ")));
        }
        if !self.is_contiguous_row() {
            return Err(Error::InvalidLayout {
                argument: "layout",
                problem: "a scan in segments is of the whole of a contiguous array; rows of an array are segments already".into(),
            });
        }
        Ok(())
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

    /// What stands before the first element.
    pub fn initial(&self) -> Option<Scalar> {
        self.spec.initial
    }

    /// Where the scan starts anew.
    pub fn segments(&self) -> Segments {
        self.spec.segments
    }

    /// The second input: the coefficients of a linear recurrence (laid out as the input is), a key for each element (laid
    /// out so, too), or the offsets of segments.
    pub fn second_input(&self) -> Option<Operand> {
        match self.spec.segments {
            Segments::Keys(dtype) => Some(Operand { dtype, len: self.required_len }),
            Segments::Offsets { count } => Some(Operand { dtype: DType::U64, len: count + 1 }),
            Segments::Rows if self.operator() == Operator::LinearRecurrence => {
                Some(Operand { dtype: self.dtype, len: self.required_len })
            }
            Segments::Rows => None,
        }
    }

    /// What errors call the second input.
    fn second_name(&self) -> &'static str {
        match self.spec.segments {
            Segments::Keys(_) => "keys",
            Segments::Offsets { .. } => "offsets",
            Segments::Rows => "coefficients",
        }
    }

    /// The input's dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The output's dtype.
    pub fn output_dtype(&self) -> DType {
        self.user.as_ref().map_or(self.spec.operator.output_dtype(self.dtype), |user| user.facts().output)
    }

    /// The operator where it is the caller's own.
    pub(crate) fn user(&self) -> Option<&User> {
        self.user.as_ref()
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

    /// True if the rows' elements are neighbours, in the input and in the output. The rows themselves may be further apart
    /// in the input, at one distance (see [`ScanProblem::pitch`]).
    pub fn rows_are_plain(&self) -> bool {
        let neighbours = self.shape.rows_are_contiguous() && (self.inner == 1 || self.length() <= 1);
        neighbours && self.shape.kept.len() <= 1
    }

    /// Distance of neighbouring rows in the input, in elements, where rows are plain.
    pub fn pitch(&self) -> i64 {
        self.shape.kept.first().map_or(0, |dim| dim.stride)
    }

    /// True if neighbouring rows are columns of memory: what is scanned lies a distance apart, and behind the axis the
    /// input is contiguous, as the output is.
    pub fn rows_are_columns(&self) -> bool {
        let behind = self.shape.kept.last().is_some_and(|dim| dim.stride == 1 && dim.extent == self.inner);
        self.inner > 1 && behind && self.shape.kept.len() <= 2 && self.shape.reduced.len() == 1
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

    /// The least bytes any implementation moves: every element of each input once, every output element once.
    pub fn bytes(&self) -> u64 {
        let second = match (self.spec.segments, self.second_input()) {
            (Segments::Offsets { .. }, Some(offsets)) => offsets.len * offsets.dtype.size(),
            (_, Some(operand)) => self.output_len() * operand.dtype.size(),
            (_, None) => 0,
        };
        self.output_len() * (self.dtype.size() + self.output_dtype().size()) + second
    }

    /// As [`ScanProblem::check_operands`], of operands in host memory; offsets are read, too.
    pub(super) fn check_host_operands(
        &self,
        input: HostSlice<'_>,
        second: Option<HostSlice<'_>>,
        output: (DType, u64),
    ) -> Result<()> {
        let of = |memory: HostSlice<'_>| (memory.dtype(), memory.len() as u64);
        self.check_operands(of(input), second.map(of), output)?;
        match (self.spec.segments, second) {
            (Segments::Offsets { .. }, Some(offsets)) => check_offsets(offsets.typed::<u64>()?, self.length()),
            _ => Ok(()),
        }
    }

    /// Checks operand lengths and dtypes, given in elements from the base pointers.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`], [`Error::LengthMismatch`]; [`Error::InvalidArgument`] for a second input where the problem
    /// has none.
    pub fn check_operands(&self, input: (DType, u64), second: Option<(DType, u64)>, output: (DType, u64)) -> Result<()> {
        match (self.second_input(), second) {
            (Some(expected), second) => {
                let argument = self.second_name();
                // What is not there has no dtype to be wrong.
                let (got, len) = second.unwrap_or((expected.dtype, 0));
                if got != expected.dtype {
                    return Err(Error::DTypeMismatch { argument, got, expected: expected.dtype });
                }
                let exact = matches!(self.spec.segments, Segments::Offsets { .. });
                if second.is_none() || len < expected.len || (exact && len != expected.len) {
                    return Err(Error::LengthMismatch { argument, got: len, expected: expected.len, unit: "elements" });
                }
            }
            (None, Some((dtype, len))) => {
                return Err(Error::InvalidArgument {
                    argument: "second",
                    got: format!("{len} elements of {dtype}"),
                    allowed: format!("{self} has one input"),
                });
            }
            (None, None) => {}
        }
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
        let kind = if self.kind() == ScanKind::Inclusive { "inclusive" } else { "exclusive" };
        let operator = self.user().map_or(self.operator().name(), |user| &user.facts().name);
        write!(f, "{direction}{kind} {operator} scan of {}", self.dtype)?;
        if let Some(initial) = self.initial() {
            write!(f, " from {initial}")?;
        }
        if self.shape.whole {
            write!(f, " over {} elements", self.length())?;
        } else {
            write!(f, " along {} rows of {} elements", self.rows(), self.length())?;
        }
        match self.segments() {
            Segments::Rows => Ok(()),
            Segments::Keys(keys) => write!(f, " by {keys} keys"),
            Segments::Offsets { count } => write!(f, " in {count} segments"),
        }
    }
}

/// Signed or unsigned; not bool.
fn is_integer(dtype: DType) -> bool {
    matches!(dtype.row().kind, Kind::Signed | Kind::Unsigned)
}

/// Checks the offsets of segments of `length` elements.
///
/// # Errors
/// [`Error::InvalidArgument`] if the first is not 0, the last is not `length`, or one is less than the one before.
pub(super) fn check_offsets(offsets: &[u64], length: u64) -> Result<()> {
    let refuse = |got: String, allowed: String| Err(Error::InvalidArgument { argument: "offsets", got, allowed });
    match offsets.first() {
        Some(0) => {}
        first => return refuse(format!("{first:?} at index 0"), "the first offset is 0".into()),
    }
    if let Some(index) = offsets.windows(2).position(|pair| pair[1] < pair[0]) {
        let (before, here) = (offsets[index], offsets[index + 1]);
        return refuse(format!("{here} at index {} after {before}", index + 1), "no offset is less than the one before".into());
    }
    let last = offsets[offsets.len() - 1];
    if last != length {
        let allowed = format!("the last offset is the number of elements, {length}");
        return refuse(format!("{last} at index {}", offsets.len() - 1), allowed);
    }
    Ok(())
}

/// The operands of a scan in host memory.
#[derive(Debug)]
pub struct ScanOperands<'a> {
    /// Elements as the problem's layout describes them, from the base pointer.
    pub input: HostSlice<'a>,
    /// What [`ScanProblem::second_input`] asks for: coefficients, keys or offsets.
    pub second: Option<HostSlice<'a>>,
    /// One element for each of the input's, in C order.
    pub output: HostSliceMut<'a>,
}

/// The operands of a scan in device memory. Contiguous input and output may be the same memory where their elements
/// have one size ([`DeviceRef::from_raw`] and [`DeviceMut::from_raw`] on one address).
#[derive(Debug)]
pub struct ScanDeviceOperands<'a> {
    /// Elements as the problem's layout describes them, from the base pointer.
    pub input: DeviceRef<'a>,
    /// What [`ScanProblem::second_input`] asks for: coefficients, keys or offsets.
    pub second: Option<DeviceRef<'a>>,
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
        assert!(problem.check_operands((DType::U8, 300), None, (DType::U64, 300)).is_ok());
        assert!(problem.check_operands((DType::U8, 299), None, (DType::U64, 300)).is_err());
        assert!(problem.check_operands((DType::I8, 300), None, (DType::U64, 300)).is_err());
        assert!(problem.check_operands((DType::U8, 300), None, (DType::U64, 1)).is_err());
        let extra = problem.check_operands((DType::U8, 300), Some((DType::U8, 300)), (DType::U64, 300));
        assert!(matches!(extra, Err(Error::InvalidArgument { argument: "second", .. })), "{extra:?}");
    }

    #[test]
    fn second_inputs_are_checked_by_name() {
        let (sum, f32s) = (ScanSpec::inclusive(Operator::Sum), (DType::F32, 300));
        let check = |spec, second| ScanProblem::whole(spec, DType::F32, 300).unwrap().check_operands(f32s, second, f32s);
        let length = |argument, got, expected| Err(Error::LengthMismatch { argument, got, expected, unit: "elements" });
        let recurrence = ScanSpec::inclusive(Operator::LinearRecurrence);
        assert!(check(recurrence, Some(f32s)).is_ok());
        assert_eq!(check(recurrence, None), length("coefficients", 0, 300));
        assert_eq!(check(recurrence, Some((DType::F32, 299))), length("coefficients", 299, 300));
        let mismatch = Error::DTypeMismatch { argument: "coefficients", got: DType::F64, expected: DType::F32 };
        assert_eq!(check(recurrence, Some((DType::F64, 300))), Err(mismatch));
        assert!(check(sum.by_key(DType::I8), Some((DType::I8, 300))).is_ok());
        assert_eq!(check(sum.by_key(DType::I8), Some((DType::I8, 1))), length("keys", 1, 300));
        assert!(check(sum.by_offsets(4), Some((DType::U64, 5))).is_ok());
        assert_eq!(check(sum.by_offsets(4), Some((DType::U64, 6))), length("offsets", 6, 5));
        let mismatch = Error::DTypeMismatch { argument: "offsets", got: DType::I64, expected: DType::U64 };
        assert_eq!(check(sum.by_offsets(4), Some((DType::I64, 5))), Err(mismatch));
        // A missing operand, whatever length is wanted of it.
        let nothing = ScanProblem::whole(recurrence, DType::F32, 0).unwrap();
        assert!(nothing.check_operands((DType::F32, 0), None, (DType::F32, 0)).is_err());
    }

    #[test]
    fn recurrences_and_segments_are_checked_at_the_door() {
        let recurrence = ScanSpec::inclusive(Operator::LinearRecurrence);
        let whole = |spec, dtype| ScanProblem::whole(spec, dtype, 10);
        assert!(matches!(whole(recurrence, DType::I32), Err(Error::UnsupportedDType { .. })));
        assert!(whole(ScanSpec::inclusive_from(Operator::LinearRecurrence, 1.0f64), DType::F32).is_err());
        assert_eq!(whole(recurrence, DType::F16).unwrap().bytes(), 10 * 6);
        let refused = |spec| match whole(spec, DType::F32) {
            Err(Error::InvalidArgument { argument, .. }) => argument,
            other => panic!("{other:?}"),
        };
        let sum = ScanSpec::inclusive(Operator::Sum);
        assert_eq!(refused(recurrence.by_key(DType::I32)), "operator");
        assert_eq!(refused(sum.by_key(DType::F32)), "keys");
        assert_eq!(refused(sum.by_key(DType::Bool)), "keys");
        assert_eq!(refused(sum.by_offsets(0)), "offsets");
        assert_eq!(refused(sum.by_offsets(u64::MAX)), "offsets");
        assert!(ScanProblem::whole(sum.by_offsets(0), DType::F32, 0).is_ok());
        assert_eq!(whole(sum.by_key(DType::U8), DType::F32).unwrap().bytes(), 10 * 9);
        assert_eq!(whole(sum.by_offsets(3), DType::F32).unwrap().bytes(), 10 * 8 + 4 * 8);
        for (layout, axis) in [
            (Layout::strided(&[5], &[2], 0), None),
            (Layout::contiguous(&[2, 5]), Some(1)),
            (Layout::contiguous(&[5, 2]), Some(0)),
        ] {
            let problem = ScanProblem::new(sum.by_key(DType::I32), DType::F32, &layout.unwrap(), axis);
            assert!(matches!(problem, Err(Error::InvalidLayout { .. })), "{problem:?}");
        }
    }

    #[test]
    fn offsets_are_checked_one_by_one() {
        assert_eq!(check_offsets(&[0], 0), Ok(()));
        assert_eq!(check_offsets(&[0, 0, 3, 3, 5, 5], 5), Ok(()));
        for (offsets, index) in
            [(&[1, 5][..], "index 0"), (&[0, 3, 2, 5], "index 2"), (&[0, 6, 5], "index 2"), (&[0, 4], "index 1")]
        {
            let error = check_offsets(offsets, 5).unwrap_err().to_string();
            assert!(error.contains("offsets") && error.contains(index), "{error}");
        }
        assert!(check_offsets(&[], 0).is_err());
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
