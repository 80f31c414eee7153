//! The ratchet: what the planner's kernels may use, committed; using more, or a kernel that is not listed, fails.

use crate::ptxas::Usage;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;

const HEADER: &str = "target\tkernel\tregisters\tstack\tspill_stores\tspill_loads";

/// Target and kernel expression, with what the kernel uses.
pub(crate) type Listing = BTreeMap<(String, String), Usage>;

fn line(key: &(String, String), usage: &Usage) -> String {
    let Usage { registers, stack, spill_stores, spill_loads } = usage;
    format!("{}\t{}\t{registers}\t{stack}\t{spill_stores}\t{spill_loads}", key.0, key.1)
}

/// The committed form.
pub(crate) fn format(listing: &Listing) -> String {
    let mut text = format!("{HEADER}\n");
    for (key, usage) in listing {
        text.push_str(&line(key, usage));
        text.push('\n');
    }
    text
}

/// Reads the committed form.
pub(crate) fn parse(text: &str) -> Result<Listing> {
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        bail!("the first line is not {HEADER:?}");
    }
    let mut listing = Listing::new();
    for (index, line) in lines.enumerate() {
        let context = || format!("line {}: {line:?}", index + 2);
        let cells: Vec<&str> = line.split('\t').collect();
        let [target, kernel, numbers @ ..] = cells.as_slice() else { bail!("{}", context()) };
        let numbers = numbers.iter().map(|n| n.parse::<u64>()).collect::<Result<Vec<_>, _>>().with_context(context)?;
        let [registers, stack, spill_stores, spill_loads] = numbers[..] else { bail!("{}: four numbers expected", context()) };
        let usage = Usage { registers, stack, spill_stores, spill_loads };
        if listing.insert((target.to_string(), kernel.to_string()), usage).is_some() {
            bail!("{}: listed twice", context());
        }
    }
    Ok(listing)
}

/// What came of a comparison.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Each with the line to change.
    pub(crate) worse: Vec<String>,
    /// Kernels that use less than listed.
    pub(crate) better: usize,
}

/// Holds what was measured to what is listed.
pub(crate) fn compare(listed: &Listing, measured: &Listing) -> Verdict {
    let mut verdict = Verdict::default();
    for (key, usage) in measured {
        let wanted = line(key, usage);
        match listed.get(key) {
            None => verdict.worse.push(format!("not listed; add\n    {wanted}")),
            Some(limit) => {
                let more = usage.registers > limit.registers
                    || usage.stack > limit.stack
                    || usage.spill_stores > limit.spill_stores
                    || usage.spill_loads > limit.spill_loads;
                if more {
                    verdict.worse.push(format!("uses more than listed:\n    {}\n  would become\n    {wanted}", line(key, limit)));
                } else if usage != limit {
                    verdict.better += 1;
                }
            }
        }
    }
    for (key, limit) in listed.iter().filter(|(key, _)| !measured.contains_key(*key)) {
        verdict
            .worse
            .push(format!("listed, but no longer among the planner's compiled kernels; remove\n    {}", line(key, limit)));
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(registers: u64, spill_loads: u64) -> Listing {
        let usage = Usage { registers, stack: 0, spill_stores: 0, spill_loads };
        Listing::from([(("sm_90a".to_string(), "reduce<Sum<float>, 256>".to_string()), usage)])
    }

    #[test]
    fn the_list_survives_the_round_trip() {
        assert_eq!(parse(&format(&listing(32, 4))).unwrap(), listing(32, 4));
        let text = format(&listing(32, 4));
        for bad in
            [String::new(), text.replace("32", "x"), format!("{text}a\tb\t1\n"), format!("{text}{}", &text[HEADER.len() + 1..])]
        {
            assert!(parse(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn more_registers_or_spills_or_an_unlisted_kernel_fail() {
        let listed = listing(32, 4);
        assert_eq!(compare(&listed, &listing(32, 4)), Verdict::default());
        assert_eq!(compare(&listed, &listing(31, 4)), Verdict { worse: vec![], better: 1 });
        assert!(compare(&listed, &listing(33, 4)).worse[0].contains("\t33\t"));
        assert_eq!(compare(&listed, &listing(30, 5)).worse.len(), 1);
        assert_eq!(compare(&Listing::new(), &listing(1, 0)).worse.len(), 1);
        assert_eq!(compare(&listed, &Listing::new()).worse.len(), 1);
    }
}
