//! What the cases of every operation are made of: levels, layouts, lengths. The cases themselves are the operation's
//! ([`Judged::cases`](crate::judged::Judged::cases)); a rung's claims decide which of them it takes.

use upsweep::Result;
use upsweep::types::Layout;

/// A shape's layout, and the axes along which an operation runs (`None`: all of them).
pub type Geometry = (Layout, Option<&'static [i64]>);

/// How many cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A pairwise covering of few lengths: a few seconds on two cores.
    Quick,
    /// A pairwise covering of every axis.
    Full,
    /// Beyond 2^31 elements; devices that make their own data only.
    Huge,
}

impl Level {
    /// Name in the command line and in records.
    pub fn name(self) -> &'static str {
        match self {
            Level::Quick => "quick",
            Level::Full => "full",
            Level::Huge => "huge",
        }
    }
}

/// How the elements lie, and what is reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// A contiguous array to one value.
    Whole,
    /// A contiguous part, five elements into the memory, to one value.
    Slice,
    /// Every second element to one value.
    Strided,
    /// A contiguous array walked backwards, to one value.
    Backwards,
    /// Five rows, along the last axis.
    LastAxis,
    /// Five columns, along the first axis.
    FirstAxis,
    /// 2 x length x 3, along the middle axis.
    MiddleAxis,
    /// length x 2 x 3, along the first and the last axis.
    OuterAxes,
    /// Rows a little longer than what is read of them (a matrix with padding), along the last axis.
    PaddedRows,
    /// Three times the same row by a stride of zero, along the last axis.
    Broadcast,
    /// 65536 rows, along the last axis.
    ManyRows,
    /// 70000 rows, along the last axis.
    MoreRows,
    /// No rows at all, along the last axis: an empty result.
    NoRows,
}

impl Form {
    /// Every form.
    pub const ALL: [Form; 13] = [
        Form::Whole,
        Form::Slice,
        Form::Strided,
        Form::Backwards,
        Form::LastAxis,
        Form::FirstAxis,
        Form::MiddleAxis,
        Form::OuterAxes,
        Form::PaddedRows,
        Form::Broadcast,
        Form::ManyRows,
        Form::MoreRows,
        Form::NoRows,
    ];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Form::Whole => "whole",
            Form::Slice => "slice",
            Form::Strided => "strided",
            Form::Backwards => "backwards",
            Form::LastAxis => "last axis",
            Form::FirstAxis => "first axis",
            Form::MiddleAxis => "middle axis",
            Form::OuterAxes => "first and last axis",
            Form::PaddedRows => "padded rows",
            Form::Broadcast => "broadcast rows",
            Form::ManyRows => "65536 rows",
            Form::MoreRows => "70000 rows",
            Form::NoRows => "no rows",
        }
    }

    /// Shape, strides, offset and reduced axes for a length.
    ///
    /// # Errors
    /// [`upsweep::Error`] for lengths beyond what a layout holds.
    pub fn geometry(self, length: u64) -> Result<Geometry> {
        let step = length as i64;
        let (shape, strides, offset, axes): (Vec<u64>, Vec<i64>, u64, Option<&'static [i64]>) = match self {
            Form::Whole => (vec![length], vec![1], 0, None),
            Form::Slice => (vec![length], vec![1], 5, None),
            Form::Strided => (vec![length], vec![2], 1, None),
            Form::Backwards => (vec![length], vec![-1], length.saturating_sub(1), None),
            Form::LastAxis => (vec![5, length], vec![step, 1], 0, Some(&[-1])),
            Form::FirstAxis => (vec![length, 5], vec![5, 1], 0, Some(&[0])),
            Form::MiddleAxis => (vec![2, length, 3], vec![3 * step, 3, 1], 0, Some(&[1])),
            Form::OuterAxes => (vec![length, 2, 3], vec![6, 3, 1], 0, Some(&[0, -1])),
            Form::PaddedRows => (vec![3, length], vec![step + 3, 1], 2, Some(&[-1])),
            Form::Broadcast => (vec![3, length], vec![0, 1], 0, Some(&[1])),
            Form::ManyRows => (vec![65536, length], vec![step, 1], 0, Some(&[-1])),
            Form::MoreRows => (vec![70000, length], vec![step, 1], 0, Some(&[-1])),
            Form::NoRows => (vec![0, length], vec![step, 1], 0, Some(&[-1])),
        };
        Ok((Layout::strided(&shape, &strides, offset)?, axes))
    }

    /// The elements lie in C order without gaps, from the base pointer on.
    pub fn is_contiguous(self) -> bool {
        use Form::{Backwards, Broadcast, PaddedRows, Slice, Strided};
        !matches!(self, Slice | Strided | Backwards | PaddedRows | Broadcast)
    }

    /// The operation runs along more than one axis.
    pub fn has_several_axes(self) -> bool {
        self == Form::OuterAxes
    }

    /// Tens of thousands of rows, of few elements.
    pub fn has_many_rows(self) -> bool {
        matches!(self, Form::ManyRows | Form::MoreRows)
    }

    /// Lengths beyond this make an input too large to be worth it.
    pub fn longest(self) -> u64 {
        match self {
            _ if self.has_many_rows() => 33,
            Form::Whole | Form::Slice => u64::MAX,
            _ => 1 << 18,
        }
    }
}

/// Lengths at every edge that kernels have: warp, block, tile, chunk and pipeline stage, and one either side.
pub const FULL_LENGTHS: [u64; 47] = [
    0,
    1,
    2,
    3,
    7,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    65,
    127,
    128,
    129,
    255,
    256,
    257,
    511,
    512,
    513,
    1000,
    1023,
    1024,
    1025,
    4095,
    4096,
    4097,
    8191,
    8192,
    8193,
    16383,
    16384,
    16385,
    32767,
    32768,
    32769,
    50257,
    65535,
    65536,
    65537,
    131_073,
    262_145,
    700_001,
    (1 << 20) + 13,
];

/// A choice of the above that stays fast.
pub const QUICK_LENGTHS: [u64; 11] = [0, 1, 2, 31, 33, 257, 1025, 4097, 16383, 65537, 70_001];

/// Shifts: every element address within 16 bytes of the smallest dtypes that kernels load as vectors.
pub const FULL_SHIFTS: [u64; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
/// A choice of them.
pub const QUICK_SHIFTS: [u64; 3] = [0, 1, 3];

/// Lengths and shifts of a level; [`Level::Huge`] has none: its data are made on the device.
pub fn lengths_and_shifts(level: Level) -> (&'static [u64], &'static [u64]) {
    match level {
        Level::Quick => (&QUICK_LENGTHS, &QUICK_SHIFTS),
        Level::Full => (&FULL_LENGTHS, &FULL_SHIFTS),
        Level::Huge => (&[], &[]),
    }
}
