//! Which kernels there are: read from the plans of the ladder's rungs, so nothing is listed a second time.

use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use upsweep::Error;
use upsweep::device::caps::{Caps, CudaCaps, DeviceKind};
use upsweep::flow::{KernelFile, Op, Plan, Problem, Rung, Step, Tuning};
use upsweep_gate::judged::Judged;

/// One kernel instantiation, and the values of the factors that a covering set is over.
#[derive(Clone)]
pub(crate) struct Variant {
    pub(crate) file: KernelFile,
    pub(crate) expression: String,
    /// Kernel template with its parameters after the operator; operator, by its own name and its kernels'; dtype; block size.
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
    // The consumer form of the newest architecture: as the newest known one, with less shared memory and a target of its own.
    if let Some(newest) = devices.last().cloned() {
        let name = "a device of compute capability 12.0".into();
        devices.push(CudaCaps { name, compute: (12, 0), shared_bytes_per_block: 99 << 10, ..newest });
    }
    devices
}

fn add<O: Judged>(variants: &mut Variants, plan: &Plan<O>, block: u32, default: bool) {
    let Some(program) = &plan.program else { return };
    // Tile kernels are compiled by another compiler (`tiles`).
    let compiled_here = |Step::Launch(launch): &&Step| launch.kernel.file.tiles.is_empty();
    for Step::Launch(launch) in program.steps.iter().filter(compiled_here) {
        let expression = &launch.kernel.expression;
        // `template<operator<dtype>, parameters>` (or `template<dtype, parameters>`) without the operator: two kernels with
        // the same rest differ in it only.
        let short = expression.replace("upsweep::", "");
        let (template, parameters) = short.split_once('<').unwrap_or((short.as_str(), ""));
        let rest = parameters.split_once(">,").or_else(|| parameters.split_once(',')).map_or("", |(_, rest)| rest);
        let words = rest.split(',').map(str::trim).filter(|word| *word != launch.block.to_string());
        let form = format!("{template} {}", words.collect::<Vec<_>>().join(" "));
        let kind = parameters.split(['<', ',']).next().unwrap_or("");
        let operator = format!("{} {} {kind}", O::NAME, O::operator_of(&plan.problem));
        let factors = [form, operator, plan.problem.input().dtype.to_string(), block.to_string()];
        variants.entry(expression.clone()).or_insert_with(|| Variant {
            file: launch.kernel.file,
            expression: expression.clone(),
            factors,
            other_block: !default,
        });
    }
}

/// Block sizes that a rung accepts besides its own choice.
fn block_sizes<O: Judged>(rung: &'static Rung<O>, problem: &O::Problem, caps: &Caps) -> Vec<u32> {
    let takes = |block: &u32| Plan::with_rung(problem, caps, rung, Tuning { block: *block }, String::new()).is_ok();
    (5..=10).map(|power| 1u32 << power).filter(takes).collect()
}

fn cuda_rungs<O: Judged>() -> impl Iterator<Item = &'static Rung<O>> {
    O::ladder().iter().filter(|rung| rung.device() == DeviceKind::Cuda)
}

/// Every kernel that a rung's plans can launch on a device.
pub(crate) fn all(caps: &CudaCaps) -> Result<Variants> {
    let caps = Caps::Cuda(caps.clone());
    let mut variants = Variants::new();
    upsweep::for_each_op!(O => own_choice::<O>(&caps, &mut variants)?);
    // In a second round, so that a kernel which is also some rung's default counts as that.
    upsweep::for_each_op!(O => other_blocks::<O>(&caps, &mut variants)?);
    Ok(variants)
}

fn own_choice<O: Judged>(caps: &Caps, variants: &mut Variants) -> Result<()> {
    for problem in O::lowering_problems()? {
        for rung in cuda_rungs::<O>() {
            match Plan::with_rung(&problem, caps, rung, Tuning::default(), String::new()) {
                Ok(plan) => add(variants, &plan, 0, true),
                Err(Error::NotClaimed { .. }) => continue,
                Err(error) => return Err(error).with_context(|| format!("{} for {problem}", rung.id())),
            }
        }
    }
    Ok(())
}

fn other_blocks<O: Judged>(caps: &Caps, variants: &mut Variants) -> Result<()> {
    // What lies beside the elements changes how a lane reads, not how a block meets: one input is enough for CI's time.
    for problem in O::lowering_problems()?.into_iter().filter(|problem| problem.second_input().is_none()) {
        for rung in cuda_rungs::<O>() {
            for block in block_sizes(rung, &problem, caps) {
                let plan = Plan::with_rung(&problem, caps, rung, Tuning { block }, String::new())?;
                add(variants, &plan, block, false);
            }
        }
    }
    Ok(())
}

/// The kernels that the planner itself picks on a device.
pub(crate) fn planned(caps: &CudaCaps) -> Result<BTreeSet<String>> {
    let caps = Caps::Cuda(caps.clone());
    let mut variants = Variants::new();
    upsweep::for_each_op!(O => {
        for problem in O::lowering_problems()? {
            add(&mut variants, &O::plan(&problem, &caps)?, 0, true);
        }
    });
    Ok(variants.into_keys().collect())
}

/// What a covering set meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cover {
    /// Every kernel template, operator, dtype and block size.
    Values,
    /// Every two values of different factors that occur together.
    Pairs,
}

/// A subset that meets what `variants` meet.
/// Greedy: at each step the variant that covers most of what is left, the first of equals.
pub(crate) fn covering(variants: &Variants, cover: Cover) -> Variants {
    // Every pair of values gets a number, so that a step is a count over small lists. A value is a pair with itself.
    let mut numbers = BTreeMap::new();
    let mut pairs_of = |variant: &Variant| -> Vec<usize> {
        let count = variant.factors.len();
        let pairs: Vec<(usize, usize)> = match cover {
            Cover::Values => (0..count).map(|factor| (factor, factor)).collect(),
            Cover::Pairs => (0..count).flat_map(|first| (first + 1..count).map(move |second| (first, second))).collect(),
        };
        let pairs = pairs.into_iter();
        // Of a form, values count the template alone.
        let value = |factor: usize| match (cover, variant.factors[factor].split(' ').next()) {
            (Cover::Values, Some(template)) if factor == 0 => template.to_string(),
            _ => variant.factors[factor].clone(),
        };
        let named: Vec<_> = pairs.map(|(first, second)| (first, second, value(first), value(second))).collect();
        let named = named.into_iter();
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
        for file in upsweep::ops::rungs().iter().filter_map(|rung| rung.file).filter(|file| file.tiles.is_empty()) {
            assert!(files.contains(file.path), "{}", file.path);
        }
        // Bulk copies need compute capability 9.0.
        let old = all(&devices()[0]).unwrap();
        assert!(!old.values().any(|v| v.file.path.contains("bulk")));
        assert!(planned(&h200()).unwrap().iter().all(|expression| variants.contains_key(expression)));
    }

    #[test]
    fn a_covering_set_covers_every_pair_and_is_smaller() {
        let variants = all(&devices()[0]).unwrap();
        let chosen = covering(&variants, Cover::Pairs);
        // Many forms of a softmax's rows occur once: pairs alone need a third of all.
        assert!(chosen.len() * 2 < variants.len(), "{} of {}", chosen.len(), variants.len());
        let pairs = |variants: &Variants| -> BTreeSet<(String, String)> {
            let tag = |v: &Variant, i: usize| format!("{i}:{}", v.factors[i]);
            let of = |v: &Variant| {
                (0..4).flat_map(|a| (0..4).map(move |b| (a, b))).map(|(a, b)| (tag(v, a), tag(v, b))).collect::<Vec<_>>()
            };
            variants.values().flat_map(of).collect()
        };
        assert_eq!(pairs(&chosen), pairs(&variants));
        let few = covering(&variants, Cover::Values);
        let values = |variants: &Variants| -> BTreeSet<(usize, String)> {
            let template = |form: &str| form.split(' ').next().unwrap_or("").to_string();
            let of = |v: &Variant| {
                let [form, rest @ ..] = &v.factors;
                std::iter::once(template(form)).chain(rest.iter().cloned()).enumerate().collect::<Vec<_>>()
            };
            variants.values().flat_map(of).collect()
        };
        assert_eq!(values(&few), values(&variants));
        assert!(few.len() * 20 < chosen.len(), "{} of {}", few.len(), chosen.len());
    }
}
