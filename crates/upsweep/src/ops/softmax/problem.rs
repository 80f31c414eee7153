//! What a softmax is asked to do: checked here, all errors here, no device needed.

use crate::error::{Error, Result};
use crate::flow::{DeviceMut, DeviceRef, HostSlice, HostSliceMut};
use crate::types::{DType, Layout, ReduceShape};
use std::fmt;

/// What comes out of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SoftmaxKind {
    /// `exp(x - max) / sum(exp(x - max))`, one for each element.
    Softmax,
    /// `(x - max) - log(sum(exp(x - max)))`, one for each element. Never computed as `x - logsumexp(x)`, which loses
    /// all digits of large logits.
    LogSoftmax,
    /// `max + log(sum(exp(x - max)))`, one for each row.
    LogSumExp,
}

impl SoftmaxKind {
    /// Every kind.
    pub const ALL: [SoftmaxKind; 3] = [SoftmaxKind::Softmax, SoftmaxKind::LogSoftmax, SoftmaxKind::LogSumExp];

    /// Name in the command line, records and errors.
    pub fn name(self) -> &'static str {
        match self {
            SoftmaxKind::Softmax => "softmax",
            SoftmaxKind::LogSoftmax => "log_softmax",
            SoftmaxKind::LogSumExp => "logsumexp",
        }
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<SoftmaxKind> {
        SoftmaxKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for SoftmaxKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a row gives whose elements are all -inf (every entry masked out).
///
/// | kind | `Nan` | `Zero` |
/// |---|---|---|
/// | softmax | NaN | 0 |
/// | log_softmax | NaN | -inf, the logarithm of 0 |
/// | logsumexp | -inf | -inf |
///
/// A NaN in the row gives NaN under both: it is never taken for a masked entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Masked {
    /// NaN, as the formula has it (0 / 0).
    #[default]
    Nan,
    /// No probability anywhere.
    Zero,
}

/// The dtypes of a softmax.
pub const DTYPES: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];

/// A checked softmax: kind, dtype, geometry and what masked rows give. Cannot be built wrong.
///
/// The output is contiguous, in C order of the input's shape (softmax, log_softmax) or of the shape without the axis
/// (logsumexp), whatever the input's strides.
#[derive(Clone, Debug, PartialEq)]
pub struct SoftmaxProblem {
    kind: SoftmaxKind,
    dtype: DType,
    masked: Masked,
    shape: ReduceShape,
    /// Extents of the input as the caller sees them.
    full_shape: Vec<u64>,
    /// Product of the extents behind the axis: the distance of a row's neighbours in the output.
    inner: u64,
    required_len: u64,
    contiguous: bool,
}

impl SoftmaxProblem {
    /// A softmax of an array of `dtype` laid out as `layout`, along `axis` (negative ones count from the end).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a dtype other than f32, f64, f16, bf16; [`Error::InvalidAxis`];
    /// [`Error::InvalidLayout`] for more dimensions or elements than kernels walk.
    pub fn new(kind: SoftmaxKind, dtype: DType, layout: &Layout, axis: i64) -> Result<SoftmaxProblem> {
        if !DTYPES.contains(&dtype) {
            return Err(Error::InvalidArgument {
                argument: "input",
                got: format!("of dtype {dtype}"),
                allowed: format!("{kind} takes f32, f64, f16, bf16"),
            });
        }
        let shape = ReduceShape::new(layout, Some(&[axis]))?;
        let full_shape = layout.shape();
        // `ReduceShape::new` has checked the axis.
        let position = if axis < 0 { axis + full_shape.len() as i64 } else { axis } as usize;
        let inner = if shape.outputs == 0 { 1 } else { full_shape[position + 1..].iter().product() };
        let contiguous = match Layout::contiguous(&full_shape) {
            Ok(c_order) => layout.dims().iter().zip(c_order.dims()).all(|(d, c)| d.extent <= 1 || d.stride == c.stride),
            // Only an array of no elements can have extents whose product does not fit.
            Err(_) => true,
        };
        Ok(SoftmaxProblem {
            kind,
            dtype,
            masked: Masked::Nan,
            shape,
            full_shape,
            inner,
            required_len: layout.required_len(),
            contiguous,
        })
    }

    /// `rows` contiguous rows of `cols` elements.
    ///
    /// # Errors
    /// As [`SoftmaxProblem::new`].
    pub fn rows_of(kind: SoftmaxKind, dtype: DType, rows: u64, cols: u64) -> Result<SoftmaxProblem> {
        SoftmaxProblem::new(kind, dtype, &Layout::contiguous(&[rows, cols])?, -1)
    }

    /// `len` contiguous elements as one row.
    ///
    /// # Errors
    /// As [`SoftmaxProblem::new`].
    pub fn whole(kind: SoftmaxKind, dtype: DType, len: u64) -> Result<SoftmaxProblem> {
        SoftmaxProblem::new(kind, dtype, &Layout::contiguous(&[len])?, -1)
    }

    /// The same problem with another answer for rows that are all -inf.
    #[must_use]
    pub fn with_masked(mut self, masked: Masked) -> SoftmaxProblem {
        self.masked = masked;
        self
    }

    /// The kind.
    pub fn kind(&self) -> SoftmaxKind {
        self.kind
    }

    /// The input's dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The output's dtype: the input's.
    pub fn output_dtype(&self) -> DType {
        self.dtype
    }

    /// What a row of only -inf gives.
    pub fn masked(&self) -> Masked {
        self.masked
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.shape.outputs
    }

    /// Elements of a row.
    pub fn cols(&self) -> u64 {
        self.shape.length
    }

    /// The geometry: rows are the outputs of a reduction along the axis, in C order over the other axes.
    pub fn shape(&self) -> &ReduceShape {
        &self.shape
    }

    /// Distance of a row's neighbours in the output, in elements: the product of the extents behind the axis.
    pub fn inner(&self) -> u64 {
        self.inner
    }

    /// True if the elements lie in C order without gaps (from the layout's offset on).
    pub fn is_contiguous(&self) -> bool {
        self.contiguous
    }

    /// True if the rows' elements are neighbours, in the input and in the output: the form that row kernels take. The
    /// rows themselves may be further apart in the input, at one distance (see [`SoftmaxProblem::pitch`]).
    pub fn rows_are_plain(&self) -> bool {
        self.inner == 1 && self.shape.rows_are_contiguous() && self.shape.kept.len() <= 1
    }

    /// Distance of neighbouring rows in the input, in elements, where rows are plain.
    pub fn pitch(&self) -> i64 {
        self.shape.kept.first().map_or(0, |dim| dim.stride)
    }

    /// Elements the input memory must hold, from its base pointer.
    pub fn required_len(&self) -> u64 {
        self.required_len
    }

    /// Elements of the output.
    pub fn output_len(&self) -> u64 {
        match self.kind {
            SoftmaxKind::Softmax | SoftmaxKind::LogSoftmax => self.rows() * self.cols(),
            SoftmaxKind::LogSumExp => self.rows(),
        }
    }

    /// Extents of the output.
    pub fn output_shape(&self) -> Vec<u64> {
        match self.kind {
            SoftmaxKind::Softmax | SoftmaxKind::LogSoftmax => self.full_shape.clone(),
            SoftmaxKind::LogSumExp => self.shape.output_shape.clone(),
        }
    }

    /// Index in the output of element `position` of row `row` (of the row's one value for logsumexp).
    pub fn output_index(&self, row: u64, position: u64) -> u64 {
        match self.kind {
            SoftmaxKind::LogSumExp => row,
            _ => (row / self.inner * self.cols() + position) * self.inner + row % self.inner,
        }
    }

    /// The least bytes any implementation moves: every input element once, every output element once.
    pub fn bytes(&self) -> u64 {
        (self.rows() * self.cols() + self.output_len()) * self.dtype.size()
    }

    /// Checks operand lengths and dtypes, given in elements from the base pointers.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`], [`Error::LengthMismatch`].
    pub fn check_operands(&self, input: (DType, u64), output: (DType, u64)) -> Result<()> {
        for (argument, got) in [("input", input.0), ("output", output.0)] {
            if got != self.dtype {
                return Err(Error::DTypeMismatch { argument, got, expected: self.dtype });
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

    /// Checks that the result may be written over the input: softmax or log_softmax of a contiguous array.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    pub fn check_in_place(&self) -> Result<()> {
        if self.kind == SoftmaxKind::LogSumExp || !self.contiguous {
            return Err(Error::InvalidArgument {
                argument: "output",
                got: format!("the input's memory, for {self}"),
                allowed: "in place are softmax and log_softmax of a contiguous array".into(),
            });
        }
        Ok(())
    }

    /// Checks that output memory does not overlap input memory, given in byte addresses of the base pointers, unless
    /// each output element lies exactly where its input element does.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    pub(super) fn check_overlap(&self, input: u64, output: u64) -> Result<()> {
        let size = self.dtype.size();
        let start = input + self.shape.offset * size;
        let (input_end, output_end) = (input + self.required_len * size, output + self.output_len() * size);
        if self.rows() * self.cols() == 0 || output >= input_end || output_end <= input {
            return Ok(());
        }
        if output == start {
            return self.check_in_place();
        }
        Err(Error::InvalidArgument {
            argument: "output",
            got: format!("{} bytes into the input's memory", output as i128 - input as i128),
            allowed: "it starts where the input's first element lies (in place), or apart from the input".into(),
        })
    }
}

impl fmt::Display for SoftmaxProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}: {} rows of {} elements", self.kind, self.dtype, self.rows(), self.cols())?;
        if !self.rows_are_plain() {
            f.write_str(", strided")?;
        }
        if self.masked == Masked::Zero {
            f.write_str(", zeros where all is masked")?;
        }
        Ok(())
    }
}

/// The operands of a softmax in host memory.
#[derive(Debug)]
pub struct SoftmaxOperands<'a> {
    /// Elements as the problem's layout describes them, from the base pointer.
    pub input: HostSlice<'a>,
    /// One element for each element of the input (for each row: logsumexp), C order.
    pub output: HostSliceMut<'a>,
}

/// The operands of a softmax in device memory.
#[derive(Debug)]
pub struct SoftmaxDeviceOperands<'a> {
    /// Elements as the problem's layout describes them, from the base pointer.
    pub input: DeviceRef<'a>,
    /// One element for each element of the input (for each row: logsumexp), C order.
    pub output: DeviceMut<'a>,
}

impl<'a> SoftmaxDeviceOperands<'a> {
    /// One memory as input and output. Every rung of the ladder reads an element for the last time before the same
    /// thread overwrites it, so softmax and log_softmax of a contiguous array may be done in place.
    ///
    /// # Errors
    /// None in practice: the memory was aligned when it was borrowed.
    ///
    /// # Safety
    /// `input` of the result is a second handle to the memory: it must not be used by other work while these operands are
    /// in use.
    pub unsafe fn in_place(memory: DeviceMut<'a>) -> Result<SoftmaxDeviceOperands<'a>> {
        // SAFETY: the borrow of `memory` keeps it valid for 'a, and the caller lets no other work use the second handle.
        let input = unsafe { DeviceRef::from_raw(memory.address(), memory.len(), memory.dtype()) }?;
        Ok(SoftmaxDeviceOperands { input, output: memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_dtypes_and_axes_are_typed_errors() {
        let layout = Layout::contiguous(&[2, 3]).unwrap();
        for dtype in DType::all() {
            let problem = SoftmaxProblem::new(SoftmaxKind::Softmax, dtype, &layout, -1);
            assert_eq!(problem.is_ok(), dtype.is_float(), "{dtype}");
        }
        let error = SoftmaxProblem::whole(SoftmaxKind::LogSoftmax, DType::I32, 4).unwrap_err().to_string();
        assert!(error.contains("i32") && error.contains("f32, f64, f16, bf16"), "{error}");
        for axis in [2, -3] {
            let error = SoftmaxProblem::new(SoftmaxKind::Softmax, DType::F32, &layout, axis).unwrap_err();
            assert_eq!(error, Error::InvalidAxis { axis, rank: 2 });
        }
        let scalar = Layout::contiguous(&[]).unwrap();
        assert!(SoftmaxProblem::new(SoftmaxKind::Softmax, DType::F32, &scalar, -1).is_err());
    }

    #[test]
    fn outputs_are_counted_and_placed_in_c_order() {
        let layout = Layout::contiguous(&[2, 3, 4]).unwrap();
        let middle = SoftmaxProblem::new(SoftmaxKind::Softmax, DType::F32, &layout, 1).unwrap();
        assert_eq!((middle.rows(), middle.cols(), middle.inner(), middle.output_len()), (8, 3, 4, 24));
        for row in 0..8 {
            for position in 0..3 {
                // The input is in C order, so both sides must agree.
                assert_eq!(middle.output_index(row, position), middle.shape().index(row, position));
            }
        }
        assert!(middle.is_contiguous() && !middle.rows_are_plain());
        let rows = SoftmaxProblem::new(SoftmaxKind::LogSumExp, DType::F16, &layout, 1).unwrap();
        assert_eq!((rows.output_len(), rows.output_shape()), (8, vec![2, 4]));
        assert_eq!(rows.bytes(), (24 + 8) * 2);
        let padded = Layout::strided(&[5, 3], &[4, 1], 7).unwrap();
        let padded = SoftmaxProblem::new(SoftmaxKind::Softmax, DType::F64, &padded, -1).unwrap();
        assert!(padded.rows_are_plain() && !padded.is_contiguous());
        assert_eq!((padded.pitch(), padded.required_len(), padded.bytes()), (4, 7 + 4 * 4 + 3, 2 * 15 * 8));
    }

    #[test]
    fn empty_shapes_and_shapes_beyond_32_bits() {
        let empty = SoftmaxProblem::rows_of(SoftmaxKind::Softmax, DType::F32, 0, 4).unwrap();
        assert_eq!((empty.output_len(), empty.bytes(), empty.output_shape()), (0, 0, vec![0, 4]));
        let nothing = SoftmaxProblem::rows_of(SoftmaxKind::LogSumExp, DType::F32, 4, 0).unwrap();
        assert_eq!((nothing.output_len(), nothing.bytes()), (4, 16));
        let large = SoftmaxProblem::rows_of(SoftmaxKind::Softmax, DType::F32, (1 << 31) + 1, 3).unwrap();
        assert_eq!(large.bytes(), ((1u64 << 31) + 1) * 3 * 8);
        assert_eq!(large.output_index(1 << 31, 2), (1u64 << 31) * 3 + 2);
    }

    #[test]
    fn operands_are_checked() {
        let problem = SoftmaxProblem::rows_of(SoftmaxKind::Softmax, DType::F32, 2, 3).unwrap();
        let f32s = |n| (DType::F32, n);
        assert!(problem.check_operands(f32s(6), f32s(6)).is_ok());
        assert!(problem.check_operands(f32s(5), f32s(6)).is_err());
        assert!(problem.check_operands(f32s(6), f32s(7)).is_err());
        assert!(problem.check_operands(f32s(6), (DType::F16, 6)).is_err());
        assert!(problem.check_overlap(1024, 1024).is_ok());
        assert!(problem.check_overlap(1024, 1024 + 24).is_ok());
        assert!(problem.check_overlap(1024, 1024 - 24).is_ok());
        for output in [1020, 1028, 1044, 1004] {
            assert!(problem.check_overlap(1024, output).is_err(), "{output}");
        }
        let rows = SoftmaxProblem::rows_of(SoftmaxKind::LogSumExp, DType::F32, 2, 3).unwrap();
        assert!(rows.check_overlap(1024, 1024).is_err());
    }
}
