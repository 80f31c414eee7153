//! The operations, one folder each: API, problem, plan, ladder, oracle, CPU code and kernels side by side.

pub mod reduce;
