//! `run`: a reduction, a scan or a softmax of a tensor of a file.

use super::note;
use crate::args::{Accuracy, Function, RunArgs, RunFormat};
use crate::device::Device;
use crate::failure::Failure;
use crate::output;
use crate::tensor::{Tensor, read_file, write_npy};
use serde_json::{Value, json};
use upsweep::flow::{Op, Problem};
use upsweep::ops::reduce::{Reduce, ReduceProblem};
use upsweep::ops::scan::{Scan, ScanProblem, ScanSpec};
use upsweep::ops::softmax::{Softmax, SoftmaxProblem};
use upsweep::types::{DType, dispatch};

/// Values that are printed of an array.
const SHOWN: usize = 6;
/// Values that are put into JSON of an array.
const SHOWN_JSON: usize = 1024;

/// Runs the command.
///
/// # Errors
/// [`crate::tensor::TensorError`]; the library's and the output's errors.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    if let Some(path) = &args.out
        && path.extension().and_then(|e| e.to_str()) != Some("npy")
    {
        return Err(Failure::Usage(format!("`--out` is {}, but a file that ends in .npy is allowed", path.display())).into());
    }
    let device = Device::select(args.device.device)?;
    let input = read_file(&args.file, args.tensor.as_deref())?;
    if args.accuracy == Accuracy::Compensated && !matches!(args.function, Function::Reduce(_)) {
        return Err(Failure::Usage(format!("`--accuracy compensated` is for sums and means, not for {}", args.function)).into());
    }
    let Ran { op, rung, result } = match args.function {
        Function::Reduce(operator) => {
            let axes = (!args.axis.is_empty()).then_some(args.axis.as_slice());
            let accuracy = match args.accuracy {
                Accuracy::Fast => upsweep::types::Accuracy::Fast,
                Accuracy::Compensated => upsweep::types::Accuracy::Compensated,
            };
            let problem = ReduceProblem::new(operator, input.dtype(), input.layout(), axes)?.with_accuracy(accuracy)?;
            compute::<Reduce>(&device, &input, &problem, &problem.shape().output_shape)?
        }
        Function::Scan(operator) => {
            let problem = ScanProblem::new(ScanSpec::inclusive(operator), input.dtype(), input.layout(), one_axis(args)?)?;
            compute::<Scan>(&device, &input, &problem, problem.output_shape())?
        }
        Function::Softmax(kind) => {
            let problem = SoftmaxProblem::new(kind, input.dtype(), input.layout(), one_axis(args)?.unwrap_or(-1))?;
            compute::<Softmax>(&device, &input, &problem, &problem.output_shape())?
        }
    };
    if let Some(path) = &args.out {
        if result.dtype().row().npy.is_none() {
            note(&format!(
                "{} is not a NumPy dtype: the result is written as f32, which holds every value exactly",
                result.dtype()
            ));
        }
        output::write_whole(path, |mut file| write_npy(&mut file, &result))?;
    }
    let shape = result.layout().shape();
    let text = match (args.format, &args.out) {
        (RunFormat::Json, _) => {
            let value = json!({
                "op": op,
                "function": args.function.to_string(),
                "dtype": input.dtype().name(),
                "shape": input.layout().shape(),
                "axes": (!args.axis.is_empty()).then_some(&args.axis),
                "device": device.kind().name(),
                "rung": rung,
                "output_dtype": result.dtype().name(),
                "output_shape": shape,
                "out": args.out,
                "values": (result.len() <= SHOWN_JSON).then(|| (0..result.len()).map(|i| number(&result, i)).collect::<Vec<_>>()),
            });
            serde_json::to_string_pretty(&value)? + "\n"
        }
        // The result is in the file.
        (RunFormat::Table, Some(_)) => String::new(),
        (RunFormat::Table, None) if shape.is_empty() => {
            format!("{} of {} {:?}: {}\n", args.function, input.dtype(), input.layout().shape(), result.display(0))
        }
        (RunFormat::Table, None) => {
            format!(
                "{} of {} {:?}: {} {shape:?} {}\n",
                args.function,
                input.dtype(),
                input.layout().shape(),
                result.dtype(),
                short(&result)
            )
        }
    };
    output::print(&text)
}

/// What a computation gave.
struct Ran {
    op: &'static str,
    rung: String,
    result: Tensor,
}

/// Plans and runs a problem.
fn compute<O: Op>(device: &Device, input: &Tensor, problem: &O::Problem, shape: &[u64]) -> anyhow::Result<Ran> {
    let plan = O::plan(problem, &device.caps())?;
    let mut result = Tensor::zeroed(problem.output().dtype, shape)?;
    device.run(&plan, input, &mut result)?;
    Ok(Ran { op: O::NAME, rung: plan.rung.facts().full_name(), result })
}

/// The axis of an operation that runs along one.
fn one_axis(args: &RunArgs) -> anyhow::Result<Option<i64>> {
    match args.axis[..] {
        [] => Ok(None),
        [axis] => Ok(Some(axis)),
        _ => Err(Failure::Usage(format!("`--axis` names {} axes, but {} runs along one", args.axis.len(), args.function)).into()),
    }
}

/// The first and last values of an array.
fn short(tensor: &Tensor) -> String {
    let half = SHOWN / 2;
    let values: Vec<String> = if tensor.len() <= SHOWN {
        (0..tensor.len()).map(|i| tensor.display(i)).collect()
    } else {
        let first = (0..half).map(|i| tensor.display(i));
        let last = (tensor.len() - half..tensor.len()).map(|i| tensor.display(i));
        first.chain(std::iter::once("...".into())).chain(last).collect()
    };
    format!("[{}]", values.join(", "))
}

/// An element in JSON: a number, or a string for what JSON has no number for.
fn number(tensor: &Tensor, position: usize) -> Value {
    let text = tensor.display(position);
    let parsed = match tensor.dtype() {
        DType::Bool => serde_json::from_str(&text),
        // The shortest text of an f32 is a valid JSON number; through f64 it would get more digits.
        dtype => dispatch!(dtype, _T => serde_json::from_str::<serde_json::Number>(&text).map(Value::Number)),
    };
    parsed.unwrap_or(Value::String(text))
}
