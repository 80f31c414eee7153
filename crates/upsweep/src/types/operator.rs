//! THE operator table. An operator is a state, `lift`, `identity`, `combine` and `finish`; the Rust side of each is in
//! `ops/reduce/operators.rs`, the C++ side in `kernels/operators.cuh`, under the names of this table.

use super::{DType, Kind};
use std::fmt;

/// An operator of reductions and scans. The discriminant is the row in [`Operator::TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Operator {
    Sum,
    Prod,
    Min,
    Max,
    ArgMin,
    ArgMax,
    Mean,
    LogSumExp,
    NanMin,
    NanMax,
    WrappingSum,
    WrappingProd,
    LinearRecurrence,
    User,
}

/// How exactly a floating-point sum is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Accuracy {
    /// A tree in the accumulator type; error at most `c * eps * log2(n) * sum|x|`.
    #[default]
    Fast,
    /// f64 accumulation for f32, f16 and bf16; double-double (error-free transform) for f64.
    Compensated,
}

/// How the output dtype follows from the input dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputType {
    /// The input's dtype.
    Same,
    /// Floats keep their dtype; integers become i64 or u64; bool becomes u64 (a count).
    Total,
    /// Floats keep their dtype; integers and bool become f64.
    Mean,
    /// u64.
    Index,
    /// What the caller's own operator gives; the table does not know it.
    Own,
}

/// One row of the operator table.
#[derive(Clone, Copy, Debug)]
pub struct OperatorRow {
    /// The operator.
    pub operator: Operator,
    /// Name in the command line, records and errors.
    pub name: &'static str,
    /// The C++ struct template in `operators.cuh`; its parameter is the element type.
    pub c_name: &'static str,
    /// What it returns.
    pub output: OutputType,
    /// Defined for floats only.
    pub floats_only: bool,
    /// Defined for integers only.
    pub integers_only: bool,
    /// An empty reduction is an error rather than a value.
    pub empty_is_error: bool,
    /// `combine(a, b) == combine(b, a)`: lanes may be interleaved.
    pub commutative: bool,
    /// Defined as a reduction; if not, it only scans.
    pub reduces: bool,
    /// `combine` rounds for floats (sum, prod, mean, logsumexp), so the order of additions shows in the last bits.
    pub rounds: bool,
    /// What one call means, for `list` and the docs.
    pub meaning: &'static str,
}

macro_rules! row {
    ($o:ident, $name:literal, $c:literal, $out:ident, floats_only: $f:literal, integers_only: $i:literal, empty_is_error: $e:literal, rounds: $r:literal, $meaning:literal) => {
        OperatorRow {
            operator: Operator::$o,
            name: $name,
            c_name: $c,
            output: OutputType::$out,
            floats_only: $f,
            integers_only: $i,
            empty_is_error: $e,
            commutative: true,
            reduces: true,
            rounds: $r,
            meaning: $meaning,
        }
    };
}

impl Operator {
    /// The table: one row for each operator, in declaration order.
    pub const TABLE: [OperatorRow; 14] = [
        row!(Sum, "sum", "Sum", Total, floats_only: false, integers_only: false, empty_is_error: false, rounds: true, "sum; of nothing 0; integers in 64 bits; bool counts"),
        row!(Prod, "prod", "Prod", Total, floats_only: false, integers_only: false, empty_is_error: false, rounds: true, "product; of nothing 1; integers in 64 bits, wrapping"),
        row!(Min, "min", "Min", Same, floats_only: false, integers_only: false, empty_is_error: true, rounds: false, "smallest element; NaN propagates"),
        row!(Max, "max", "Max", Same, floats_only: false, integers_only: false, empty_is_error: true, rounds: false, "largest element; NaN propagates"),
        row!(ArgMin, "argmin", "ArgMin", Index, floats_only: false, integers_only: false, empty_is_error: true, rounds: false, "index of the smallest element; the first NaN, else the lowest index of a tie"),
        row!(ArgMax, "argmax", "ArgMax", Index, floats_only: false, integers_only: false, empty_is_error: true, rounds: false, "index of the largest element; the first NaN, else the lowest index of a tie"),
        row!(Mean, "mean", "Mean", Mean, floats_only: false, integers_only: false, empty_is_error: false, rounds: true, "arithmetic mean; of nothing NaN; divides before it rounds"),
        row!(LogSumExp, "logsumexp", "LogSumExp", Same, floats_only: true, integers_only: false, empty_is_error: false, rounds: true, "log of the sum of exponentials, shifted by the maximum; of nothing -inf"),
        row!(NanMin, "nan_min", "NanMin", Same, floats_only: false, integers_only: false, empty_is_error: true, rounds: false, "smallest element that is not NaN; NaN if all are"),
        row!(NanMax, "nan_max", "NanMax", Same, floats_only: false, integers_only: false, empty_is_error: true, rounds: false, "largest element that is not NaN; NaN if all are"),
        row!(WrappingSum, "wrapping_sum", "WrappingSum", Same, floats_only: false, integers_only: true, empty_is_error: false, rounds: false, "sum in the input's own width, wrapping"),
        row!(WrappingProd, "wrapping_prod", "WrappingProd", Same, floats_only: false, integers_only: true, empty_is_error: false, rounds: false, "product in the input's own width, wrapping"),
        OperatorRow {
            operator: Operator::LinearRecurrence,
            name: "linear_recurrence",
            c_name: "LinearRecurrence",
            output: OutputType::Same,
            floats_only: true,
            integers_only: false,
            empty_is_error: false,
            commutative: false,
            reduces: false,
            rounds: true,
            meaning: "h[i] = a[i] * h[i-1] + b[i] of two inputs; scans only",
        },
        // What a problem of `ops::user::UserOperator` answers; dtypes and state are that operator's own.
        OperatorRow {
            operator: Operator::User,
            name: "user",
            c_name: "UserOperator",
            output: OutputType::Own,
            floats_only: false,
            integers_only: false,
            empty_is_error: false,
            commutative: false,
            reduces: false,
            rounds: true,
            meaning: "an operator of the caller's own, in the library only: `ops::user::UserOperator`",
        },
    ];

    /// Every operator, in table order.
    pub fn all() -> impl ExactSizeIterator<Item = Operator> + Clone {
        Self::TABLE.iter().map(|row| row.operator)
    }

    /// Those that are reductions, in table order.
    pub fn reductions() -> impl Iterator<Item = Operator> + Clone {
        Self::TABLE.iter().filter(|row| row.reduces).map(|row| row.operator)
    }

    /// This operator's row.
    pub fn row(self) -> &'static OperatorRow {
        &Self::TABLE[self as usize]
    }

    /// Name in the command line, records and errors.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The operator with this name.
    pub fn from_name(name: &str) -> Option<Operator> {
        Self::TABLE.iter().find(|row| row.name == name).map(|row| row.operator)
    }

    /// Whether the operator is defined for the dtype.
    pub fn accepts(self, dtype: DType) -> bool {
        let row = self.row();
        match dtype.row().kind {
            Kind::Float => !row.integers_only,
            Kind::Signed | Kind::Unsigned => !row.floats_only,
            Kind::Bool => !row.floats_only && !row.integers_only,
        }
    }

    /// The dtypes the operator takes, in words, for errors.
    pub fn accepted_names(self) -> String {
        let names: Vec<&str> = DType::all().filter(|d| self.accepts(*d)).map(DType::name).collect();
        names.join(", ")
    }

    /// The output dtype for an input dtype; of [`Operator::User`] a problem knows it.
    pub fn output_dtype(self, input: DType) -> DType {
        match (self.row().output, input.row().kind) {
            (OutputType::Same | OutputType::Own, _) => input,
            (OutputType::Index, _) => DType::U64,
            (OutputType::Total | OutputType::Mean, Kind::Float) => input,
            (OutputType::Total, _) => input.row().accumulator,
            (OutputType::Mean, _) => DType::F64,
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_order_and_named_once() {
        for (position, row) in Operator::TABLE.iter().enumerate() {
            assert_eq!(row.operator as usize, position);
            assert_eq!(Operator::from_name(row.name), Some(row.operator));
            assert!(!(row.floats_only && row.integers_only));
        }
        assert_eq!(Operator::reductions().count(), Operator::TABLE.len() - 2);
        assert!(!Operator::LinearRecurrence.row().reduces && !Operator::LinearRecurrence.row().commutative);
    }

    #[test]
    fn output_types_follow_the_contract() {
        assert_eq!(Operator::Sum.output_dtype(DType::U8), DType::U64);
        assert_eq!(Operator::Sum.output_dtype(DType::I8), DType::I64);
        assert_eq!(Operator::Sum.output_dtype(DType::F16), DType::F16);
        assert_eq!(Operator::Mean.output_dtype(DType::I32), DType::F64);
        assert_eq!(Operator::ArgMax.output_dtype(DType::Bool), DType::U64);
        assert_eq!(Operator::WrappingSum.output_dtype(DType::I32), DType::I32);
    }
}
