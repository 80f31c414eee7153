//! `list`: the tables of the library.

use crate::args::ListArgs;
use crate::output::{Report, Section};
use serde_json::json;
use upsweep::device::caps::DeviceKind;
use upsweep::flow::{Claims, Expect, Forms, RungFacts};
use upsweep::ops;
use upsweep::types::{DType, Operator};

/// Runs the command.
///
/// # Errors
/// Those of the output.
pub fn run(args: &ListArgs) -> anyhow::Result<()> {
    let mut rungs =
        Section::new("Rungs".to_string(), &["rung", "device", "operators", "dtypes", "layouts", "deterministic", "expected"]);
    for rung in &ops::rungs() {
        rungs.row([
            rung.id(),
            device(rung),
            operators(&rung.claims),
            dtypes(&rung.claims),
            forms(rung.claims.forms).into(),
            yes_no(rung.deterministic).into(),
            expected(rung),
        ]);
    }
    let mut operator_rows = Section::new("Operators".to_string(), &["operator", "takes", "gives", "meaning"]);
    for row in &Operator::TABLE {
        let gives: Vec<&str> = {
            let mut names: Vec<&str> =
                DType::all().filter(|d| row.operator.accepts(*d)).map(|d| row.operator.output_dtype(d).name()).collect();
            names.dedup();
            names.sort_unstable();
            names.dedup();
            names
        };
        let gives = if gives.len() > 4 { "the input's dtype".to_string() } else { gives.join(", ") };
        operator_rows.row([row.name.into(), row.operator.accepted_names(), gives, row.meaning.into()]);
    }
    let mut dtype_rows = Section::new("Dtypes".to_string(), &["dtype", "bytes", "accumulator", "npy", "safetensors"]);
    for row in &DType::TABLE {
        dtype_rows.row([
            row.name.into(),
            row.size.to_string(),
            row.accumulator.name().into(),
            row.npy.unwrap_or("-").into(),
            row.safetensors.into(),
        ]);
    }
    let json = json!({
        "ops": ops::names(),
        "rungs": ops::rungs().iter().map(rung_json).collect::<Vec<_>>(),
        "operators": Operator::TABLE.iter().map(|row| json!({
            "operator": row.name,
            "dtypes": DType::all().filter(|d| row.operator.accepts(*d)).map(DType::name).collect::<Vec<_>>(),
            "empty_is_error": row.empty_is_error,
            "rounds": row.rounds,
            "meaning": row.meaning,
        })).collect::<Vec<_>>(),
        "dtypes": DType::TABLE.iter().map(|row| json!({
            "dtype": row.name,
            "bytes": row.size,
            "accumulator": row.accumulator.name(),
            "npy": row.npy,
            "safetensors": row.safetensors,
        })).collect::<Vec<_>>(),
    });
    Report { sections: vec![rungs, operator_rows, dtype_rows], json }.write(&args.output)
}

pub(super) fn device(rung: &RungFacts) -> String {
    rung.device.name().to_string()
}

pub(super) fn operators(claims: &Claims) -> String {
    match claims.operators {
        [] => "all".into(),
        some => some.iter().map(|o| o.name()).collect::<Vec<_>>().join(", "),
    }
}

pub(super) fn dtypes(claims: &Claims) -> String {
    match claims.dtypes {
        [] => "all".into(),
        some => some.iter().map(|d| d.name()).collect::<Vec<_>>().join(", "),
    }
}

pub(super) fn forms(forms: Forms) -> &'static str {
    match forms {
        Forms::Whole => "contiguous",
        Forms::Rows => "contiguous rows",
        Forms::Columns => "columns",
        Forms::Any => "any axes and strides",
    }
}

fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

pub(super) fn expected(rung: &RungFacts) -> String {
    match rung.expect {
        Expect::Pass => "passes".into(),
        Expect::Rejected(family) => format!("rejected ({family})"),
    }
}

pub(super) fn rung_json(rung: &RungFacts) -> serde_json::Value {
    let explain = &rung.explain;
    json!({
        "op": rung.op,
        "rung": rung.full_name(),
        "device": rung.device.name(),
        "operators": if rung.claims.operators.is_empty() { Operator::reductions().map(Operator::name).collect() } else { rung.claims.operators.iter().map(|o| o.name()).collect::<Vec<_>>() },
        "dtypes": if rung.claims.dtypes.is_empty() { DType::all().map(DType::name).collect() } else { rung.claims.dtypes.iter().map(|d| d.name()).collect::<Vec<_>>() },
        "layouts": forms(rung.claims.forms),
        "compute": (rung.device == DeviceKind::Cuda).then(|| format!("{}.{}", rung.claims.compute.0, rung.claims.compute.1)),
        "max_length": (rung.claims.max_length != u64::MAX).then_some(rung.claims.max_length),
        "deterministic": rung.deterministic,
        "expected": expected(rung),
        "changed": explain.changed,
        "helps": explain.helps,
        "cost": explain.cost,
        "source": explain.source,
    })
}
