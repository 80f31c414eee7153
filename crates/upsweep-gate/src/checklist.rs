//! The document's nine boxes, each met or not met with its evidence.

use crate::cases::Level;
use crate::climb::{ClimbOptions, climb};
use crate::error::Result;
use crate::record::{ChecklistBox, Kind, Record, Row};
use crate::target::Target;
use crate::verify::{Context, OnProgress, Selection, VerifyOptions, VerifyReport, verify};
use upsweep::device::caps::DeviceKind;
use upsweep::ops::reduce::Reduce;
use upsweep::types::DType;

/// The size that the document's table is at.
const DOCUMENT_N: u64 = 1 << 28;

/// The share of the peak that box 3 asks of rung 4.
const RUNG_4_PERCENT: f64 = 80.0;

/// The five stages of the document.
const STAGES: [&str; 5] = ["0", "1", "2", "3", "4"];

/// What [`checklist`] is asked.
#[derive(Clone, Copy, Debug)]
pub struct ChecklistOptions {
    /// Elements of the ladder's table; the document asks for 2^28.
    pub n: u64,
    /// Timed calls of a rung.
    pub repeats: u32,
    /// The seed that every datum follows from.
    pub seed: u64,
}

/// Verifies, climbs, and fills [`Record::boxes`].
///
/// # Errors
/// [`crate::GateError`]: a wrong argument, or what the driver refuses.
pub fn checklist<T: Target<Reduce>>(
    target: &mut T,
    options: ChecklistOptions,
    context: &Context,
    progress: OnProgress<'_>,
) -> Result<Record> {
    let selection = Selection { operators: vec!["sum".into()], dtypes: vec![DType::F32], rungs: vec![] };
    let verify_options = VerifyOptions { selection, level: Level::Quick, seed: options.seed, wrong_kernels: true };
    let report = verify::<Reduce>(target, &verify_options, progress)?;
    let climb_options = ClimbOptions {
        n: options.n,
        dtype: DType::F32,
        operators: vec!["sum".into()],
        rungs: vec![],
        block: None,
        repeats: options.repeats,
        seed: options.seed,
    };
    let mut record = climb::<Reduce>(target, &climb_options, context, progress)?;
    record.kind = Kind::Checklist;
    record.boxes = boxes(&record, &report, target.caps().kind());
    record.verify = Some(report.summary);
    record.rungs = report.rungs;
    record.wrong_kernels = report.wrong_kernels;
    Ok(record)
}

/// The row of a rung's number.
fn row<'a>(record: &'a Record, number: &str) -> Option<&'a Row> {
    record.rows.iter().find(|row| row.rung.split('-').next() == Some(number))
}

/// Whether a rung passed its cases too.
fn passed(report: &VerifyReport, number: &str) -> bool {
    report.rungs.iter().any(|rung| rung.rung.split('-').next() == Some(number) && rung.verdict == "passed")
}

/// The boxes, from a climb and a verification. The five stages are CUDA kernels: on the CPU their boxes are not met.
fn boxes(record: &Record, report: &VerifyReport, device: DeviceKind) -> Vec<ChecklistBox> {
    let on_cuda = device == DeviceKind::Cuda;
    let stages: Vec<Option<&Row>> = STAGES.iter().map(|number| row(record, number)).collect();
    let not_here = || {
        let right = report.rungs.iter().filter(|r| r.verdict == "passed").count();
        format!("the five stages are CUDA kernels and this is the CPU ({right} of its {} rungs are verified)", report.rungs.len())
    };
    let described = |rows: &[Option<&Row>], words: &dyn Fn(&Row) -> String| -> String {
        rows.iter().map(|row| row.map_or("missing".to_string(), words)).collect::<Vec<_>>().join("; ")
    };
    let mut boxes = vec![];
    let mut add = |text: &str, met: Option<bool>, evidence: String| {
        boxes.push(ChecklistBox { number: boxes.len() as u32 + 1, text: text.into(), met, evidence });
    };

    let correct = |row: &Row| row.verified && row.rtol_1e4_met == Some(true);
    let right = on_cuda && STAGES.iter().zip(&stages).all(|(number, row)| row.is_some_and(correct) && passed(report, number));
    let evidence = described(&stages, &|row| match (&row.failure, row.error) {
        (None, Some(error)) => format!("{}: error {error:.3e}", row.rung),
        (failure, _) => format!("{}: {}", row.rung, failure.as_deref().unwrap_or("no comparison")),
    });
    add(
        "Reduction: rungs 0 to 4 return the right sum against the CPU (relative tolerance 1e-4)",
        Some(right),
        if on_cuda { evidence } else { not_here() },
    );

    let timed = |row: &Row| row.verified && row.seconds.is_some() && row.percent_of_peak.is_some();
    let complete = on_cuda && stages.iter().all(|row| row.is_some_and(|row| timed(row) && row.n == DOCUMENT_N));
    let evidence = described(&stages, &|row| match (row.seconds, row.bytes_per_second, row.percent_of_peak) {
        (Some(seconds), Some(rate), Some(percent)) => {
            format!("{}: {:.4} ms, {:.0} GB/s, {percent:.1} %", row.rung, seconds * 1e3, rate / 1e9)
        }
        _ => format!("{}: no figure", row.rung),
    });
    add(
        "Reduction: the table of milliseconds, GB/s and % of peak is complete for the five stages at N = 2^28",
        Some(complete),
        if on_cuda { format!("N = {}: {evidence}", stages.iter().flatten().next().map_or(0, |row| row.n)) } else { not_here() },
    );

    let percent = stages[4].and_then(|row| row.percent_of_peak);
    let evidence = match percent {
        Some(percent) => {
            let peak = record
                .peak
                .as_ref()
                .map_or(String::new(), |p| format!(" of {:.0} GB/s ({})", p.bytes_per_second / 1e9, p.source));
            format!("rung 4 reaches {percent:.1} %{peak}")
        }
        None => "rung 4 has no share of a peak".to_string(),
    };
    add(
        "Reduction: rung 4 reaches at least 80 % of the device's memory bandwidth",
        Some(on_cuda && percent.is_some_and(|percent| percent >= RUNG_4_PERCENT)),
        if on_cuda { evidence } else { not_here() },
    );

    let both = ["5a", "5b"].iter().all(|number| row(record, number).is_some_and(|row| row.verified) && passed(report, number));
    let accumulating = report.wrong_kernels.iter().find(|wrong| wrong.name == "accumulates");
    let zeroed = accumulating.is_some_and(|wrong| wrong.rejected);
    let evidence = format!(
        "second pass (5a) and atomics (5b) {}; poisoned outputs before every run; the kernel that does not zero its output is {}",
        if both { "are verified" } else { "are not both verified" },
        match accumulating {
            Some(wrong) if wrong.rejected => "rejected",
            Some(_) => "NOT rejected",
            None => "not available on this device",
        }
    );
    add(
        "Reduction: the multi-block form exists both ways, and the output is initialised to 0",
        Some(on_cuda && both && (zeroed || accumulating.is_none())),
        if on_cuda { evidence } else { not_here() },
    );

    for text in [
        "Scan: one block is right against the sequential reference, and the composed scan for N over many blocks",
        "Scan: N that is not a multiple of the block is handled",
        "Softmax: the stable form is right (relative tolerance 1e-4), every row sums to 1, no NaN on large input",
        "Softmax: the online form equals the stable form, in a single computing pass",
    ] {
        add(text, None, "not built yet".into());
    }

    let rejected = report.wrong_kernels.iter().filter(|wrong| wrong.rejected).count();
    let unverified_with_time = record.rows.iter().filter(|row| !row.verified && row.seconds.is_some()).count();
    let count = report.wrong_kernels.iter().filter(|wrong| !wrong.skipped).count();
    add(
        "All device calls are checked, and a kernel that is not verified reports nothing",
        Some(count > 0 && rejected == count && unverified_with_time == 0),
        format!(
            "{rejected} of {count} wrong kernels rejected; {unverified_with_time} rows with a time and no verification; \
             a time is only made from a passed verification, by the type system; every driver call returns a typed error"
        ),
    );
    boxes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample;
    use crate::record::{RungSummary, VerifySummary, WrongKernel};

    fn report(numbers: &[&str]) -> VerifyReport {
        let rung =
            |n: &&str| RungSummary { rung: format!("{n}-name"), verdict: "passed".into(), passed: 9, ..RungSummary::default() };
        let wrong = WrongKernel { name: "accumulates".into(), rejected: true, ..WrongKernel::default() };
        VerifyReport {
            summary: VerifySummary::default(),
            rungs: numbers.iter().map(rung).collect(),
            wrong_kernels: vec![wrong],
            seed: 1,
        }
    }

    fn rows(numbers: &[&str], percent: f64) -> Vec<Row> {
        let row = |n: &&str| Row {
            rung: format!("{n}-name"),
            n: DOCUMENT_N,
            verified: true,
            error: Some(0.5),
            rtol_1e4_met: Some(true),
            seconds: Some(1e-3),
            bytes_per_second: Some(1e12),
            percent_of_peak: Some(percent),
            ..Row::default()
        };
        numbers.iter().map(row).collect()
    }

    const ALL: [&str; 7] = ["0", "1", "2", "3", "4", "5a", "5b"];

    fn met(record: &Record, report: &VerifyReport, device: DeviceKind) -> Vec<Option<bool>> {
        boxes(record, report, device).iter().map(|b| b.met).collect()
    }

    #[test]
    fn boxes_are_met_by_evidence_only() {
        let (yes, no) = (Some(true), Some(false));
        let tail = [None; 4];
        let full = sample(rows(&ALL, 85.0));
        let expect = |head: [Option<bool>; 4], last| [&head[..], &tail[..], &[last][..]].concat();
        assert_eq!(met(&full, &report(&ALL), DeviceKind::Cuda), expect([yes; 4], yes));
        assert_eq!(met(&full, &report(&ALL), DeviceKind::Cpu), expect([no; 4], yes));
        let slow = sample(rows(&ALL, 49.6));
        assert_eq!(met(&slow, &report(&ALL), DeviceKind::Cuda), expect([yes, yes, no, yes], yes));
        let missing = sample(rows(&ALL[1..6], 85.0));
        assert_eq!(met(&missing, &report(&ALL), DeviceKind::Cuda), expect([no, no, yes, no], yes));
        let unverified = report(&ALL[..4]);
        assert_eq!(met(&full, &unverified, DeviceKind::Cuda), expect([no, yes, yes, no], yes));
        let mut accepting = report(&ALL);
        accepting.wrong_kernels[0].rejected = false;
        assert_eq!(met(&full, &accepting, DeviceKind::Cuda), expect([yes, yes, yes, no], no));
        let numbers: Vec<u32> = boxes(&full, &report(&ALL), DeviceKind::Cuda).iter().map(|b| b.number).collect();
        assert_eq!(numbers, (1..=9).collect::<Vec<_>>());
    }
}
