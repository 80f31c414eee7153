//! The operations, one folder each: API, problem, plan, ladder, oracle, CPU code and kernels side by side.

pub mod reduce;
pub mod scan;
pub mod softmax;
pub mod user;

use crate::flow::{Op, RungFacts};

/// Runs a piece of code for every operation, with the operation as a type. THE list of operations: everything that is
/// done for each of them, or for one of a given name, goes through here.
///
/// ```
/// use upsweep::flow::Op;
/// let mut names = vec![];
/// upsweep::for_each_op!(O => names.push(O::NAME));
/// assert_eq!(names, ["reduce", "scan", "softmax"]);
/// ```
#[macro_export]
macro_rules! for_each_op {
    ($op:ident => $body:expr) => {{
        {
            type $op = $crate::ops::reduce::Reduce;
            $body;
        }
        {
            type $op = $crate::ops::scan::Scan;
            $body;
        }
        {
            type $op = $crate::ops::softmax::Softmax;
            $body;
        }
    }};
}

/// Runs a piece of code with the operation of a name as a type, or gives `None` for a name that no operation has.
///
/// ```
/// use upsweep::flow::Op;
/// let rungs = upsweep::with_op!("reduce", O => O::ladder().len());
/// assert!(rungs > Some(10));
/// assert_eq!(upsweep::with_op!("fold", O => O::ladder().len()), None);
/// ```
#[macro_export]
macro_rules! with_op {
    ($name:expr, $op:ident => $body:expr) => {{
        let name: &str = $name;
        let mut found = None;
        $crate::for_each_op!($op => if <$op as $crate::flow::Op>::NAME == name { found = Some($body) });
        found
    }};
}

/// Names of all operations.
pub fn names() -> Vec<&'static str> {
    let mut names = vec![];
    for_each_op!(O => names.push(O::NAME));
    names
}

/// Every rung of every operation, operation by operation, in the ladders' order.
pub fn rungs() -> Vec<RungFacts> {
    let mut rungs = vec![];
    for_each_op!(O => rungs.extend(O::ladder().iter().map(|rung| rung.facts())));
    rungs
}
