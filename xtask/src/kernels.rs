//! Compiles the kernels for their targets without a GPU, and holds what they use to the ratchet.

use crate::paths;
use crate::ptxas::{self, Usage};
use crate::ratchet::{self, Listing};
use crate::variants::{self, Cover, Variant, Variants};
use crate::wheels;
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use upsweep::device::cache::{Artefact, Cache};
use upsweep::device::caps::{Caps, CudaCaps, DeviceKind};
use upsweep::device::cuda::nvrtc::{self, Compiler};
use upsweep::flow::{KernelFile, Plan, Rung, Step, Tuning};
use upsweep::kernels::full_source;
use upsweep::ops::reduce::{self, ReduceProblem};
use upsweep::ops::scan::{self, Scan, ScanOptions, ScanProblem};
use upsweep::ops::user::{State, UserOperator};
use upsweep::types::{Element, Layout};

/// The compiler's wheel: the version is part of the ratchet, since another one allocates registers differently.
const WHEEL: &str = "nvidia-cuda-nvrtc";
const VERSION: &str = "13.0.88";

/// The target whose planner's kernels are all held to the ratchet: the one that the project's figures are from. Of the
/// others a pairwise covering set is; `--all` compiles everything in full.
const HELD: &str = "sm_90a";

/// The targets of which every variant becomes machine code: the oldest, whose code has least of what the kernels use, and the
/// one that is held. Of the others the covering set does; `--all` compiles everything in full.
const IN_FULL: [&str; 2] = ["sm_75", HELD];

/// How far a variant is compiled: every one for every target, as far as CI's time allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    /// As the library does it, with all optimisations: what the ratchet holds.
    Shipped,
    /// To machine code in the compiler's fast mode: what a rung runs by itself.
    MachineCode,
    /// Through the front end, which instantiates every template and checks every assertion: block sizes that a user may
    /// ask for.
    FrontEnd,
}

impl Depth {
    const ALL: [Depth; 3] = [Depth::Shipped, Depth::MachineCode, Depth::FrontEnd];

    fn options(self) -> Vec<&'static str> {
        let mut options = nvrtc::OPTIONS.to_vec();
        match self {
            Depth::Shipped => {}
            Depth::MachineCode => options.push("--Ofast-compile=max"),
            Depth::FrontEnd => options.push("-dlto"),
        }
        options
    }

    /// Expressions of one compilation: enough to share the parsing of the headers and the functions that block sizes have
    /// in common, few enough to keep all threads busy.
    fn batch(self) -> usize {
        match self {
            Depth::Shipped => 12,
            Depth::MachineCode => 32,
            Depth::FrontEnd => 128,
        }
    }
}

/// One compilation.
struct Job {
    target: String,
    path: String,
    source: Arc<str>,
    depth: Depth,
    expressions: Vec<String>,
}

/// What is asked of `cargo xtask kernels`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Every variant for every target.
    pub(crate) all: bool,
    /// Rewrite the ratchet's list.
    pub(crate) bless: bool,
    /// Only this target.
    pub(crate) target: Option<String>,
}

impl Options {
    /// Reads the words behind `kernels`.
    pub(crate) fn parse(words: &[&str]) -> Result<Options> {
        let mut options = Options::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--all" => options.all = true,
                "--bless" => options.bless = true,
                "--target" => {
                    let targets: Vec<String> = variants::devices().iter().map(CudaCaps::target).collect();
                    let target = words.next().map(|t| t.to_string()).filter(|t| targets.contains(t));
                    options.target = Some(target.with_context(|| format!("`--target` takes one of {}", targets.join(", ")))?);
                }
                other => bail!("`kernels` got {other}; allowed are --all, --bless and --target TARGET"),
            }
        }
        if options.all && options.bless {
            bail!("--bless writes what CI compiles: use it without --all");
        }
        Ok(options)
    }

    fn wants(&self, target: &str) -> bool {
        self.target.as_deref().is_none_or(|wanted| wanted == target)
    }
}

/// Compiles the kernels and holds the planner's to the ratchet.
pub(crate) fn run(options: &Options) -> Result<()> {
    let start = Instant::now();
    let compiler = load()?;
    println!("{compiler:?}");
    let mut jobs = Vec::new();
    let mut planned: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for device in variants::devices().into_iter().filter(|device| options.wants(&device.target())) {
        let every = variants::all(&device)?;
        let picked = variants::planned(&device)?;
        let shipped = shipped(&device, &every, &picked, options.all);
        let depth = |expression: &String, variant: &Variant| match (shipped.contains_key(expression), variant.other_block) {
            (true, _) => Depth::Shipped,
            (false, false) if options.all || IN_FULL.contains(&device.target().as_str()) => Depth::MachineCode,
            (false, _) => Depth::FrontEnd,
        };
        let mut words = Vec::new();
        for wanted in Depth::ALL {
            let at_depth = every.iter().filter(|(e, v)| depth(e, v) == wanted).map(|(_, v)| (v.file, v.expression.clone()));
            let made = batches(&device, wanted, at_depth);
            words.push(made.iter().map(|job| job.expressions.len()).sum::<usize>());
            jobs.extend(made);
        }
        let mut judge = upsweep_gate::cuda::kernels()?;
        upsweep::for_each_op!(O => judge.extend(upsweep_gate::cuda::wrong_kernels::<O>(&device)?));
        let judge = judge.into_iter().map(|kernel| (kernel.expression, kernel.file));
        let judge =
            batches(&device, Depth::MachineCode, judge.collect::<BTreeMap<_, _>>().into_iter().map(|(e, file)| (file, e)));
        println!(
            "{:8} {} variants: {} as shipped ({} of the planner's {}), {} to machine code, {} through the front end; {} kernels of the judge",
            device.target(),
            every.len(),
            words[0],
            picked.iter().filter(|e| shipped.contains_key(*e)).count(),
            picked.len(),
            words[1],
            words[2],
            judge.iter().map(|job| job.expressions.len()).sum::<usize>()
        );
        jobs.extend(judge);
        jobs.push(state_sizes(&device));
        jobs.extend(user_operators(&device)?);
        planned.insert(device.target(), picked);
    }
    // One depth after the other, what is shipped first: compilations in the fast mode change the code of others that run
    // beside them in the same process (NVRTC 13.0).
    jobs.sort_by_key(|job| job.depth);
    let (mut results, mut cached) = (Vec::new(), 0);
    for part in jobs.chunk_by(|a, b| a.depth == b.depth) {
        let start = Instant::now();
        let (made, kept) = compile(&compiler, part);
        let kernels: usize = part.iter().map(|job| job.expressions.len()).sum();
        println!("{:?}: {kernels} kernels in {:.1} s", part[0].depth, start.elapsed().as_secs_f64());
        results.extend(made);
        cached += kept;
    }
    let mut failures = Vec::new();
    let mut measured = Listing::new();
    for (job, result) in jobs.iter().zip(results) {
        match result.and_then(|artefact| usages(job, &artefact)) {
            // The ratchet holds what is shipped.
            Ok(usages) if job.depth == Depth::Shipped => {
                for (expression, usage) in usages {
                    if planned[&job.target].contains(&expression) {
                        measured.insert((job.target.clone(), expression.replace("upsweep::", "")), usage);
                    }
                }
            }
            Ok(_) => {}
            Err(error) => failures.push(format!("{} for {}: {error:#}", job.path, job.target)),
        }
    }
    let total: usize = jobs.iter().map(|job| job.expressions.len()).sum();
    println!(
        "{total} kernels in {} compilations ({cached} unchanged since an earlier run): {:.1} s",
        jobs.len(),
        start.elapsed().as_secs_f64()
    );
    if !failures.is_empty() {
        bail!("{} of {} compilations failed:\n{}", failures.len(), jobs.len(), failures.join("\n"));
    }
    hold(&measured, options)
}

/// The variants that are compiled as the library does it.
fn shipped(device: &CudaCaps, every: &Variants, picked: &BTreeSet<String>, all: bool) -> Variants {
    if all {
        return every.clone();
    }
    // Block sizes that a user may ask for would multiply everything by three; pairs on every target by four.
    let cover = if device.target() == HELD { Cover::Pairs } else { Cover::Values };
    let own = every.iter().filter(|(_, variant)| !variant.other_block);
    let mut chosen = variants::covering(&own.map(|(e, variant)| (e.clone(), variant.clone())).collect(), cover);
    if device.target() != HELD {
        return chosen;
    }
    chosen.extend(every.iter().filter(|(e, _)| picked.contains(*e)).map(|(e, variant)| (e.clone(), variant.clone())));
    chosen
}

fn batches(device: &CudaCaps, depth: Depth, kernels: impl Iterator<Item = (KernelFile, String)>) -> Vec<Job> {
    let mut by_file: BTreeMap<&str, (KernelFile, Vec<String>)> = BTreeMap::new();
    for (file, expression) in kernels {
        by_file.entry(file.path).or_insert((file, Vec::new())).1.push(expression);
    }
    let mut jobs = Vec::new();
    for (path, (file, expressions)) in by_file {
        let source: Arc<str> = full_source(file, None).into();
        jobs.extend(expressions.chunks(depth.batch()).map(|part| Job {
            target: device.target(),
            path: path.to_string(),
            source: source.clone(),
            depth,
            expressions: part.to_vec(),
        }));
    }
    jobs
}

/// Asserts that the states of the operators have the sizes that plans reckon with.
fn state_sizes(device: &CudaCaps) -> Job {
    let assertion = |(operator, bytes): (String, u64)| {
        format!("static_assert(sizeof({operator}::State) == {bytes}, \"{operator} in plan.rs\");\n")
    };
    let mut sizes = Vec::new();
    upsweep::for_each_op!(O => sizes.extend(<O as upsweep_gate::judged::Judged>::state_sizes()));
    let text: String = sizes.into_iter().map(assertion).collect();
    let mut source = full_source(KernelFile::cuda("state_sizes.cu", ""), None);
    source.push_str(&text);
    source.push_str("extern \"C\" __global__ void state_sizes() {}\n");
    let expressions = vec!["state_sizes".to_string()];
    Job { target: device.target(), path: "state_sizes.cu".into(), source: source.into(), depth: Depth::MachineCode, expressions }
}

/// The examples of user operators, by the kernels that take them.
fn user_operators(device: &CudaCaps) -> Result<Vec<Job>> {
    use upsweep::ops::user::examples;
    let mut jobs = kernels_of(&examples::variance()?, device)?;
    jobs.extend(kernels_of(&examples::fill_forward()?, device)?);
    jobs.extend(kernels_of(&examples::polynomial_hash()?, device)?);
    jobs.extend(kernels_of(&examples::largest_span()?, device)?);
    Ok(jobs)
}

/// One compilation for each kernel file that a user operator's plans launch: the planner's, and those of other devices.
fn kernels_of<T: Element, S: State, R: Element>(operator: &UserOperator<T, S, R>, device: &CudaCaps) -> Result<Vec<Job>> {
    let (caps, whole) = (Caps::Cuda(device.clone()), Layout::contiguous(&[1 << 24])?);
    let scanned = ScanProblem::of_operator(operator, ScanOptions::default(), &whole, None)?;
    let reduced = ReduceProblem::of_operator(operator, &whole, None)?;
    let mut programs = vec![scan::plan(&scanned, &caps)?.program, reduce::plan(&reduced, &caps)?.program];
    for name in ["three_phase", "axes"] {
        let rung = Rung::<Scan>::find(DeviceKind::Cuda, name)?;
        programs.push(Plan::with_rung(&scanned, &caps, rung, Tuning::default(), String::new())?.program);
    }
    let mut files: BTreeMap<&str, (KernelFile, BTreeSet<String>)> = BTreeMap::new();
    for Step::Launch(launch) in programs.iter().flatten().flat_map(|program| &program.steps) {
        let kernel = &launch.kernel;
        files.entry(kernel.file.path).or_insert((kernel.file, BTreeSet::new())).1.insert(kernel.expression.clone());
    }
    let depth = if device.target() == HELD { Depth::MachineCode } else { Depth::FrontEnd };
    let job = |(path, (file, expressions)): (&str, (KernelFile, BTreeSet<String>))| Job {
        target: device.target(),
        path: format!("{path} with operator {}", operator.name()),
        source: full_source(file, operator.device_source()).into(),
        depth,
        expressions: expressions.into_iter().collect(),
    };
    Ok(files.into_iter().map(job).collect())
}

/// Runs the jobs on all cores. Results are kept below the target folder, by the library's own cache, so that a second
/// run compiles only what changed. Returns the results in the jobs' order, and how many were kept.
fn compile(compiler: &Compiler, jobs: &[Job]) -> (Vec<Result<Artefact>>, usize) {
    let cache = Cache::at(paths::target().join("kernel-cache"));
    let version = format!("{WHEEL} {VERSION}");
    let next = AtomicUsize::new(0);
    let kept = AtomicUsize::new(0);
    let done: Mutex<BTreeMap<usize, Result<Artefact>>> = Mutex::new(BTreeMap::new());
    let worker = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(index) else { return };
            let options = job.depth.options();
            let mut parts = vec![&*job.source, job.target.as_str(), version.as_str()];
            parts.extend(&options);
            parts.extend(job.expressions.iter().map(String::as_str));
            let key = Cache::key(&parts);
            let result = match cache.get(&key) {
                Some(artefact) => {
                    kept.fetch_add(1, Ordering::Relaxed);
                    Ok(artefact)
                }
                None => {
                    let made = compiler.compile_source(&job.source, &job.path, &job.expressions, &job.target, &options);
                    made.map_err(anyhow::Error::from).inspect(|artefact| {
                        cache.put(&key, artefact);
                    })
                }
            };
            done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(index, result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(worker);
        }
    });
    let done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    (done.into_values().collect(), kept.into_inner())
}

/// What each expression of a job uses; an expression that the log does not tell of is an error. The front end tells of
/// no use, and makes no machine code.
fn usages(job: &Job, artefact: &Artefact) -> Result<Vec<(String, Usage)>> {
    if artefact.symbols.len() != job.expressions.len() {
        bail!("{} expressions were asked, {} came back", job.expressions.len(), artefact.symbols.len());
    }
    if job.depth == Depth::FrontEnd {
        return Ok(artefact.symbols.iter().map(|(expression, _)| (expression.clone(), Usage::default())).collect());
    }
    if artefact.image.is_empty() {
        bail!("the compiler returned no cubin");
    }
    let entries: BTreeMap<String, Usage> = ptxas::parse(&artefact.log)?.into_iter().map(|e| (e.symbol, e.usage)).collect();
    let usage = |(expression, symbol): &(String, String)| {
        let usage = entries.get(symbol).with_context(|| format!("the log does not tell of {expression} ({symbol})"))?;
        Ok((expression.clone(), *usage))
    };
    artefact.symbols.iter().map(usage).collect()
}

fn hold(measured: &Listing, options: &Options) -> Result<()> {
    let path = paths::root().join("xtask/kernel-resources.tsv");
    let read = || -> Result<Listing> {
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        ratchet::parse(&text).with_context(|| paths::shown(&path))
    };
    if options.bless {
        let mut listing = measured.clone();
        if options.target.is_some() && path.exists() {
            listing.extend(read()?.into_iter().filter(|((target, _), _)| !options.wants(target)));
        }
        std::fs::write(&path, ratchet::format(&listing)).with_context(|| path.display().to_string())?;
        println!("{}: {} kernels", paths::shown(&path), listing.len());
        return Ok(());
    }
    let mut listed = read()?;
    listed.retain(|(target, _), _| options.wants(target));
    let mut measured = measured.clone();
    if options.all {
        let before = measured.len();
        measured.retain(|key, _| listed.contains_key(key));
        println!("ratchet: {} of the planner's kernels are not among those that CI holds", before - measured.len());
    }
    let verdict = ratchet::compare(&listed, &measured);
    println!(
        "ratchet: {} kernels of the planner held to {}, {} use less than listed",
        measured.len(),
        paths::shown(&path),
        verdict.better
    );
    if !verdict.worse.is_empty() {
        let shown = verdict.worse.iter().take(20).cloned().collect::<Vec<_>>().join("\n  ");
        let count = verdict.worse.len();
        bail!("{count} kernels differ from {}; if it is meant, `cargo xtask kernels --bless`:\n  {shown}", paths::shown(&path));
    }
    Ok(())
}

/// The pinned compiler; installed below the target folder if it is not there.
fn load() -> Result<Compiler> {
    let folder = paths::target().join("nvrtc");
    wheels::ensure(&folder, &[(WHEEL, VERSION)])?;
    let library = find(&folder)?;
    Compiler::open(&library).map_err(|why| anyhow::anyhow!("{}: {why}", library.display()))
}

/// The library in the installed wheel; the `.alt` twin is for other systems.
fn find(folder: &Path) -> Result<PathBuf> {
    let lib = folder.join("nvidia/cu13/lib");
    let entries = std::fs::read_dir(&lib).with_context(|| lib.display().to_string())?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("libnvrtc.so.")));
    paths.sort();
    paths.pop().with_context(|| format!("no libnvrtc.so in {}", lib.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_wrong_ones_refused() {
        let options = Options { bless: true, target: Some("sm_80".into()), ..Options::default() };
        assert_eq!(Options::parse(&["--bless", "--target", "sm_80"]).unwrap(), options);
        assert!(options.wants("sm_80") && !options.wants("sm_90a"));
        assert_eq!(Options::parse(&[]).unwrap(), Options::default());
        for bad in [&["--fast"][..], &["--target"], &["--target", "sm_1"], &["--all", "--bless"]] {
            assert!(Options::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_expression_that_the_log_leaves_out_is_an_error() {
        let expressions = vec!["k<1>".to_string()];
        let job = Job { target: "sm_90a".into(), path: "x.cu".into(), source: "".into(), depth: Depth::Shipped, expressions };
        let symbols = vec![("k<1>".to_string(), "_Z1k".to_string())];
        let log = "ptxas info    : Compiling entry function '_Z1k' for 'sm_90a'\nptxas info    : Function properties for _Z1k\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nptxas info    : Used 9 registers\n";
        let artefact = Artefact { image: vec![1], symbols, log: log.into() };
        assert_eq!(usages(&job, &artefact).unwrap(), [("k<1>".to_string(), Usage { registers: 9, ..Usage::default() })]);
        assert!(usages(&job, &Artefact { image: vec![], ..artefact.clone() }).is_err());
        assert!(usages(&job, &Artefact { log: String::new(), ..artefact.clone() }).is_err());
        assert!(usages(&job, &Artefact { symbols: vec![], ..artefact }).is_err());
    }
}
