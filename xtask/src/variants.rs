//! Which kernels there are: read from the plans of the ladder's rungs, so nothing is listed a second time.

use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use upsweep::Error;
use upsweep::device::caps::{Caps, CudaCaps, DeviceKind};
use upsweep::flow::{KernelFile, Op, Plan, Step, Tuning};
use upsweep::ops::reduce::{self, Reduce, ReducePlan, ReduceProblem, ReduceRung};
use upsweep::types::{Accuracy, DType, Layout, Operator};

/// One kernel instantiation, and the values of the factors that a covering set is over.
#[derive(Clone)]
pub(crate) struct Variant {
    pub(crate) file: KernelFile,
    pub(crate) expression: String,
    /// Kernel template with its parameters after the operator; operator and accuracy; dtype; block size.
    factors: [String; 4],
    /// From a block size that is not the rung's own.
    pub(crate) other_block: bool,
}

/// The kernels of one device, by expression.
pub(crate) type Variants = BTreeMap<String, Variant>;

/// One device for each architecture that the project builds for.
pub(crate) fn devices() -> Vec<CudaCaps> {
    let mut devices = CudaCaps::known();
    devices.sort_by_key(|d| d.compute);
    devices.dedup_by_key(|d| d.compute);
    // The consumer form of the newest architecture: planned like the newest known one, compiled for its own target.
    if let Some(newest) = devices.last().cloned() {
        devices.push(CudaCaps { name: "a device of compute capability 12.0".into(), compute: (12, 0), ..newest });
    }
    devices
}

/// What is asked of each rung: sizes and layouts on both sides of every choice that a lowering makes.
fn problems(operator: Operator, dtype: DType) -> Result<Vec<ReduceProblem>> {
    let mut problems = Vec::new();
    for length in [1, 1000, 1 << 17, 1 << 20, 1 << 28] {
        problems.push(ReduceProblem::whole(operator, dtype, length)?);
    }
    // Rows for a warp, for a block, of several chunks, and of so many chunks that a block adds them.
    for shape in [[3, 33], [3, 5000], [2, 200_000], [2, 100_000_000]] {
        problems.push(ReduceProblem::new(operator, dtype, &Layout::contiguous(&shape)?, Some(&[1]))?);
    }
    let compensated: Vec<_> = problems.iter().filter_map(|p| p.clone().with_accuracy(Accuracy::Compensated).ok()).collect();
    problems.extend(compensated);
    Ok(problems)
}

fn add(variants: &mut Variants, plan: &ReducePlan, block: u32, default: bool) {
    let Some(program) = &plan.program else { return };
    for Step::Launch(launch) in &program.steps {
        let expression = &launch.kernel.expression;
        // `template<operator<dtype>, parameters>` without the operator: two kernels with the same rest differ in it only.
        let short = expression.replace("upsweep::", "");
        let (template, parameters) = short.split_once('<').unwrap_or((short.as_str(), ""));
        let rest = parameters.split_once(">,").map_or("", |(_, rest)| rest);
        let words = rest.split(',').map(str::trim).filter(|word| *word != launch.block.to_string());
        let form = format!("{template} {}", words.collect::<Vec<_>>().join(" "));
        let operator = format!("{} {:?}", plan.problem.operator(), plan.problem.accuracy());
        let factors = [form, operator, plan.problem.dtype().to_string(), block.to_string()];
        variants.entry(expression.clone()).or_insert_with(|| Variant {
            file: launch.kernel.file,
            expression: expression.clone(),
            factors,
            other_block: !default,
        });
    }
}

/// Block sizes that a rung accepts besides its own choice.
fn block_sizes(rung: &'static ReduceRung, problem: &ReduceProblem, caps: &Caps) -> Vec<u32> {
    let takes = |block: &u32| Plan::with_rung(problem, caps, rung, Tuning { block: *block }, String::new()).is_ok();
    (5..=10).map(|power| 1u32 << power).filter(takes).collect()
}

/// Every operator with every dtype that it takes.
fn pairs() -> impl Iterator<Item = (Operator, DType)> {
    Operator::all().flat_map(|operator| DType::all().filter(move |d| operator.accepts(*d)).map(move |dtype| (operator, dtype)))
}

/// Every kernel that a rung's plans can launch on a device.
pub(crate) fn all(caps: &CudaCaps) -> Result<Variants> {
    let caps = Caps::Cuda(caps.clone());
    let mut variants = Variants::new();
    for (operator, dtype) in pairs() {
        for problem in problems(operator, dtype)? {
            for rung in Reduce::ladder().iter().filter(|r| r.device() == DeviceKind::Cuda) {
                match Plan::with_rung(&problem, &caps, rung, Tuning::default(), String::new()) {
                    Ok(plan) => add(&mut variants, &plan, 0, true),
                    Err(Error::NotClaimed { .. }) => continue,
                    Err(error) => return Err(error).with_context(|| format!("{} for {problem}", rung.id())),
                }
            }
        }
    }
    // In a second round, so that a kernel which is also some rung's default counts as that.
    for (operator, dtype) in pairs() {
        for problem in problems(operator, dtype)? {
            for rung in Reduce::ladder().iter().filter(|r| r.device() == DeviceKind::Cuda) {
                for block in block_sizes(rung, &problem, &caps) {
                    let plan = Plan::with_rung(&problem, &caps, rung, Tuning { block }, String::new())?;
                    add(&mut variants, &plan, block, false);
                }
            }
        }
    }
    Ok(variants)
}

/// The kernels that the planner itself picks on a device.
pub(crate) fn planned(caps: &CudaCaps) -> Result<BTreeSet<String>> {
    let caps = Caps::Cuda(caps.clone());
    let mut variants = Variants::new();
    for (operator, dtype) in pairs() {
        for problem in problems(operator, dtype)? {
            add(&mut variants, &reduce::plan(&problem, &caps)?, 0, true);
        }
    }
    Ok(variants.into_keys().collect())
}

/// A subset in which every two values of different factors that occur together in `variants` occur together.
/// Greedy: at each step the variant that covers most of what is left, the first of equals.
pub(crate) fn covering(variants: &Variants) -> Variants {
    // Every pair of values gets a number, so that a step is a count over small lists.
    let mut numbers = BTreeMap::new();
    let mut pairs_of = |variant: &Variant| -> Vec<usize> {
        let count = variant.factors.len();
        let pairs = (0..count).flat_map(|first| (first + 1..count).map(move |second| (first, second)));
        let named = pairs.map(|(first, second)| (first, second, variant.factors[first].clone(), variant.factors[second].clone()));
        named
            .map(|pair| {
                let next = numbers.len();
                *numbers.entry(pair).or_insert(next)
            })
            .collect()
    };
    let candidates: Vec<(&Variant, Vec<usize>)> = variants.values().map(|variant| (variant, pairs_of(variant))).collect();
    let mut left = vec![true; numbers.len()];
    let mut chosen = Variants::new();
    loop {
        let gain = |pairs: &[usize]| pairs.iter().filter(|pair| left[**pair]).count();
        let best =
            candidates.iter().map(|(variant, pairs)| (gain(pairs), variant, pairs)).reduce(|a, b| if b.0 > a.0 { b } else { a });
        match best {
            Some((gain, variant, pairs)) if gain > 0 => {
                pairs.iter().for_each(|pair| left[*pair] = false);
                chosen.insert(variant.expression.clone(), (*variant).clone());
            }
            _ => return chosen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h200() -> CudaCaps {
        devices().into_iter().find(|d| d.target() == "sm_90a").unwrap()
    }

    #[test]
    fn one_device_for_each_target() {
        let targets: Vec<String> = devices().iter().map(CudaCaps::target).collect();
        assert_eq!(targets, ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"]);
    }

    #[test]
    fn every_cuda_rung_and_kernel_file_gives_variants() {
        let variants = all(&h200()).unwrap();
        let files: BTreeSet<&str> = variants.values().map(|v| v.file.path).collect();
        for rung in Reduce::ladder() {
            if let upsweep::flow::Body::Cuda { file, .. } = &rung.body {
                assert!(files.contains(file.path), "{}", file.path);
            }
        }
        // Bulk copies need compute capability 9.0.
        let old = all(&devices()[0]).unwrap();
        assert!(!old.values().any(|v| v.file.path.contains("bulk")));
        assert!(planned(&h200()).unwrap().iter().all(|expression| variants.contains_key(expression)));
    }

    #[test]
    fn a_covering_set_covers_every_pair_and_is_smaller() {
        let variants = all(&devices()[0]).unwrap();
        let chosen = covering(&variants);
        assert!(chosen.len() * 4 < variants.len(), "{} of {}", chosen.len(), variants.len());
        let pairs = |variants: &Variants| -> BTreeSet<(String, String)> {
            let tag = |v: &Variant, i: usize| format!("{i}:{}", v.factors[i]);
            let of = |v: &Variant| {
                (0..4).flat_map(|a| (0..4).map(move |b| (a, b))).map(|(a, b)| (tag(v, a), tag(v, b))).collect::<Vec<_>>()
            };
            variants.values().flat_map(of).collect()
        };
        assert_eq!(pairs(&chosen), pairs(&variants));
    }
}
