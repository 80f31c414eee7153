//! Where a rung's launches change, taken from its plans: what tests at the edges of every rung walk along.

use upsweep::Error;
use upsweep::device::caps::Caps;
use upsweep::flow::{Op, Plan, Rung, Step, Tuning};

/// A rung's plan, if it takes the problem on the device.
pub(crate) fn claimed<O: Op>(problem: &O::Problem, caps: &Caps, rung: &'static Rung<O>) -> Option<Plan<O>> {
    match Plan::with_rung(problem, caps, rung, Tuning::default(), "a test".into()) {
        Ok(plan) => Some(plan),
        Err(Error::NotClaimed { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// What shows where a rung's launches change: the kernels, their grids, and what they keep between blocks.
pub(crate) fn signature<O: Op>(plan: &Plan<O>) -> String {
    let program = plan.program.as_ref().expect("a plan of a device has launches");
    let launch = |Step::Launch(l): &Step| format!("{} {} {} {} ", l.kernel.expression, l.grid, l.block, l.shared_bytes);
    let launches: String = program.steps.iter().map(launch).collect();
    format!("{launches} {} {}", program.control.words, program.scratch_bytes)
}

/// The plans of a rung on both sides of its edges, up to about `most` elements: wherever, from one power of two to the
/// next, another kernel takes over or a tile or block more is needed, of one place where it does.
pub(crate) fn edges<O: Op>(most: u64, plan_of: impl Fn(u64) -> Option<Plan<O>>) -> Vec<Plan<O>> {
    let of = |length: u64| plan_of(length).as_ref().map(signature);
    let mut lengths = vec![1];
    let mut octave = 1;
    while octave < most {
        let (mut low, mut high) = (octave, (2 * octave).min(most));
        let first = of(low);
        if first != of(high) {
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if of(middle) == first { low = middle } else { high = middle }
            }
            lengths.extend([low, high, high + 1]);
        }
        octave *= 2;
    }
    lengths.sort_unstable();
    lengths.dedup();
    lengths.into_iter().filter_map(plan_of).collect()
}

/// How many plans of each rung there are, by its name.
pub(crate) fn count_by_rung<O: Op>(plans: &[Plan<O>]) -> std::collections::BTreeMap<&'static str, usize> {
    let mut counts = std::collections::BTreeMap::new();
    plans.iter().for_each(|plan| *counts.entry(plan.rung.name).or_default() += 1);
    counts
}

/// Rungs that do not stand on both sides of an edge: neighbouring plans of a walk, of lengths that differ by one, whose
/// launches differ.
pub(crate) fn without_an_edge<O: Op>(
    plans: &[Plan<O>],
    length: impl Fn(&Plan<O>) -> u64,
    rungs: impl Iterator<Item = &'static Rung<O>>,
) -> Vec<String> {
    let is_edge = |rung: &Rung<O>, pair: &[Plan<O>]| {
        let of_rung = pair.iter().all(|plan| plan.rung.name == rung.name);
        of_rung && length(&pair[1]) == length(&pair[0]) + 1 && signature(&pair[0]) != signature(&pair[1])
    };
    rungs.filter(|rung| !plans.windows(2).any(|pair| is_edge(rung, pair))).map(Rung::id).collect()
}
