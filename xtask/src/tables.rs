//! The generated tables and pages: made from the committed records and from the library's own lists, so that no figure
//! and no name is written by hand.
//!
//! A Markdown file holds `<!-- generated: NAME -->` and `<!-- end -->`; what stands between is written by the block of
//! that name. The pages of the rungs are generated whole.

use crate::paths;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use upsweep::device::caps::DeviceKind;
use upsweep::flow::{Expect, Forms, RungFacts};
use upsweep::ops;
use upsweep::types::{DType, Kind as Number, Operator, OutputType};
use upsweep_gate::counted::{FIGURES, in_words, jump};
use upsweep_gate::findings::{Behind, CLIFF, Cliff};
use upsweep_gate::record::{Kind, Record, Row};

/// Where the rungs' pages are, a folder for each operation; only generated files lie in those.
const PAGES: &str = "docs/src/ladder";
const OPEN: &str = "<!-- generated: ";
const CLOSE: &str = "<!-- end -->";
const NOT_MEASURED: &str = "not measured yet";

/// What writes a block.
type Writer = fn(&Records, &str) -> String;

/// Blocks by name; a block of an operation is asked for as `NAME OP`.
const BLOCKS: &[(&str, Writer)] = &[
    ("ladder-h200", |records, op| ladder(records.ladder(op, "cuda", Some("H200")))),
    ("peers-h200", |records, op| peers(records, op, "cuda")),
    ("shapes-h200", |records, op| shapes(records.last(op, Kind::Shapes, "cuda", Some("H200")))),
    ("goals-h200", |records, op| goals(records.last(op, Kind::Goals, "cuda", Some("H200")))),
    ("ladder-cpu", |records, op| ladder(records.ladder(op, "cpu", None))),
    ("peers-cpu", |records, op| peers(records, op, "cpu")),
    ("operators", |_, _| operators()),
    ("dtypes", |_, _| dtypes()),
    ("rungs", |records, op| rungs(records, op)),
    ("summary-rungs", |_, op| summary(op)),
    ("wrong-kernels", wrong_kernels),
];

/// Writes what is stale.
pub(crate) fn write() -> Result<()> {
    let stale = stale()?;
    for (path, text) in &stale {
        match text {
            Some(text) => {
                if let Some(folder) = path.parent() {
                    std::fs::create_dir_all(folder)?;
                }
                std::fs::write(path, text).with_context(|| paths::shown(path))?;
                println!("wrote {}", paths::shown(path));
            }
            None => {
                std::fs::remove_file(path).with_context(|| paths::shown(path))?;
                println!("removed {}", paths::shown(path));
            }
        }
    }
    println!("{} files changed", stale.len());
    Ok(())
}

/// Fails if something is stale.
pub(crate) fn check() -> Result<()> {
    let stale: Vec<String> = stale()?.iter().map(|(path, _)| paths::shown(path)).collect();
    if !stale.is_empty() {
        bail!("`cargo xtask tables` would change {}", stale.join(", "));
    }
    println!("generated tables and pages are as the records and lists say");
    Ok(())
}

/// Files that differ from what they should be, with their right text; `None`: the file should not be there.
fn stale() -> Result<Vec<(PathBuf, Option<String>)>> {
    let root = paths::root();
    let records = Records::read(&root.join("records"))?;
    let mut wanted: BTreeMap<PathBuf, String> = BTreeMap::new();
    for file in paths::files(&root, "md")? {
        let text = std::fs::read_to_string(&file).with_context(|| paths::shown(&file))?;
        wanted.insert(file.clone(), fill(&text, &records).with_context(|| paths::shown(&file))?);
    }
    let mut stale = Vec::new();
    for op in ops::names() {
        let folder = root.join(PAGES).join(op);
        let pages: BTreeMap<PathBuf, String> =
            rungs_of(op).map(|rung| (folder.join(page_name(&rung)), page(&rung, &records))).collect();
        if folder.is_dir() {
            for file in paths::files(&folder, "md")?.into_iter().filter(|file| !pages.contains_key(file)) {
                wanted.remove(&file);
                stale.push((file, None));
            }
        }
        wanted.extend(pages);
    }
    for (path, text) in wanted {
        if std::fs::read_to_string(&path).ok().as_ref() != Some(&text) {
            stale.push((path, Some(text)));
        }
    }
    Ok(stale)
}

/// A file's text with its blocks written anew.
fn fill(text: &str, records: &Records) -> Result<String> {
    let mut filled = String::new();
    let mut lines = text.split_inclusive('\n');
    let mut fenced = false;
    while let Some(line) = lines.next() {
        filled.push_str(line);
        fenced ^= line.trim_start().starts_with("```");
        let Some(name) = line.trim().strip_prefix(OPEN).and_then(|rest| rest.strip_suffix(" -->")).filter(|_| !fenced) else {
            continue;
        };
        let (block, op) = name.split_once(' ').unwrap_or((name, ""));
        let (_, write) = BLOCKS.iter().find(|(known, _)| *known == block).with_context(|| {
            format!("unknown block `{name}`; known are {}", BLOCKS.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", "))
        })?;
        if !op.is_empty() && !ops::names().contains(&op) {
            bail!("block `{name}` is of no operation; known are {}", ops::names().join(", "));
        }
        filled.push_str(&write(records, op));
        let end = lines.by_ref().find(|line| line.trim() == CLOSE || line.trim().starts_with(OPEN));
        match end {
            Some(end) if end.trim() == CLOSE => filled.push_str(end),
            _ => bail!("block `{name}` is not closed by {CLOSE}"),
        }
    }
    Ok(filled)
}

/// The committed records with their paths, in order of path.
struct Records(Vec<(String, Record)>);

impl Records {
    fn read(folder: &Path) -> Result<Records> {
        let mut records = Vec::new();
        if folder.is_dir() {
            for path in paths::files(folder, "json")? {
                records.push((paths::shown(&path), Record::read(&path)?));
            }
        }
        Ok(Records(records))
    }

    /// The last usable record of a kind on a device.
    fn last(&self, op: &str, kind: Kind, device: &str, name: Option<&str>) -> Option<&(String, Record)> {
        let fits = |record: &Record| {
            record.kind == kind
                && record.op == op
                && record.invalid.is_empty()
                && record.device.kind == device
                && name.is_none_or(|name| record.device.name.contains(name))
        };
        self.0.iter().rev().find(|(_, record)| fits(record))
    }

    fn ladder(&self, op: &str, device: &str, name: Option<&str>) -> Option<&(String, Record)> {
        self.last(op, Kind::Ladder, device, name)
    }

    /// A rung's row in the ladder's record of its device.
    fn row(&self, rung: &RungFacts) -> Option<(&str, &Record, &Row)> {
        let name = (rung.device == DeviceKind::Cuda).then_some("H200");
        let (path, record) = self.ladder(rung.op, rung.device.name(), name)?;
        let row = record.rows.iter().find(|row| row.rung == rung.full_name() && row.verified)?;
        Some((path, record, row))
    }
}

/// The rungs of an operation.
fn rungs_of(op: &str) -> impl Iterator<Item = RungFacts> {
    ops::rungs().into_iter().filter(move |rung| rung.op == op)
}

/// A Markdown table.
fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    for row in rows {
        text.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    text
}

fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".into())
}

fn milliseconds(seconds: f64) -> String {
    if seconds < 1e-3 { format!("{:.4}", seconds * 1e3) } else { format!("{:.3}", seconds * 1e3) }
}

fn gigabytes(bytes_per_second: f64) -> String {
    let value = bytes_per_second / 1e9;
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn count(n: u64) -> String {
    if n.is_power_of_two() && n >= 1024 { format!("2^{}", n.trailing_zeros()) } else { n.to_string() }
}

/// Where a table's figures are from.
fn origin(path: &str, record: &Record) -> String {
    let device = &record.device;
    let mut parts = vec![device.name.clone()];
    if device.kind == "cpu" {
        parts.push(format!("{} threads", record.host.cores));
    }
    parts.extend(device.driver.iter().map(|v| format!("driver {v}")));
    parts.extend(device.nvrtc.iter().map(|v| format!("NVRTC {v}")));
    parts.extend(record.peak.iter().map(|p| format!("peak {} GB/s ({})", gigabytes(p.bytes_per_second), p.source)));
    let ceiling = record.ceilings.iter().max_by_key(|c| c.bytes);
    parts.extend(ceiling.map(|c| format!("{} ceiling {} GB/s ({})", c.traffic.name(), gigabytes(c.bytes_per_second), c.name)));
    parts.push(format!("commit {}", record.commit.get(..12).unwrap_or(&record.commit)));
    format!("{}; `{}`, seed {}; record `{path}`.\n", parts.join(", "), record.command, record.seed)
}

/// The ladder: every rung at one size, beside both denominators.
fn ladder(record: Option<&(String, Record)>) -> String {
    let Some((path, record)) = record else { return format!("{NOT_MEASURED}\n") };
    let rows: Vec<Vec<String>> = record
        .rows
        .iter()
        .map(|row| {
            let time = match (&row.failure, row.seconds) {
                (Some(failure), _) => failure.replace('|', "/"),
                (None, seconds) => or_dash(seconds.map(milliseconds)),
            };
            let percent = |value: Option<f64>| or_dash(value.map(|v| format!("{v:.1}")));
            vec![
                row.rung.clone(),
                or_dash(row.block.map(|b| b.to_string())),
                time,
                or_dash(row.bytes_per_second.map(gigabytes)),
                percent(row.percent_of_peak),
                percent(row.percent_of_ceiling),
                or_dash(row.speedup.map(|v| format!("{v:.2}"))),
                row.marks.join(", "),
            ]
        })
        .collect();
    let mut what: Vec<String> = record.rows.iter().map(|r| format!("{} of {} {}", r.operator, count(r.n), r.dtype)).collect();
    what.dedup();
    let head = ["rung", "block", "ms", "GB/s", "% of peak", "% of ceiling", "speedup", "marks"];
    format!(
        "Each rung verified, then timed, in one run: {}.\n\n{}\n{}",
        what.join("; "),
        table(&head, &rows),
        origin(path, record)
    )
}

/// Our kernel beside the others of the same run: one line for each problem.
fn peers(records: &Records, op: &str, device: &str) -> String {
    let ours: Vec<String> = rungs_of(op).map(|rung| rung.full_name()).collect();
    let is_ours = |row: &Row| row.rung.starts_with("upsweep") || ours.contains(&row.rung);
    // A bench with `--peer` holds both sides too.
    let name = (device == "cuda").then_some("H200");
    let bench = records.last(op, Kind::Bench, device, name).filter(|(_, record)| !record.rows.iter().all(is_ours));
    let Some((path, record)) = records.last(op, Kind::Peers, device, name).or(bench) else {
        return format!("{NOT_MEASURED}\n");
    };
    let mut others: Vec<&str> = Vec::new();
    let mut problems: Vec<(&str, &str, &str, u64)> = Vec::new();
    for row in &record.rows {
        let problem = (row.operator.as_str(), row.dtype.as_str(), row.shape.as_str(), row.n);
        if !problems.contains(&problem) {
            problems.push(problem);
        }
        if !is_ours(row) && !others.contains(&row.rung.as_str()) {
            others.push(&row.rung);
        }
    }
    let mut head = vec!["problem".to_string(), "upsweep".to_string()];
    for other in &others {
        head.extend([other.to_string(), format!("{other} / upsweep")]);
    }
    let cell = |row: &Row| match (row.seconds, row.bytes_per_second) {
        (Some(seconds), Some(rate)) if row.verified => format!("{} ms ({} GB/s)", milliseconds(seconds), gigabytes(rate)),
        _ => "-".into(),
    };
    let mut rows = Vec::new();
    for (operator, dtype, shape, n) in problems {
        let here =
            |row: &&Row| (row.operator.as_str(), row.dtype.as_str(), row.shape.as_str(), row.n) == (operator, dtype, shape, n);
        let ours = record.rows.iter().filter(here).find(|row| is_ours(row));
        // A problem that only one side ran is no comparison.
        if !record.rows.iter().filter(here).any(|row| !is_ours(row)) {
            continue;
        }
        let size = if shape.parse::<u64>() == Ok(n) || shape.is_empty() { count(n) } else { shape.to_string() };
        let name = ours.map_or(String::new(), |row| format!(" ({})", row.rung));
        let mut cells = vec![format!("{operator} of {size} {dtype}"), ours.map_or("-".into(), |row| cell(row) + &name)];
        for other in &others {
            let theirs = record.rows.iter().filter(here).find(|row| row.rung == *other);
            cells.push(theirs.map_or("-".into(), cell));
            let ratio = theirs.and_then(|t| t.seconds).zip(ours.and_then(|o| o.seconds)).map(|(t, o)| format!("{:.2}", t / o));
            cells.push(or_dash(ratio));
        }
        rows.push(cells);
    }
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    format!(
        "Both sides in one run; a ratio above 1 means that upsweep is faster.\n\n{}\n{}",
        table(&head, &rows),
        origin(path, record)
    )
}

/// The project's own figures, met and not met alike, and the fastest other library of the same run.
fn goals(record: Option<&(String, Record)>) -> String {
    let Some((path, record)) = record else { return format!("{NOT_MEASURED}\n") };
    let mut rows = vec![];
    for (row, goal) in record.rows.iter().filter_map(|row| Some((row, row.goal?))) {
        let same = |other: &&Row| {
            other.goal.is_none() && (&other.operator, &other.dtype, &other.shape) == (&row.operator, &row.dtype, &row.shape)
        };
        let others = record.rows.iter().filter(same).filter_map(|other| Some((other.seconds?, other.rung.as_str())));
        let fastest = others.min_by(|a, b| a.0.total_cmp(&b.0));
        let ratio = fastest.zip(row.seconds).map(|((theirs, name), ours)| format!("{:.2} ({name})", theirs / ours));
        let met = goal.is_met(row).map(|met| if met { "yes" } else { "no" }.to_string());
        rows.push(vec![
            format!("{} of {} {}", row.operator, row.shape, row.dtype),
            row.rung.clone(),
            or_dash(row.seconds.map(milliseconds)),
            or_dash(row.percent_of_ceiling.map(|percent| format!("{percent:.1}"))),
            goal.to_string(),
            or_dash(met),
            or_dash(ratio),
        ]);
    }
    let head = ["work", "rung", "ms", "% of the copy", "goal", "met", "fastest other library / upsweep"];
    format!("{}\n{}", table(&head, &rows), origin(path, record))
}

/// The list of shapes: how far the points are from the least, and which stand out.
fn shapes(record: Option<&(String, Record)>) -> String {
    let Some((path, record)) = record else { return format!("{NOT_MEASURED}\n") };
    let Some(found) = &record.findings else { return format!("{NOT_MEASURED}\n") };
    let times = |times: f64| format!("{times:.2}");
    let mut timed: Vec<(f64, &Row)> = record.rows.iter().filter_map(|row| Some((row.times_least?, row))).collect();
    timed.sort_by(|a, b| a.0.total_cmp(&b.0));
    let at = |part: usize| timed.get((timed.len() * part / 10).min(timed.len().saturating_sub(1))).map(|(t, _)| times(*t));
    let largest = timed.last().map_or(String::new(), |(most, row)| format!(", at most {} ({})", times(*most), row.shape));
    let mut text = format!(
        "{} points, each verified, then timed, in one run. Time over the least that the device needs: median {}, {} or less in nine \
         of ten{largest}.\n\n",
        found.points,
        or_dash(at(5)),
        or_dash(at(9)),
    );
    let cliff = |c: &Cliff| vec![c.point.clone(), times(c.times_least), c.neighbour.clone(), times(c.neighbour_times_least)];
    let cliffs: Vec<_> = found.cliffs.iter().map(cliff).collect();
    text.push_str(&format!("{} are more than {CLIFF} times as costly as a neighbour.\n\n", found.cliffs.len()));
    if !cliffs.is_empty() {
        text.push_str(&(table(&["point", "x least", "neighbour", "its x least"], &cliffs) + "\n"));
    }
    text.push_str(&format!(
        "{} of the {} points that a peer was timed at do not beat the fastest.\n\n",
        found.behind.len(),
        found.points_with_peer
    ));
    let one = |b: &Behind| vec![b.point.clone(), milliseconds(b.seconds), b.peer.clone(), milliseconds(b.peer_seconds)];
    let behind: Vec<_> = found.behind.iter().map(one).collect();
    if !behind.is_empty() {
        text.push_str(&(table(&["point", "ms", "peer", "its ms"], &behind) + "\n"));
    }
    text + &origin(path, record)
}

fn output(row: OutputType) -> &'static str {
    match row {
        OutputType::Same => "the input's",
        OutputType::Total => "floats: the input's; integers: i64 or u64; bool: u64",
        OutputType::Mean => "floats: the input's; else f64",
        OutputType::Index => "u64",
        OutputType::Own => "the operator's own",
    }
}

fn operators() -> String {
    let rows: Vec<Vec<String>> = Operator::TABLE
        .iter()
        .map(|row| {
            let dtypes = if DType::all().all(|d| row.operator.accepts(d)) { "all".into() } else { row.operator.accepted_names() };
            let empty = if row.empty_is_error { "error" } else { "value" };
            let order = if row.rounds { "floats round" } else { "exact" };
            [row.name, row.meaning, &dtypes, output(row.output), empty, order].map(String::from).to_vec()
        })
        .collect();
    table(&["operator", "meaning", "input dtypes", "output dtype", "of nothing", "combining"], &rows)
}

fn dtypes() -> String {
    let rows: Vec<Vec<String>> = DType::TABLE
        .iter()
        .map(|row| {
            let roundoff = match row.kind {
                Number::Float => format!("2^-{}", -row.unit_roundoff.log2() as i64),
                _ => "exact".into(),
            };
            vec![
                row.name.to_string(),
                row.size.to_string(),
                row.accumulator.name().to_string(),
                roundoff,
                row.npy.map_or("-".into(), |npy| format!("`{}`", npy.replace('|', "\\|"))),
                row.safetensors.to_string(),
            ]
        })
        .collect();
    table(&["dtype", "bytes", "sums are carried in", "unit roundoff", "in `.npy`", "in safetensors"], &rows)
}

fn page_name(rung: &RungFacts) -> String {
    format!("{}-{}-{}.md", rung.device.name(), rung.number, rung.name.replace('_', "-"))
}

fn claims(rung: &RungFacts) -> String {
    let list = |names: Vec<&str>, all: &str| if names.is_empty() { all.to_string() } else { names.join(", ") };
    let claims = &rung.claims;
    let operators = list(claims.operators.iter().map(|o| o.name()).collect(), "every operator");
    let dtypes = list(claims.dtypes.iter().map(|d| d.name()).collect(), "every dtype that the operator takes");
    let forms = match claims.forms {
        Forms::Whole => "the whole of a contiguous array",
        Forms::Rows => "rows of contiguous elements",
        Forms::Columns => "columns that are neighbours in memory",
        Forms::Any => "any axes of any strides",
    };
    let mut text = format!("{operators}; {dtypes}; {forms}");
    if claims.max_length != u64::MAX {
        text.push_str(&format!("; up to {} elements", count(claims.max_length)));
    }
    if rung.device == DeviceKind::Cuda {
        text.push_str(&format!("; compute capability {}.{} or later", claims.compute.0, claims.compute.1));
    }
    text
}

/// A rung's figure from the records, in words.
fn figure(rung: &RungFacts, records: &Records) -> String {
    let Some((path, record, row)) = records.row(rung) else { return NOT_MEASURED.into() };
    let Some((seconds, rate)) = row.seconds.zip(row.bytes_per_second) else { return NOT_MEASURED.into() };
    let percent = |value: Option<f64>, of: &str| value.map_or(String::new(), |v| format!(", {v:.1} % of {of}"));
    format!(
        "{} ms, {} GB/s{}{} ({} of {} {} on {}; record `{path}`)",
        milliseconds(seconds),
        gigabytes(rate),
        percent(row.percent_of_peak, "peak"),
        percent(row.percent_of_ceiling, "the ceiling"),
        row.operator,
        count(row.n),
        row.dtype,
        record.device.name
    )
}

/// A rung's page.
fn page(rung: &RungFacts, records: &Records) -> String {
    let explain = &rung.explain;
    let mut text =
        format!("<!-- written by `cargo xtask tables` from the ladder; do not edit -->\n# {} {}\n\n", rung.number, rung.name);
    let kind = match rung.device {
        DeviceKind::Cpu => "CPU",
        DeviceKind::Cuda => "CUDA",
    };
    text.push_str(&format!("A rung of the {kind} ladder. `upsweep explain {}` prints the same.\n\n", rung.id()));
    let determinism = if rung.deterministic { "the same bits in every run" } else { "not deterministic: the last bits may vary" };
    let expected = match rung.expect {
        Expect::Pass => "every case passes".to_string(),
        Expect::Rejected(family) => format!("cases of the family {family} are rejected: it teaches that fault"),
    };
    for (name, value) in [
        ("What changed", explain.changed.to_string()),
        ("Why it helps", explain.helps.to_string()),
        ("Cost", explain.cost.to_string()),
        ("Measured", figure(rung, records)),
        ("Counted", counted(rung, records)),
        ("Claims", claims(rung)),
        ("Results", determinism.to_string()),
        ("The gate expects", expected),
        ("Source", explain.source.to_string()),
    ] {
        text.push_str(&format!("**{name}.** {value}\n\n"));
    }
    if let Some(file) = rung.file {
        let language = if file.tiles.is_empty() { "cpp" } else { "rust,ignore" };
        text.push_str(&format!("The kernel, `crates/upsweep/src/{}`:\n\n```{language}\n{}```\n", file.path, file.text));
    }
    text
}

/// What the simulator counted of a CUDA rung, against the rung before; a page of a CPU rung says that there is nothing.
fn counted(rung: &RungFacts, records: &Records) -> String {
    if rung.device == DeviceKind::Cpu {
        return "the simulator runs CUDA rungs".into();
    }
    let Some((path, record)) = records.last(rung.op, Kind::Counted, "sim", None) else { return NOT_MEASURED.into() };
    let Some(position) = record.counted.iter().position(|one| one.rung == rung.full_name()) else { return NOT_MEASURED.into() };
    let one = &record.counted[position];
    if let Some(why) = &one.why {
        return why.clone();
    }
    let all = FIGURES.iter().filter_map(|figure| Some(format!("{} {}", figure.words, in_words(*one.figures.get(figure.key)?))));
    let all = all.collect::<Vec<_>>().join(", ");
    let before = record.counted[..position].iter().rev().find(|before| before.verified);
    let jump = before.and_then(|before| jump(before, one)).unwrap_or_default();
    format!("{jump} All in all: {all} (`{path}`).").trim_start().to_string()
}

/// The list of an operation's rungs, with a line each.
fn rungs(records: &Records, op: &str) -> String {
    let rows: Vec<Vec<String>> = rungs_of(op)
        .map(|rung| {
            let link = format!("[{}]({op}/{})", rung.full_name(), page_name(&rung));
            let figure = records.row(&rung).and_then(|(_, _, row)| row.bytes_per_second).map(gigabytes);
            vec![rung.device.name().to_string(), link, rung.explain.changed.to_string(), or_dash(figure)]
        })
        .collect();
    table(&["device", "rung", "what changed", "GB/s"], &rows)
}

fn summary(op: &str) -> String {
    let mut text = String::new();
    for device in [DeviceKind::Cpu, DeviceKind::Cuda] {
        for rung in rungs_of(op).filter(|rung| rung.device == device) {
            text.push_str(&format!("  - [{} {} {}](ladder/{op}/{})\n", device.name(), rung.number, rung.name, page_name(&rung)));
        }
    }
    text
}

/// The wrong kernels of the last verification on each kind of device.
fn wrong_kernels(records: &Records, op: &str) -> String {
    let mut rows = Vec::new();
    for device in [DeviceKind::Cpu, DeviceKind::Cuda] {
        if let Some((_, record)) = records.last(op, Kind::Verify, device.name(), None) {
            for kernel in &record.wrong_kernels {
                let by = or_dash(kernel.by.clone());
                rows.push(
                    [device.name(), &kernel.name, &kernel.fault, kernel.verdict(), &by]
                        .map(|cell| cell.replace('|', "/"))
                        .to_vec(),
                );
            }
        }
    }
    if rows.is_empty() {
        return format!("{NOT_MEASURED}\n");
    }
    table(&["device", "wrong kernel", "its fault", "verdict", "found by"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use upsweep_gate::findings::Findings;
    use upsweep_gate::record::{Device, Host, SCHEMA};

    fn record(kind: Kind, device: &str, name: &str, rows: Vec<Row>) -> Record {
        Record {
            schema: SCHEMA,
            kind,
            op: "reduce".into(),
            command: "upsweep ladder reduce".into(),
            commit: "0123456789abcdef".into(),
            seed: 7,
            host: Host { name: "host".into(), cores: 2 },
            device: Device { kind: device.into(), name: name.into(), ..Device::default() },
            peak: None,
            ceilings: vec![],
            invalid: vec![],
            rows,
            findings: None,
            verify: None,
            rungs: vec![],
            wrong_kernels: vec![],
            boxes: vec![],
            counted: vec![],
        }
    }

    fn row(rung: &str, seconds: f64) -> Row {
        Row {
            op: "reduce".into(),
            rung: rung.into(),
            operator: "sum".into(),
            dtype: "f32".into(),
            n: 1 << 28,
            shape: (1u64 << 28).to_string(),
            verified: true,
            seconds: Some(seconds),
            bytes_per_second: Some(1.073741828e9 / seconds),
            percent_of_peak: Some(96.2),
            ..Row::default()
        }
    }

    #[test]
    fn blocks_are_written_and_everything_else_is_kept() {
        let records = Records(vec![]);
        let text = "a\n<!-- generated: ladder-h200 reduce -->\nold\n<!-- end -->\nb\n```\n<!-- generated: nonsense -->\n```\n";
        let filled = fill(text, &records).unwrap();
        assert_eq!(filled, text.replace("old", NOT_MEASURED));
        assert_eq!(fill(&filled, &records).unwrap(), filled);
        assert!(fill("<!-- generated: nonsense -->\n<!-- end -->\n", &records).is_err());
        assert!(fill("<!-- generated: dtypes -->\n", &records).is_err());
        assert!(fill("<!-- generated: dtypes -->\n<!-- generated: dtypes -->\n<!-- end -->\n", &records).is_err());
    }

    #[test]
    fn the_last_usable_record_is_taken() {
        let mut invalid = record(Kind::Ladder, "cuda", "NVIDIA H200", vec![row("8-last_block", 1e-3)]);
        invalid.invalid = vec!["slow".into()];
        let records = Records(vec![
            ("records/h200/1.json".into(), record(Kind::Ladder, "cuda", "NVIDIA H200", vec![row("8-last_block", 2.33e-4)])),
            ("records/h200/2.json".into(), invalid),
            ("records/t4/1.json".into(), record(Kind::Ladder, "cuda", "Tesla T4", vec![])),
        ]);
        let text = ladder(records.ladder("reduce", "cuda", Some("H200")));
        assert!(text.contains("| 8-last_block | - | 0.2330 | 4608 | 96.2 | - | - |  |"), "{text}");
        assert!(
            text.contains("sum of 2^28 f32") && text.contains("commit 0123456789ab,") | text.contains("commit 0123456789ab;"),
            "{text}"
        );
        let rung = rungs_of("reduce").find(|r| r.name == "last_block").unwrap();
        assert!(page(&rung, &records).contains("96.2 % of peak"));
    }

    #[test]
    fn peers_stand_beside_ours_with_their_ratio() {
        let rows = vec![row("8-last_block", 2e-4), row("CUB", 3e-4)];
        let records = Records(vec![("r.json".into(), record(Kind::Peers, "cuda", "NVIDIA H200", rows))]);
        let text = peers(&records, "reduce", "cuda");
        assert!(text.contains("| problem | upsweep | CUB | CUB / upsweep |"), "{text}");
        assert!(text.contains("| sum of 2^28 f32 |") && text.contains("| 1.50 |"), "{text}");
        assert!(peers(&records, "reduce", "cpu").contains(NOT_MEASURED));
    }

    #[test]
    fn shapes_that_stand_out_are_in_the_book() {
        let rows = [1.1, 1.2, 3.5].map(|times| Row { times_least: Some(times), ..row("7-look_ahead", 1e-3) }).to_vec();
        let mut record = record(Kind::Shapes, "cuda", "NVIDIA H200", rows);
        let cliff = Cliff { point: "steep".into(), times_least: 3.5, neighbour: "flat".into(), neighbour_times_least: 1.2 };
        record.findings = Some(Findings { points: 3, points_with_peer: 2, cliffs: vec![cliff], behind: vec![] });
        let text = shapes(Some(&("r.json".into(), record)));
        assert!(text.contains("median 1.20") && text.contains("| steep | 3.50 | flat | 1.20 |"), "{text}");
        assert!(text.contains("0 of the 2 points") && !text.contains("| peer |"), "{text}");
        assert!(shapes(None).contains(NOT_MEASURED));
    }

    #[test]
    fn every_row_of_the_lists_is_in_its_table() {
        assert_eq!(operators().lines().count(), Operator::TABLE.len() + 2);
        assert_eq!(dtypes().lines().count(), DType::TABLE.len() + 2);
        for op in ops::names() {
            assert_eq!(summary(op).lines().count(), rungs_of(op).count());
            let names: BTreeSet<String> = rungs_of(op).map(|rung| page_name(&rung)).collect();
            assert_eq!(names.len(), rungs_of(op).count(), "two rungs of {op} would share a page");
        }
    }
}
