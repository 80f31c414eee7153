//! THE dtype table.

use half::{bf16, f16};
use std::fmt;

/// An element type. The discriminant is the row in [`DType::TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum DType {
    F32,
    F64,
    F16,
    Bf16,
    I32,
    I64,
    U32,
    U64,
    U8,
    I8,
    Bool,
}

/// What sort of number a dtype holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// IEEE-like floating point.
    Float,
    /// Two's complement integer.
    Signed,
    /// Unsigned integer.
    Unsigned,
    /// A truth value, one byte, 0 or 1.
    Bool,
}

/// One row of the dtype table.
#[derive(Clone, Copy, Debug)]
pub struct DTypeRow {
    /// The dtype.
    pub dtype: DType,
    /// Name in the command line, records and errors.
    pub name: &'static str,
    /// Float, signed, unsigned or bool.
    pub kind: Kind,
    /// Bytes of one element.
    pub size: u64,
    /// The C++ type in kernels.
    pub c_name: &'static str,
    /// What sums, products and means are accumulated in.
    pub accumulator: DType,
    /// Unit roundoff (half the distance from 1 to the next number); 0 for exact types.
    pub unit_roundoff: f64,
    /// The NumPy descriptor (little endian) in `.npy` files; `None` where NumPy has no such type.
    pub npy: Option<&'static str>,
    /// The name in safetensors headers.
    pub safetensors: &'static str,
    /// DLPack type code and bits.
    pub dlpack: (u8, u8),
}

macro_rules! row {
    ($d:ident, $name:literal, $kind:ident, $size:literal, $c:literal, $acc:ident, $u:expr, $npy:expr, $st:literal, $dl:expr) => {
        DTypeRow {
            dtype: DType::$d,
            name: $name,
            kind: Kind::$kind,
            size: $size,
            c_name: $c,
            accumulator: DType::$acc,
            unit_roundoff: $u,
            npy: $npy,
            safetensors: $st,
            dlpack: $dl,
        }
    };
}

// Powers of two, written so that the value is exact: 2^-24, 2^-53, 2^-11, 2^-8.
const F32_ROUNDOFF: f64 = 1.0 / (1u64 << 24) as f64;
const F64_ROUNDOFF: f64 = 1.0 / (1u64 << 53) as f64;
const F16_ROUNDOFF: f64 = 1.0 / (1u64 << 11) as f64;
const BF16_ROUNDOFF: f64 = 1.0 / (1u64 << 8) as f64;

impl DType {
    /// The table: one row for each dtype, in declaration order.
    pub const TABLE: [DTypeRow; 11] = [
        row!(F32, "f32", Float, 4, "float", F32, F32_ROUNDOFF, Some("<f4"), "F32", (2, 32)),
        row!(F64, "f64", Float, 8, "double", F64, F64_ROUNDOFF, Some("<f8"), "F64", (2, 64)),
        row!(F16, "f16", Float, 2, "upsweep::f16", F32, F16_ROUNDOFF, Some("<f2"), "F16", (2, 16)),
        row!(Bf16, "bf16", Float, 2, "upsweep::bf16", F32, BF16_ROUNDOFF, None, "BF16", (4, 16)),
        row!(I32, "i32", Signed, 4, "upsweep::i32", I64, 0.0, Some("<i4"), "I32", (0, 32)),
        row!(I64, "i64", Signed, 8, "upsweep::i64", I64, 0.0, Some("<i8"), "I64", (0, 64)),
        row!(U32, "u32", Unsigned, 4, "upsweep::u32", U64, 0.0, Some("<u4"), "U32", (1, 32)),
        row!(U64, "u64", Unsigned, 8, "upsweep::u64", U64, 0.0, Some("<u8"), "U64", (1, 64)),
        row!(U8, "u8", Unsigned, 1, "upsweep::u8", U64, 0.0, Some("|u1"), "U8", (1, 8)),
        row!(I8, "i8", Signed, 1, "upsweep::i8", I64, 0.0, Some("|i1"), "I8", (0, 8)),
        row!(Bool, "bool", Bool, 1, "bool", U64, 0.0, Some("|b1"), "BOOL", (6, 8)),
    ];

    /// Every dtype, in table order.
    pub fn all() -> impl ExactSizeIterator<Item = DType> + Clone {
        Self::TABLE.iter().map(|row| row.dtype)
    }

    /// This dtype's row.
    pub fn row(self) -> &'static DTypeRow {
        &Self::TABLE[self as usize]
    }

    /// Name in the command line, records and errors.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Bytes of one element.
    pub fn size(self) -> u64 {
        self.row().size
    }

    /// True for f32, f64, f16, bf16.
    pub fn is_float(self) -> bool {
        self.row().kind == Kind::Float
    }

    /// The dtype with this name.
    pub fn from_name(name: &str) -> Option<DType> {
        Self::TABLE.iter().find(|row| row.name == name).map(|row| row.dtype)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    /// Only the dtypes of the table are elements.
    pub trait Sealed {}
}

/// A Rust type that is an element: exactly those of [`DType::TABLE`].
///
/// # Safety
/// Implementors are plain data of `DTYPE.size()` bytes without padding; every bit pattern that a value of the type
/// can have on the device is a valid value (bool is written by kernels as 0 or 1 only).
pub unsafe trait Element:
    sealed::Sealed + Copy + Default + PartialEq + PartialOrd + fmt::Debug + Send + Sync + 'static
{
    /// The row.
    const DTYPE: DType;
    /// What sum and prod return: the type itself for floats, i64 or u64 for integers and bool.
    type Total: Element;
    /// What mean returns: the type itself for floats, f64 for integers and bool.
    type Mean: Element;
    /// The value as f64 (exact for all but 64-bit integers beyond 2^53).
    fn to_f64(self) -> f64;
    /// The value as i128 (exact for integers and bool, truncated for floats).
    fn to_i128(self) -> i128;
    /// The nearest value to `x`; integers saturate, bool is `x != 0`.
    fn from_f64(x: f64) -> Self;
    /// The low bits of `x` for integers, `x != 0` for bool, the nearest value for floats.
    fn from_i128(x: i128) -> Self;
}

macro_rules! element {
    ($t:ty, $d:ident, $total:ty, $mean:ty, $to_f64:expr, $to_i128:expr, $from_f64:expr, $from_i128:expr) => {
        impl sealed::Sealed for $t {}
        // SAFETY: plain numbers (and bool) of the size in the table; checked by the test below.
        unsafe impl Element for $t {
            const DTYPE: DType = DType::$d;
            type Total = $total;
            type Mean = $mean;
            fn to_f64(self) -> f64 {
                ($to_f64)(self)
            }
            fn to_i128(self) -> i128 {
                ($to_i128)(self)
            }
            fn from_f64(x: f64) -> Self {
                ($from_f64)(x)
            }
            fn from_i128(x: i128) -> Self {
                ($from_i128)(x)
            }
        }
    };
}

macro_rules! number {
    ($t:ty, $d:ident, $total:ty, $mean:ty) => {
        element!($t, $d, $total, $mean, |x| x as f64, |x| x as i128, |x| x as $t, |x| x as $t);
    };
}

number!(f32, F32, f32, f32);
number!(f64, F64, f64, f64);
element!(f16, F16, f16, f16, f16::to_f64, |x: f16| x.to_f64() as i128, f16::from_f64, |x| f16::from_f64(x as f64));
element!(bf16, Bf16, bf16, bf16, bf16::to_f64, |x: bf16| x.to_f64() as i128, bf16::from_f64, |x| bf16::from_f64(x as f64));
number!(i32, I32, i64, f64);
number!(i64, I64, i64, f64);
number!(u32, U32, u64, f64);
number!(u64, U64, u64, f64);
number!(u8, U8, u64, f64);
number!(i8, I8, i64, f64);
element!(bool, Bool, u64, f64, |x| x as u8 as f64, |x| x as i128, |x| x != 0.0, |x| x != 0);

/// Runs an expression with a type alias bound to the Rust type of a [`DType`].
///
/// ```
/// use upsweep::types::{DType, Element, dispatch};
/// let size = dispatch!(DType::F16, T => std::mem::size_of::<T>());
/// assert_eq!(size, 2);
/// ```
#[macro_export]
#[doc(hidden)]
macro_rules! __dispatch_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::types::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::types::DType::F64 => {
                type $t = f64;
                $body
            }
            $crate::types::DType::F16 => {
                type $t = $crate::half::f16;
                $body
            }
            $crate::types::DType::Bf16 => {
                type $t = $crate::half::bf16;
                $body
            }
            $crate::types::DType::I32 => {
                type $t = i32;
                $body
            }
            $crate::types::DType::I64 => {
                type $t = i64;
                $body
            }
            $crate::types::DType::U32 => {
                type $t = u32;
                $body
            }
            $crate::types::DType::U64 => {
                type $t = u64;
                $body
            }
            $crate::types::DType::U8 => {
                type $t = u8;
                $body
            }
            $crate::types::DType::I8 => {
                type $t = i8;
                $body
            }
            $crate::types::DType::Bool => {
                type $t = bool;
                $body
            }
        }
    };
}
pub use crate::__dispatch_dtype as dispatch;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_match_the_rust_types() {
        for (position, row) in DType::TABLE.iter().enumerate() {
            assert_eq!(row.dtype as usize, position);
            let (size, dtype) = dispatch!(row.dtype, T => (std::mem::size_of::<T>(), T::DTYPE));
            assert_eq!(size as u64, row.size, "{}", row.name);
            assert_eq!(dtype, row.dtype);
            assert_eq!(DType::from_name(row.name), Some(row.dtype));
        }
    }

    #[test]
    fn unit_roundoffs_are_the_types_own() {
        assert_eq!(DType::F32.row().unit_roundoff, f32::EPSILON as f64 / 2.0);
        assert_eq!(DType::F64.row().unit_roundoff, f64::EPSILON / 2.0);
        assert_eq!(DType::F16.row().unit_roundoff, f16::EPSILON.to_f64() / 2.0);
        assert_eq!(DType::Bf16.row().unit_roundoff, bf16::EPSILON.to_f64() / 2.0);
    }
}
