//! The document's nine boxes, each met or not met with its evidence.

use crate::candidate::Candidate;
use crate::cases::{Level, QUICK_LENGTHS};
use crate::climb::{ClimbOptions, climb};
use crate::error::Result;
use crate::families::Family;
use crate::judged::Judged;
use crate::record::{ChecklistBox, Kind, Record, Row, RungSummary, VerifySummary};
use crate::target::{Machine, RunRequest, Target};
use crate::verify::{Context, OnProgress, Selection, VerifyOptions, VerifyReport, verify};
use upsweep::device::caps::DeviceKind;
use upsweep::flow::{Op, Rung, Tuning};
use upsweep::ops::reduce::Reduce;
use upsweep::ops::reduce::oracle::Expected;
use upsweep::ops::scan::Scan;
use upsweep::ops::softmax::{Softmax, SoftmaxKind, SoftmaxProblem};
use upsweep::types::DType;

/// The size that the document's table is at.
const DOCUMENT_N: u64 = 1 << 28;

/// The share of the peak that box 3 asks of rung 4.
const RUNG_4_PERCENT: f64 = 80.0;

/// The document's tolerance: of results relative to the reference, of the sum of a row, of one form against the other.
const TOLERANCE: f64 = 1e-4;

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

/// What [`checklist`] made.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The nine boxes, with all that they stand on.
    pub record: Record,
    /// The climb of the reduction ladder that the boxes quote, as a record of its own.
    pub ladder: Record,
}

/// Verifies, climbs, and fills [`Record::boxes`].
///
/// # Errors
/// [`crate::GateError`]: a wrong argument, or what the driver refuses.
pub fn checklist<T: Target<Reduce> + Target<Scan> + Target<Softmax>>(
    target: &mut T,
    options: ChecklistOptions,
    context: &Context,
    progress: OnProgress<'_>,
) -> Result<Checked> {
    let ask = |operator: &str| VerifyOptions {
        selection: Selection { operators: vec![operator.into()], dtypes: vec![DType::F32], rungs: vec![], few_rows: false },
        level: Level::Quick,
        seed: options.seed,
        wrong_kernels: true,
    };
    let reports = Reports {
        reduce: verify::<Reduce>(target, &ask("sum"), progress)?,
        scan: verify::<Scan>(target, &ask("sum"), progress)?,
        softmax: verify::<Softmax>(target, &ask("softmax"), progress)?,
        forms: stable_and_online(target, options.seed)?,
    };
    let climb_options = ClimbOptions {
        n: options.n,
        dtype: DType::F32,
        operators: vec!["sum".into()],
        rungs: vec![],
        block: None,
        peers: vec![],
        repeats: options.repeats,
        seed: options.seed,
    };
    let ladder = climb::<Reduce>(target, &climb_options, context, progress)?;
    let mut record = Record { kind: Kind::Checklist, ..ladder.clone() };
    record.boxes = boxes(&record, &reports, Machine::caps(target).kind());
    let Reports { reduce, scan, softmax, .. } = reports;
    let mut summary = VerifySummary { level: Level::Quick.name().into(), ..VerifySummary::default() };
    for (op, report) in [(Reduce::NAME, reduce), (Scan::NAME, scan), (Softmax::NAME, softmax)] {
        summary.cases += report.summary.cases;
        summary.passed += report.summary.passed;
        summary.failed += report.summary.failed;
        for (why, count) in report.summary.skipped {
            *summary.skipped.entry(why).or_default() += count;
        }
        let named = |rung: RungSummary| RungSummary { rung: format!("{op}/{}", rung.rung), ..rung };
        record.rungs.extend(report.rungs.into_iter().map(named));
        record.wrong_kernels.extend(report.wrong_kernels);
    }
    record.verify = Some(summary);
    Ok(Checked { record, ladder })
}

/// What the boxes stand on, besides the climb.
struct Reports {
    reduce: VerifyReport,
    scan: VerifyReport,
    softmax: VerifyReport,
    forms: Forms,
}

/// The stable and the online form on the same large logits.
#[derive(Clone, Debug, Default)]
struct Forms {
    /// Rungs that were compared.
    names: Vec<String>,
    /// Largest error relative to the reference, over both.
    relative_error: f64,
    /// Largest error that our bound allows, relative to the reference.
    relative_bound: f64,
    /// Largest `|sum of a row - 1|`, over both.
    row_sum_error: f64,
    /// Largest difference between the two, of probabilities.
    difference: f64,
    /// Outputs that are not finite.
    not_finite: u64,
}

/// Rows and columns of the comparison: not a multiple of any block.
const FORMS_SHAPE: (u64, u64) = (33, 1009);

/// Runs both forms on logits of 80 to 100.
fn stable_and_online<T: Target<Softmax>>(target: &mut T, seed: u64) -> Result<Forms> {
    let caps = target.caps();
    let problem = SoftmaxProblem::rows_of(SoftmaxKind::Softmax, DType::F32, FORMS_SHAPE.0, FORMS_SHAPE.1)?;
    let input = Softmax::make(&problem, Family::LargeLogits, seed, 0)?;
    let mut forms = Forms::default();
    let expected = Softmax::reference(&problem, input.slice(), input.second_slice())?;
    let mut outputs: Vec<Vec<f32>> = vec![];
    for name in ["three_pass", "online"] {
        let rung = Rung::<Softmax>::find(caps.kind(), name)?;
        let plan = Candidate::real(rung).plan(&problem, &caps, Tuning::default())?;
        let observed = target.run(&plan, &input, RunRequest::repeats(1))?;
        let bytes = observed.outputs.first().map_or(&[][..], |bytes| bytes);
        let values: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
        for row in values.chunks(FORMS_SHAPE.1 as usize) {
            let sum: f64 = row.iter().map(|x| f64::from(*x)).sum();
            forms.row_sum_error = larger(forms.row_sum_error, (sum - 1.0).abs());
        }
        for (value, expected) in values.iter().zip(&expected) {
            let Expected::Near(near) = expected else { continue };
            forms.relative_error = larger(forms.relative_error, (f64::from(*value) - near.value).abs() / near.value);
            forms.relative_bound = larger(forms.relative_bound, near.bound / near.value);
        }
        forms.not_finite += values.iter().filter(|x| !x.is_finite()).count() as u64;
        forms.names.push(rung.facts().full_name());
        outputs.push(values);
    }
    for (a, b) in outputs[0].iter().zip(&outputs[1]) {
        forms.difference = larger(forms.difference, (f64::from(*a) - f64::from(*b)).abs());
    }
    Ok(forms)
}

/// The larger; NaN if one is.
fn larger(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
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
fn boxes(record: &Record, reports: &Reports, device: DeviceKind) -> Vec<ChecklistBox> {
    let report = &reports.reduce;
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

    let all_passed = |report: &VerifyReport| !report.rungs.is_empty() && report.rungs.iter().all(|r| r.verdict == "passed");
    let in_words = |report: &VerifyReport| {
        let words = |r: &RungSummary| {
            let worst = r.worst_error_over_bound.map_or("-".to_string(), |e| format!("{e:.3}"));
            format!("{} {} ({} cases, worst error / bound {worst})", r.rung, r.verdict, r.passed + r.failed)
        };
        report.rungs.iter().map(words).collect::<Vec<_>>().join("; ")
    };
    let rejected = |report: &VerifyReport, name: &str| report.wrong_kernels.iter().any(|w| w.name == name && w.rejected);
    let scan_right = all_passed(&reports.scan);
    add(
        "Scan: one block is right against the sequential reference, and the composed scan for N over many blocks",
        Some(scan_right && rejected(&reports.scan, "missing_block_offset")),
        format!(
            "{}; the scan whose blocks hand no carry on is {}",
            in_words(&reports.scan),
            if rejected(&reports.scan, "missing_block_offset") { "rejected" } else { "NOT rejected" }
        ),
    );
    add(
        "Scan: N that is not a multiple of the block is handled",
        Some(scan_right && rejected(&reports.scan, "scan_dropped_tail")),
        format!(
            "every rung passed lengths {QUICK_LENGTHS:?}, on guarded memory; the scan that drops what does not fill a tile is {}",
            if rejected(&reports.scan, "scan_dropped_tail") { "rejected" } else { "NOT rejected" }
        ),
    );
    let forms = &reports.forms;
    let close = forms.relative_error <= TOLERANCE && forms.row_sum_error < TOLERANCE;
    let stable = all_passed(&reports.softmax) && forms.not_finite == 0 && close;
    add(
        "Softmax: the stable form is right (relative tolerance 1e-4), every row sums to 1, no NaN on large input",
        Some(stable && rejected(&reports.softmax, "unshifted")),
        format!(
            "{}; on {} rows of {} logits from 80 to 100: largest relative error {:.2e} (the document allows 1e-4, our own bound \
             {:.2e}), largest |sum - 1| {:.2e}, {} outputs not finite; the form without the maximum is {}",
            in_words(&reports.softmax),
            FORMS_SHAPE.0,
            FORMS_SHAPE.1,
            forms.relative_error,
            forms.relative_bound,
            forms.row_sum_error,
            forms.not_finite,
            if rejected(&reports.softmax, "unshifted") { "rejected" } else { "NOT rejected" }
        ),
    );
    add(
        "Softmax: the online form equals the stable form, in a single computing pass",
        Some(stable && forms.difference < TOLERANCE && rejected(&reports.softmax, "unguarded_merge")),
        format!(
            "{}: largest difference {:.2e} on the same rows; the merge without a guard for empty parts is {}",
            forms.names.join(" and "),
            forms.difference,
            if rejected(&reports.softmax, "unguarded_merge") { "rejected" } else { "NOT rejected" }
        ),
    );

    let every_wrong = || {
        let reports = [&reports.reduce, &reports.scan, &reports.softmax];
        reports.into_iter().flat_map(|report| &report.wrong_kernels)
    };
    let rejected = every_wrong().filter(|wrong| wrong.rejected).count();
    let unverified_with_time = record.rows.iter().filter(|row| !row.verified && row.seconds.is_some()).count();
    let count = every_wrong().filter(|wrong| !wrong.skipped).count();
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
    use crate::record::WrongKernel;
    use crate::record::tests::sample;

    fn reports(numbers: &[&str]) -> Reports {
        let other = |wrong: &[&str]| {
            let kernel = |name: &&str| WrongKernel { name: name.to_string(), rejected: true, ..WrongKernel::default() };
            VerifyReport { wrong_kernels: wrong.iter().map(kernel).collect(), ..report(&["0", "1"]) }
        };
        Reports {
            reduce: report(numbers),
            scan: other(&["missing_block_offset", "scan_dropped_tail"]),
            softmax: other(&["unshifted", "unguarded_merge"]),
            forms: Forms {
                names: vec!["1-three_pass".into(), "2-online".into()],
                relative_error: 1e-6,
                relative_bound: 1e-5,
                row_sum_error: 1e-7,
                difference: 1e-8,
                not_finite: 0,
            },
        }
    }

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

    fn met(record: &Record, reports: &Reports, device: DeviceKind) -> Vec<Option<bool>> {
        boxes(record, reports, device).iter().map(|b| b.met).collect()
    }

    #[test]
    fn boxes_are_met_by_evidence_only() {
        let (yes, no) = (Some(true), Some(false));
        let tail = [yes; 4];
        let full = sample(rows(&ALL, 85.0));
        let expect = |head: [Option<bool>; 4], last| [&head[..], &tail[..], &[last][..]].concat();
        assert_eq!(met(&full, &reports(&ALL), DeviceKind::Cuda), expect([yes; 4], yes));
        assert_eq!(met(&full, &reports(&ALL), DeviceKind::Cpu), expect([no; 4], yes));
        let slow = sample(rows(&ALL, 49.6));
        assert_eq!(met(&slow, &reports(&ALL), DeviceKind::Cuda), expect([yes, yes, no, yes], yes));
        let missing = sample(rows(&ALL[1..6], 85.0));
        assert_eq!(met(&missing, &reports(&ALL), DeviceKind::Cuda), expect([no, no, yes, no], yes));
        let unverified = reports(&ALL[..4]);
        assert_eq!(met(&full, &unverified, DeviceKind::Cuda), expect([no, yes, yes, no], yes));
        let mut accepting = reports(&ALL);
        accepting.reduce.wrong_kernels[0].rejected = false;
        assert_eq!(met(&full, &accepting, DeviceKind::Cuda), expect([yes, yes, yes, no], no));
        let spoiled = |spoil: &dyn Fn(&mut Reports)| {
            let mut reports = reports(&ALL);
            spoil(&mut reports);
            let met = met(&full, &reports, DeviceKind::Cuda);
            (5..=8).filter(|number| met[number - 1] != yes).collect::<Vec<usize>>()
        };
        assert_eq!(spoiled(&|r| r.scan.rungs[1].verdict = "failed".into()), [5, 6]);
        assert_eq!(spoiled(&|r| r.scan.wrong_kernels[1].rejected = false), [6]);
        assert_eq!(spoiled(&|r| r.forms.row_sum_error = f64::NAN), [7, 8]);
        assert_eq!(spoiled(&|r| r.forms.relative_error = 2e-4), [7, 8]);
        assert_eq!(spoiled(&|r| r.forms.not_finite = 1), [7, 8]);
        assert_eq!(spoiled(&|r| r.forms.difference = 1e-3), [8]);
        let numbers: Vec<u32> = boxes(&full, &reports(&ALL), DeviceKind::Cuda).iter().map(|b| b.number).collect();
        assert_eq!(numbers, (1..=9).collect::<Vec<_>>());
    }
}
