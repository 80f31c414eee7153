//! The vocabulary: element types, operators and layouts. Each is one table; everything else iterates it.

mod dtype;
mod layout;
mod operator;

pub use dtype::{DType, DTypeRow, Element, Kind, dispatch};
pub use layout::{Dim, Layout, MAX_DIMS, MAX_ELEMENTS, ReduceShape};
pub use operator::{Accuracy, Operator, OperatorRow, OutputType};
