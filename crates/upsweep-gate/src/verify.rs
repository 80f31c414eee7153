//! Verification: cases against the oracle, determinism, wrong kernels; and the token that a pass makes.

use crate::candidate::Candidate;
use crate::cases::Level;
use crate::comparator::{Agreement, compare_outputs};
use crate::error::{GateError, Result};
use crate::families::{Family, hash};
use crate::judged::{Ask, Fault, Huge, Judged};
use crate::points::Placement;
use crate::record::{Device, Host, Kind, Record, RungSummary, SCHEMA, VerifySummary, WrongKernel};
use crate::target::{Input, Observed, RunRequest, Target};
use std::collections::BTreeMap;
use std::fmt;
use upsweep::device::caps::Caps;
use upsweep::flow::{Expect, NOT_SIMULATED, Plan, Problem, Rung, Tuning};
use upsweep::ops::reduce::oracle::Expected;
use upsweep::types::DType;

/// Runs that are compared bit by bit where a rung claims determinism.
pub const DETERMINISM_RUNS: u32 = 20;

/// Failures that are kept in words; the others are counted.
const FAILURES_IN_WORDS: usize = 5;

/// Why a case was not asked where few rows are.
const LEFT_OUT: &str = "tens of thousands of rows were left out by request";

/// Cases whose plans are announced to the device together, so that it can build their kernels in few batches.
const PREFETCH: usize = 128;

/// Which part of the ladder is judged; an empty list means all.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Operators, by name.
    pub operators: Vec<String>,
    /// Dtypes.
    pub dtypes: Vec<DType>,
    /// Rungs, by number, name or `number-name`.
    pub rungs: Vec<String>,
    /// Cases of tens of thousands of rows are left out, and counted.
    pub few_rows: bool,
}

impl Selection {
    /// The selected rungs of a device, in the ladder's order.
    ///
    /// # Errors
    /// [`upsweep::Error::UnknownRung`] for a name that the device's ladder does not have.
    pub fn candidates<O: Judged>(&self, caps: &Caps) -> Result<Vec<Candidate<O>>> {
        if self.rungs.is_empty() {
            return Ok(Candidate::ladder(caps).collect());
        }
        let wanted: Vec<&'static Rung<O>> =
            self.rungs.iter().map(|name| Rung::find(caps.kind(), name)).collect::<upsweep::Result<_>>()?;
        Ok(Candidate::ladder(caps).filter(|c| wanted.iter().any(|w| std::ptr::eq(*w, c.rung))).collect())
    }

    /// Whether operators or dtypes are left out.
    fn is_narrowed(&self) -> bool {
        !self.operators.is_empty() || !self.dtypes.is_empty()
    }

    fn takes<O: Judged>(&self, case: &O::Case) -> bool {
        self.names(case.operator(), case.dtype())
    }

    fn names(&self, operator: &str, dtype: DType) -> bool {
        (self.operators.is_empty() || self.operators.iter().any(|o| o == operator))
            && (self.dtypes.is_empty() || self.dtypes.contains(&dtype))
    }
}

/// What the command line adds to a record.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The command line.
    pub command: String,
    /// The commit the binary was built from.
    pub commit: String,
}

impl Context {
    /// A record of a target with nothing in it yet.
    pub(crate) fn record<O: Judged>(&self, kind: Kind, target: &dyn Target<O>, seed: u64) -> Record {
        Record {
            schema: SCHEMA,
            kind,
            op: O::NAME.into(),
            command: self.command.clone(),
            commit: self.commit.clone(),
            seed,
            host: host(),
            device: target.describe(),
            peak: target.peak(),
            ceilings: vec![],
            invalid: vec![],
            rows: vec![],
            findings: None,
            verify: None,
            rungs: vec![],
            wrong_kernels: vec![],
            boxes: vec![],
            counted: vec![],
        }
    }
}

fn host() -> Host {
    let cpu = upsweep::device::cpu::Cpu::new();
    match cpu.caps() {
        Caps::Cpu(caps) => Host { name: caps.name.clone(), cores: caps.threads as u64 },
        Caps::Cuda(_) => Host::default(),
    }
}

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Steps done.
    pub done: u64,
    /// Steps in all.
    pub total: u64,
    /// What is being done, for instance `sum of f32, whole, length 1025, signed data`.
    pub what: String,
}

/// Called before each step.
pub type OnProgress<'a> = &'a mut dyn FnMut(Progress);

/// What [`verify`] is asked.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Which part of the ladder.
    pub selection: Selection,
    /// How many cases.
    pub level: Level,
    /// The seed that every datum follows from.
    pub seed: u64,
    /// Judge the judge too.
    pub wrong_kernels: bool,
}

/// What [`verify`] found.
#[derive(Clone, Debug)]
pub struct VerifyReport {
    /// Counts over all rungs.
    pub summary: VerifySummary,
    /// Each rung.
    pub rungs: Vec<RungSummary>,
    /// Each wrong kernel.
    pub wrong_kernels: Vec<WrongKernel>,
    /// The seed.
    pub seed: u64,
}

impl VerifyReport {
    /// At least one rung passed, none failed or is unverified, and every wrong kernel was rejected.
    pub fn passed(&self) -> bool {
        self.rungs.iter().any(|r| r.verdict == "passed")
            && self.rungs.iter().all(RungSummary::is_right)
            && self.wrong_kernels.iter().all(|w| w.rejected || w.skipped)
    }

    /// The report as a record.
    pub fn into_record<O: Judged>(self, target: &dyn Target<O>, context: &Context) -> Record {
        let record = context.record(Kind::Verify, target, self.seed);
        Record { verify: Some(self.summary), rungs: self.rungs, wrong_kernels: self.wrong_kernels, ..record }
    }
}

/// Why a rung was not verified.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejection {
    /// `number-name`.
    pub rung: String,
    /// The case.
    pub case: String,
    /// What was wrong.
    pub why: String,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not verified: {}: {}", self.rung, self.case, self.why)
    }
}

/// Proof that a plan gave right results on a device in this process. Only [`verify_plan`] makes one.
///
/// It cannot be built by hand:
///
/// ```compile_fail,E0451
/// # fn forge(plan: upsweep::ops::reduce::ReducePlan) -> upsweep_gate::verify::Verified<upsweep::ops::reduce::Reduce> {
/// upsweep_gate::verify::Verified { plan, placement: Default::default(), device: String::new(), agreement: Default::default() }
/// # }
/// ```
///
/// or read from a file:
///
/// ```compile_fail,E0277
/// let forged: upsweep_gate::verify::Verified<upsweep::ops::reduce::Reduce> = serde_json::from_str("{}").unwrap();
/// ```
///
/// or come from nothing:
///
/// ```compile_fail,E0277
/// fn default<T: Default>() -> T { T::default() }
/// let forged: upsweep_gate::verify::Verified<upsweep::ops::reduce::Reduce> = default();
/// ```
#[derive(Debug)]
pub struct Verified<O: Judged> {
    plan: Plan<O>,
    placement: Placement,
    device: String,
    agreement: Agreement,
}

impl<O: Judged> Clone for Verified<O> {
    fn clone(&self) -> Self {
        let Verified { plan, placement, device, agreement } = self;
        Verified { plan: plan.clone(), placement: *placement, device: device.clone(), agreement: *agreement }
    }
}

impl<O: Judged> Verified<O> {
    /// The plan that was verified: rung, operator, dtype, shape and launches.
    pub fn plan(&self) -> &Plan<O> {
        &self.plan
    }

    /// Where input and output began.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The device it was verified on.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// How near the results were.
    pub fn agreement(&self) -> Agreement {
        self.agreement
    }
}

/// What identifies a device within a run.
pub(crate) fn identity(device: &Device) -> String {
    format!("{}: {}", device.kind, device.name)
}

/// Outputs up to which the rounds of evidence are kept: an expectation takes 32 bytes, so beyond it each is made when it is
/// looked at, one at a time.
const KEPT_OUTPUTS: u64 = 1 << 29;

/// Inputs of a problem with their right answers: made once, used for every rung (but see `KEPT_OUTPUTS`).
#[derive(Debug)]
pub struct Evidence<O: Judged> {
    problem: O::Problem,
    placement: Placement,
    /// Families with the seeds of their data.
    rounds: Vec<(Family, u64)>,
    kept: Vec<Round>,
}

#[derive(Debug)]
struct Round {
    name: String,
    input: Input,
    expected: Vec<Expected>,
}

impl<O: Judged> Evidence<O> {
    /// Two rounds of data, of different families, each from a fresh seed that follows from `seed`.
    ///
    /// # Errors
    /// [`GateError`] if the library refuses.
    pub fn new(problem: &O::Problem, seed: u64) -> Result<Evidence<O>> {
        Evidence::at(problem, Placement::default(), seed)
    }

    /// As [`Evidence::new`], for input and output that begin elsewhere.
    ///
    /// # Errors
    /// As [`Evidence::new`].
    pub fn at(problem: &O::Problem, placement: Placement, seed: u64) -> Result<Evidence<O>> {
        let rounds = (0..).zip(O::evidence(problem)).map(|(position, family)| (family, hash(seed, position))).collect();
        let mut evidence = Evidence { problem: problem.clone(), placement, rounds, kept: vec![] };
        if problem.output().len <= KEPT_OUTPUTS {
            evidence.kept = evidence.rounds.iter().map(|&round| evidence.make(round)).collect::<Result<_>>()?;
        }
        Ok(evidence)
    }

    fn make(&self, (family, seed): (Family, u64)) -> Result<Round> {
        let problem = &self.problem;
        let input = O::make(problem, family, seed, self.placement.input)?;
        let expected = O::reference(problem, input.slice(), input.second_slice())?;
        Ok(Round { name: format!("{problem}, {} data of seed {seed:#x}", family.name()), input, expected })
    }

    fn each_round(&self, mut look: impl FnMut(&Round) -> Result<()>) -> Result<()> {
        if self.kept.is_empty() {
            return self.rounds.iter().try_for_each(|&round| look(&self.make(round)?));
        }
        self.kept.iter().try_for_each(look)
    }
}

/// Verifies one plan on evidence of its own problem, and makes the token that opens timing.
///
/// # Errors
/// [`GateError::Rejected`] if a result is wrong; [`GateError::InvalidArgument`] if the evidence is of another problem.
pub fn verify_plan<O: Judged>(target: &mut dyn Target<O>, plan: &Plan<O>, evidence: &Evidence<O>) -> Result<Verified<O>> {
    if evidence.problem != plan.problem {
        return Err(GateError::InvalidArgument {
            argument: "evidence",
            got: format!("of {}", evidence.problem),
            allowed: format!("the plan is of {}", plan.problem),
        });
    }
    let mut agreement = Agreement::default();
    let placement = evidence.placement;
    let request = RunRequest { output_shift: placement.output, ..RunRequest::repeats(target.case_runs()) };
    evidence.each_round(|round| {
        let observed = target.run(plan, &round.input, request)?;
        match judge(plan, &round.expected, &observed, request) {
            Ok(found) => agreement = agreement.worse(found),
            Err(why) => {
                let rung = crate::candidate::rung_name(plan.rung);
                return Err(GateError::Rejected(Box::new(Rejection { rung, case: round.name.clone(), why })));
            }
        }
        Ok(())
    })?;
    Ok(Verified { plan: plan.clone(), placement, device: identity(&target.describe()), agreement })
}

/// Judges a single run of a plan on the first round of evidence: for a device on which nothing is timed, so no token is made.
///
/// # Errors
/// As [`verify_plan`].
#[cfg(feature = "sim")]
pub(crate) fn judge_once<O: Judged>(target: &mut dyn Target<O>, plan: &Plan<O>, evidence: &Evidence<O>) -> Result<Agreement> {
    let request = RunRequest::repeats(1);
    let mut agreement = None;
    evidence.each_round(|round| {
        if agreement.is_none() {
            let observed = target.run(plan, &round.input, request)?;
            let found = judge(plan, &round.expected, &observed, request).map_err(|why| {
                let rung = crate::candidate::rung_name(plan.rung);
                GateError::Rejected(Box::new(Rejection { rung, case: round.name.clone(), why }))
            })?;
            agreement = Some(found);
        }
        Ok(())
    })?;
    Ok(agreement.unwrap_or_default())
}

/// The verdict on what a run left behind. Everything that can be wrong with it is decided here, for rungs and for
/// wrong kernels alike.
fn judge<O: Judged>(
    plan: &Plan<O>,
    expected: &[Expected],
    observed: &Observed,
    request: RunRequest,
) -> Result<Agreement, String> {
    let RunRequest { repeats: runs, in_place, .. } = request;
    if let Some(error) = &observed.device_error {
        return Err(format!("the device reported `{error}`"));
    }
    if let Some(fault) = observed.faults.first() {
        let more = observed.faults.len() - 1;
        return Err(if more == 0 { fault.clone() } else { format!("{fault}; and {more} more") });
    }
    if let Some(guard) = &observed.broken_guard {
        return Err(guard.clone());
    }
    if !observed.input_unchanged && !in_place {
        return Err("the input was written".into());
    }
    if observed.outputs.len() != runs as usize {
        return Err(format!("{} outputs came back from {runs} runs", observed.outputs.len()));
    }
    let mut agreement = Agreement::default();
    for (run, output) in observed.outputs.iter().enumerate() {
        let found = compare_outputs(expected, output, plan.problem.output().dtype);
        agreement = agreement.worse(found.map_err(|why| format!("run {run}: {why}"))?);
    }
    if plan.rung.deterministic
        && let Some(run) = observed.outputs.iter().position(|output| *output != observed.outputs[0])
    {
        return Err(format!("run {run} gave other bits than run 0, but the rung claims determinism"));
    }
    Ok(agreement)
}

/// What became of a case.
enum Outcome {
    Passed(Agreement),
    Failed(String),
    NotClaimed(String),
}

/// A rung and its counts.
struct OnTrial<O: Judged> {
    candidate: Candidate<O>,
    summary: RungSummary,
}

impl<O: Judged> OnTrial<O> {
    fn new(candidate: Candidate<O>) -> OnTrial<O> {
        OnTrial { candidate, summary: RungSummary { rung: candidate.name(), ..RungSummary::default() } }
    }

    fn count(&mut self, case: &str, family: Option<Family>, outcome: Outcome) {
        let must_fail = matches!(self.candidate.rung.expect, Expect::Rejected(name) if family.is_some_and(|f| f.name() == name));
        let outcome = match outcome {
            // A teaching rung with a fault is right when the gate sees the fault.
            Outcome::Failed(_) if must_fail => Outcome::Passed(Agreement::default()),
            Outcome::Passed(_) if must_fail => Outcome::Failed("it passed, although the gate must reject it".into()),
            other => other,
        };
        let summary = &mut self.summary;
        match outcome {
            Outcome::Passed(agreement) => {
                summary.passed += 1;
                let worst = summary.worst_error_over_bound.unwrap_or(0.0).max(agreement.error_over_bound);
                summary.worst_error_over_bound = Some(worst);
            }
            Outcome::Failed(why) => {
                summary.failed += 1;
                if summary.failures.len() < FAILURES_IN_WORDS {
                    summary.failures.push(format!("{case}: {why}"));
                }
            }
            Outcome::NotClaimed(why) => *summary.skipped.entry(why).or_default() += 1,
        }
    }

    fn finish(mut self, selection: &Selection) -> RungSummary {
        let verdict = match (self.summary.passed, self.summary.failed) {
            (_, 1..) => "failed",
            // Who asks for an operator or a dtype asks the rungs that are for it.
            (0, 0) if selection.rungs.is_empty() && selection.is_narrowed() => "not claimed",
            (0, 0) if selection.rungs.is_empty() && self.summary.skipped.keys().any(|why| why.starts_with(NOT_SIMULATED)) => {
                NOT_SIMULATED
            }
            // A rung that nothing was asked of has proven nothing.
            (0, 0) => "unverified",
            _ => "passed",
        };
        self.summary.verdict = verdict.into();
        self.summary
    }
}

/// Plans a candidate; a missing claim is an outcome.
fn plan_of<O: Judged>(candidate: &Candidate<O>, problem: &O::Problem, caps: &Caps) -> Result<Plan<O>, Outcome> {
    candidate.plan(problem, caps, Tuning::default()).map_err(|error| match error {
        upsweep::Error::NotClaimed { why, .. } => Outcome::NotClaimed(why),
        other => Outcome::Failed(other.to_string()),
    })
}

/// Runs a planned case.
fn run_case<O: Judged>(
    target: &mut dyn Target<O>,
    plan: &Plan<O>,
    input: &Input,
    expected: &[Expected],
    request: RunRequest,
) -> Outcome {
    // What the driver refuses is a failure of the rung that asked; the judge goes on with the next.
    match target.run(plan, input, request) {
        Err(error) => Outcome::Failed(error.to_string()),
        Ok(observed) => match judge(plan, expected, &observed, request) {
            Ok(agreement) => Outcome::Passed(agreement),
            Err(why) => Outcome::Failed(why),
        },
    }
}

/// Judges the ladder of a device.
///
/// # Errors
/// [`GateError::Library`] for a selection that names no rung of the device. Wrong answers, and what the driver refuses
/// of a rung, are not errors: they are in the report.
pub fn verify<O: Judged>(target: &mut dyn Target<O>, options: &VerifyOptions, progress: OnProgress<'_>) -> Result<VerifyReport> {
    let caps = target.caps();
    let mut judged: Vec<OnTrial<O>> = options.selection.candidates(&caps)?.into_iter().map(OnTrial::new).collect();
    let selection = &options.selection;
    let takes = |case: &O::Case| selection.takes::<O>(case);
    let cases: Vec<O::Case> = O::cases(options.level).into_iter().filter(takes).collect();
    let huge: Vec<Huge<O>> = match options.level {
        Level::Huge => {
            let named = |case: &Huge<O>| selection.names(O::operator_of(&case.problem), case.problem.input().dtype);
            O::huge_cases().into_iter().filter(named).collect()
        }
        _ => vec![],
    };
    let determinism: Vec<O::Case> = match options.level {
        Level::Huge => vec![],
        level => O::determinism_cases(level).into_iter().filter(takes).collect(),
    };
    let faults: Vec<Fault<O>> = if options.wrong_kernels { O::faults() } else { vec![] };
    let by_device = target.leaves_many_rows_out().filter(|_| options.level == Level::Quick);
    let few_rows = if selection.few_rows { Some(LEFT_OUT) } else { by_device };
    let total = (cases.len() + huge.len() + determinism.len() + faults.len()) as u64;
    let mut done = 0;
    let mut step = |what: &dyn fmt::Display| {
        progress(Progress { done, total, what: what.to_string() });
        done += 1;
    };

    for (position, case) in cases.iter().enumerate() {
        step(case);
        if let Some(why) = few_rows.filter(|_| case.form().has_many_rows()) {
            let (name, left_out) = (case.to_string(), || Outcome::NotClaimed(why.into()));
            judged.iter_mut().for_each(|one| one.count(&name, None, left_out()));
            continue;
        }
        if position % PREFETCH == 0 {
            prefetch(target, &caps, &judged, &cases[position..(position + PREFETCH).min(cases.len())])?;
        }
        let runs = target.case_runs();
        judge_case(target, &caps, &mut judged, case, hash(options.seed, position as u64), runs)?;
    }
    for case in &huge {
        step(case);
        judge_huge(target, &caps, &mut judged, case);
    }
    for case in &determinism {
        let runs = target.determinism_runs();
        let name = format!("{runs} runs of {case}");
        step(&name);
        let claiming = |judged: &&mut OnTrial<O>| judged.candidate.rung.deterministic;
        for one in judged.iter_mut().filter(claiming) {
            let before = one.summary.failed;
            let seed = hash(options.seed, u64::MAX - case.length());
            let asked = one.summary.passed + one.summary.failed;
            judge_case(target, &caps, std::slice::from_mut(one), case, seed, runs)?;
            if one.summary.passed + one.summary.failed > asked {
                let same = one.summary.failed == before;
                one.summary.deterministic = Some(one.summary.deterministic.unwrap_or(true) && same);
            }
        }
    }
    let mut wrong_kernels = vec![];
    for fault in &faults {
        step(&format_args!("wrong kernel {}", fault.name));
        wrong_kernels.push(judge_fault(target, &caps, fault, options.seed)?);
    }

    let rungs: Vec<RungSummary> = judged.into_iter().map(|one| one.finish(selection)).collect();
    let mut summary = VerifySummary { level: options.level.name().into(), ..VerifySummary::default() };
    for rung in &rungs {
        summary.passed += rung.passed;
        summary.failed += rung.failed;
        for (why, count) in &rung.skipped {
            *summary.skipped.entry(why.clone()).or_default() += count;
        }
    }
    summary.cases = summary.passed + summary.failed + summary.skipped.values().sum::<u64>();
    Ok(VerifyReport { summary, rungs, wrong_kernels, seed: options.seed })
}

fn prefetch<O: Judged>(target: &mut dyn Target<O>, caps: &Caps, judged: &[OnTrial<O>], cases: &[O::Case]) -> Result<()> {
    let mut plans = vec![];
    for case in cases {
        let problem = case.problem()?;
        plans.extend(judged.iter().filter_map(|j| plan_of(&j.candidate, &problem, caps).ok()));
    }
    // A kernel that does not build fails again, under its rung's name, in the case that needs it.
    let _ = target.prefetch(&plans);
    Ok(())
}

/// Runs one case for every rung; its data and its answer are made once.
fn judge_case<O: Judged>(
    target: &mut dyn Target<O>,
    caps: &Caps,
    judged: &mut [OnTrial<O>],
    case: &O::Case,
    seed: u64,
    runs: u32,
) -> Result<()> {
    let problem = case.problem()?;
    let name = case.to_string();
    let mut data: Option<(Input, Vec<Expected>)> = None;
    let placed = case.in_place() && !target.runs_in_place();
    for one in judged {
        let takes = if placed {
            Err("the device's operands cannot be one memory".to_string())
        } else {
            O::takes_data(one.candidate.rung, case.family())
        };
        let planned = takes.map_err(Outcome::NotClaimed).and_then(|()| plan_of(&one.candidate, &problem, caps));
        let outcome = match planned {
            Err(outcome) => outcome,
            Ok(plan) => {
                if data.is_none() {
                    let input = case.input(&problem, seed)?;
                    let expected = O::reference(&problem, input.slice(), input.second_slice())?;
                    data = Some((input, expected));
                }
                match &data {
                    Some((input, expected)) => {
                        let request = RunRequest { in_place: case.in_place(), ..RunRequest::repeats(runs) };
                        run_case(target, &plan, input, expected, request)
                    }
                    None => unreachable!("the data was just made"),
                }
            }
        };
        one.count(&format!("{name}, seed {seed:#x}"), Some(case.family()), outcome);
    }
    Ok(())
}

fn judge_huge<O: Judged>(target: &mut dyn Target<O>, caps: &Caps, judged: &mut [OnTrial<O>], case: &Huge<O>) {
    let expected = case.expected();
    let request = RunRequest::repeats(target.case_runs());
    for one in judged {
        let outcome = match plan_of(&one.candidate, &case.problem, caps) {
            Err(outcome) => outcome,
            Ok(plan) => match target.run_huge(&plan, case, request) {
                None => Outcome::NotClaimed("the device makes no data of its own".into()),
                Some(Err(error)) => Outcome::Failed(error.to_string()),
                Some(Ok(observed)) => match judge(&plan, &expected, &observed, request) {
                    Ok(agreement) => Outcome::Passed(agreement),
                    Err(why) => Outcome::Failed(why),
                },
            },
        };
        one.count(&case.to_string(), None, outcome);
    }
}

/// Runs a device's form of a fault on the case that must reject it.
fn judge_fault<O: Judged>(target: &mut dyn Target<O>, caps: &Caps, fault: &Fault<O>, seed: u64) -> Result<WrongKernel> {
    let result = |rejected, by: String| {
        Ok(WrongKernel { name: fault.name.into(), fault: fault.fault.into(), rejected, skipped: false, by: Some(by) })
    };
    let form = target.wrong_kernels().into_iter().find(|candidate| candidate.rung.name == fault.name);
    let Some(form) = form else {
        let required = fault.forms.contains(&caps.kind());
        let missing = result(false, "the device has no form of it".into())?;
        return Ok(WrongKernel { skipped: !required, ..missing });
    };
    if let Some(why) = target.cannot_show(fault.name) {
        return Ok(WrongKernel { skipped: true, ..result(false, why.into())? });
    }
    let problem = fault.case.problem()?;
    let plan = match plan_of(&form, &problem, caps) {
        Ok(plan) => plan,
        Err(Outcome::NotClaimed(why) | Outcome::Failed(why)) => return result(false, format!("it was not run: {why}")),
        Err(Outcome::Passed(_)) => unreachable!("planning passes nothing"),
    };
    let input = fault.case.input(&problem, hash(seed, 0))?;
    let expected = O::reference(&problem, input.slice(), input.second_slice())?;
    let request = RunRequest { in_place: fault.case.in_place(), ..RunRequest::repeats(fault.runs) };
    match target.run(&plan, &input, request) {
        // A kernel that did not run was not rejected for its fault.
        Err(error) => result(false, format!("it was not run: {error}")),
        Ok(observed) => match judge(&plan, &expected, &observed, request) {
            Ok(_) => result(false, format!("it passed: {}", fault.case)),
            Err(why) => result(true, format!("{}: {why}", fault.case)),
        },
    }
}

/// The reasons and counts of skipped cases in one line.
pub fn skipped_in_words(skipped: &BTreeMap<String, u64>) -> String {
    skipped.iter().map(|(why, count)| format!("{count} x {why}")).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuTarget;
    use crate::judged::Traffic;
    use crate::target::{Machine, Samples, TimingRequest};
    use upsweep::device::caps::DeviceKind;
    use upsweep::device::cpu::Cpu;
    use upsweep::ops::reduce::{Reduce, ReducePlan, ReduceProblem, ReduceRung};
    use upsweep::ops::scan::Scan;
    use upsweep::ops::softmax::Softmax;
    use upsweep::types::Operator;

    fn target() -> CpuTarget {
        match Cpu::new().caps() {
            Caps::Cpu(caps) => CpuTarget::new(caps.clone()),
            Caps::Cuda(_) => unreachable!("the CPU is no CUDA device"),
        }
    }

    fn options(selection: Selection, wrong_kernels: bool) -> VerifyOptions {
        VerifyOptions { selection, level: Level::Quick, seed: 0x5eed, wrong_kernels }
    }

    /// The acceptance in one test: real rungs pass, wrong kernels do not.
    fn the_cpu_ladder_passes_and_every_wrong_kernel_is_rejected<O: Judged>() -> VerifyReport {
        let mut steps = 0;
        let report = verify::<O>(&mut target(), &options(Selection::default(), true), &mut |_| steps += 1).unwrap();
        for rung in &report.rungs {
            assert_eq!(rung.verdict, "passed", "{rung:#?}");
            assert!(rung.passed > 200 && rung.worst_error_over_bound.is_some());
            assert_eq!(rung.deterministic, Some(true), "{}", rung.rung);
        }
        assert_eq!(report.wrong_kernels.len(), O::faults().len());
        for (wrong, fault) in report.wrong_kernels.iter().zip(O::faults()) {
            // What the CPU cannot have is shown as skipped, nothing else is.
            let on_cpu = fault.forms.contains(&DeviceKind::Cpu);
            assert_eq!((wrong.rejected, wrong.skipped), (on_cpu, !on_cpu), "{wrong:#?}");
        }
        assert!(report.passed() && steps > 200);
        report
    }

    #[test]
    fn reductions_pass_on_the_cpu_and_wrong_ones_do_not() {
        the_cpu_ladder_passes_and_every_wrong_kernel_is_rejected::<Reduce>();
    }

    #[test]
    fn scans_pass_on_the_cpu_and_wrong_ones_do_not() {
        let report = the_cpu_ladder_passes_and_every_wrong_kernel_is_rejected::<Scan>();
        // Host operands cannot be one memory: those cases are counted, not passed.
        assert!(report.summary.skipped.keys().any(|why| why.contains("one memory")), "{:?}", report.summary.skipped);
    }

    #[test]
    fn softmaxes_pass_on_the_cpu_and_wrong_ones_do_not() {
        the_cpu_ladder_passes_and_every_wrong_kernel_is_rejected::<Softmax>();
    }

    /// A wrong kernel is rejected for its fault and not for the case: the right rungs pass the same cases.
    #[test]
    fn the_cases_of_the_faults_are_passable() {
        let (mut target, seed) = (target(), 0x5eed);
        let caps = target.caps();
        for fault in Reduce::faults() {
            let mut judged: Vec<OnTrial<Reduce>> = Candidate::ladder(&caps).map(OnTrial::new).collect();
            judge_case(&mut target, &caps, &mut judged, &fault.case, hash(seed, 0), fault.runs).unwrap();
            for one in judged {
                assert_eq!((one.summary.passed, one.summary.failed), (1, 0), "{}: {:#?}", fault.name, one.summary);
            }
        }
    }

    /// A device that hands over a right kernel under a fault's name: `verify` must not pass.
    struct Liar(CpuTarget);
    impl Machine for Liar {
        fn caps(&self) -> Caps {
            self.0.caps()
        }
        fn describe(&self) -> Device {
            self.0.describe()
        }
        fn peak(&self) -> Option<crate::record::Peak> {
            None
        }
        fn cache_bytes(&self) -> u64 {
            self.0.cache_bytes()
        }
        fn blocks(&self) -> &[u32] {
            &[]
        }
        fn ceiling(&mut self, traffic: Traffic, bytes: u64, repeats: u32) -> Result<crate::record::Ceiling> {
            self.0.ceiling(traffic, bytes, repeats)
        }
    }
    impl Target<Reduce> for Liar {
        fn wrong_kernels(&self) -> Vec<Candidate<Reduce>> {
            let mut forms = Reduce::wrong_on_cpu();
            let right = ReduceRung::find(DeviceKind::Cpu, "pairwise").unwrap();
            let copy = ReduceRung {
                number: "wrong",
                name: "zeros",
                claims: right.claims,
                deterministic: true,
                expect: Expect::Pass,
                explain: right.explain,
                body: match right.body {
                    upsweep::flow::Body::Cpu(body) => upsweep::flow::Body::Cpu(body),
                    upsweep::flow::Body::Cuda { .. } => unreachable!("a CPU rung"),
                },
            };
            forms.retain(|form| form.rung.name != "zeros" && form.rung.name != "stale_output");
            forms.push(Candidate::real(Box::leak(Box::new(copy))));
            forms
        }
        fn run(&mut self, plan: &ReducePlan, input: &Input, request: RunRequest) -> Result<Observed> {
            self.0.run(plan, input, request)
        }
        fn time(&mut self, verified: &Verified<Reduce>, request: &TimingRequest) -> Result<Samples> {
            self.0.time(verified, request)
        }
    }

    #[test]
    fn a_wrong_kernel_that_passes_or_is_missing_fails_verify() {
        let selection = Selection {
            operators: vec!["sum".into()],
            dtypes: vec![DType::F32],
            rungs: vec!["pairwise".into()],
            few_rows: false,
        };
        let report = verify::<Reduce>(&mut Liar(target()), &options(selection, true), &mut |_| {}).unwrap();
        let accepted: Vec<&str> =
            report.wrong_kernels.iter().filter(|w| !w.rejected && !w.skipped).map(|w| w.name.as_str()).collect();
        assert_eq!(accepted, ["stale_output", "zeros"]);
        assert!(report.rungs.iter().all(|r| r.verdict == "passed") && !report.passed());
    }

    #[test]
    fn nothing_asked_is_unverified() {
        // No case is left: wrapping sums of floats do not exist.
        let selection = Selection {
            operators: vec!["wrapping_sum".into()],
            dtypes: vec![DType::F32],
            rungs: vec!["3".into()],
            few_rows: false,
        };
        let report = verify::<Reduce>(&mut target(), &options(selection.clone(), false), &mut |_| {}).unwrap();
        assert_eq!(report.rungs[0].verdict, "unverified");
        assert!(!report.passed());
        // Whoever names no rung asks those that are for it; if there is none, nothing was verified.
        let all = Selection { rungs: vec![], ..selection };
        let report = verify::<Reduce>(&mut target(), &options(all, false), &mut |_| {}).unwrap();
        assert!(report.rungs.iter().all(|r| r.verdict == "not claimed" && r.is_right()) && !report.passed());
        let huge = VerifyOptions { level: Level::Huge, ..options(Selection::default(), false) };
        let report = verify::<Reduce>(&mut target(), &huge, &mut |_| {}).unwrap();
        assert!(
            report
                .rungs
                .iter()
                .all(|r| r.verdict == "unverified" && r.skipped.values().sum::<u64>() == Reduce::huge_cases().len() as u64)
        );
    }

    /// A level at which a rung has no case fails for that rung: every CUDA rung is for some huge case.
    #[test]
    fn every_cuda_rung_has_a_huge_case() {
        let caps = Caps::Cuda(upsweep::device::caps::CudaCaps::known().remove(4));
        upsweep::for_each_op!(O => {
            let cases = O::huge_cases();
            for candidate in Candidate::<O>::ladder(&caps) {
                let planned = cases.iter().any(|case| plan_of(&candidate, &case.problem, &caps).is_ok());
                assert!(planned, "{:?}", candidate.rung);
            }
        });
    }

    #[test]
    fn unknown_rungs_are_typed_errors() {
        let selection = Selection { rungs: vec!["no such".into()], ..Selection::default() };
        let error = verify::<Reduce>(&mut target(), &options(selection, false), &mut |_| {}).unwrap_err();
        assert!(matches!(error, GateError::Library(upsweep::Error::UnknownRung { .. })), "{error}");
    }

    #[test]
    fn broken_guards_written_inputs_and_device_errors_are_rejected() {
        let mut target = target();
        let caps = target.caps();
        let problem = ReduceProblem::whole(Operator::Sum, DType::F32, 10).unwrap();
        let plan = Candidate::<Reduce>::ladder(&caps).next().unwrap().plan(&problem, &caps, Tuning::default()).unwrap();
        let input = Reduce::make(&problem, Family::Signed, 1, 0).unwrap();
        let expected = Reduce::reference(&problem, input.slice(), input.second_slice()).unwrap();
        let right = target.run(&plan, &input, RunRequest::repeats(2)).unwrap();
        assert!(judge(&plan, &expected, &right, RunRequest::repeats(2)).is_ok());
        let spoiled = |spoil: &dyn Fn(&mut Observed)| {
            let mut observed = right.clone();
            spoil(&mut observed);
            judge(&plan, &expected, &observed, RunRequest::repeats(2)).unwrap_err()
        };
        assert!(spoiled(&|o| o.broken_guard = Some("guard".into())).contains("guard"));
        assert!(spoiled(&|o| o.input_unchanged = false).contains("input"));
        assert!(spoiled(&|o| o.device_error = Some("timeout".into())).contains("timeout"));
        assert!(spoiled(&|o| o.outputs.truncate(1)).contains("1 outputs"));
        assert!(spoiled(&|o| o.outputs[1][0] ^= 1).contains("determinism"));
    }

    #[test]
    fn a_token_is_for_its_own_problem() {
        let mut target = target();
        let caps = target.caps();
        let problem = ReduceProblem::whole(Operator::Sum, DType::F32, 1000).unwrap();
        let other = ReduceProblem::whole(Operator::Sum, DType::F32, 1001).unwrap();
        let plan = Candidate::<Reduce>::ladder(&caps).next().unwrap().plan(&problem, &caps, Tuning::default()).unwrap();
        let refused = verify_plan(&mut target, &plan, &Evidence::new(&other, 1).unwrap());
        assert!(matches!(refused, Err(GateError::InvalidArgument { argument: "evidence", .. })));
        assert!(verify_plan(&mut target, &plan, &Evidence::new(&problem, 1).unwrap()).is_ok());
        let wrong = Reduce::wrong_on_cpu().into_iter().find(|c| c.rung.name == "dropped_last_element").unwrap();
        let plan = wrong.plan(&problem, &caps, Tuning::default()).unwrap();
        let refused = verify_plan(&mut target, &plan, &Evidence::new(&problem, 1).unwrap());
        assert!(matches!(refused, Err(GateError::Rejected(_))));
    }
}
