//! `explain`: a rung's story and its figures.

use super::{committed_records, list};
use crate::args::{DeviceChoice, ExplainArgs};
use crate::device::Device;
use crate::output::{Report, Section};
use serde_json::json;
use upsweep::device::caps::DeviceKind;
use upsweep::flow::RungFacts;
use upsweep::ops;
use upsweep_gate::record::{Kind, Row};

/// Runs the command.
///
/// # Errors
/// [`upsweep::Error::UnknownRung`]; those of the output.
pub fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let kinds: Vec<DeviceKind> = match args.device {
        None => vec![DeviceKind::Cpu, DeviceKind::Cuda],
        Some(DeviceChoice::Cpu) => vec![DeviceKind::Cpu],
        // A story needs no device, so `cuda` is explained on any machine.
        Some(DeviceChoice::Cuda(_) | DeviceChoice::Sim) => vec![DeviceKind::Cuda],
        Some(DeviceChoice::Auto) => vec![Device::select(DeviceChoice::Auto)?.kind()],
    };
    let rungs = select(&args.target.op, args.target.rung.as_deref(), &kinds)?;
    let mut report = Report::default();
    let mut values = Vec::new();
    // Counting takes a moment, so it is done for a rung that was asked for by name.
    let counts = args.target.rung.is_some() && !matches!(args.device, Some(DeviceChoice::Cpu));
    for rung in &rungs {
        let figures = figures(rung);
        let mut story = section(rung, &figures);
        let counted = if counts && rung.device == DeviceKind::Cuda { counters(rung)? } else { None };
        let Counted { sentence, lines, json: counters } = counted.unwrap_or_default();
        if let Some(sentence) = sentence {
            story.row(["counted".into(), sentence]);
        }
        report.sections.push(story);
        report.sections.extend(lines);
        let mut value = list::rung_json(rung);
        value["figures"] =
            json!(figures.iter().map(|f| json!({"record": f.path, "device": f.device, "row": f.row})).collect::<Vec<_>>());
        value["counters"] = counters;
        values.push(value);
    }
    report.json = json!({ "rungs": values });
    report.write(&args.output)
}

fn select(op: &str, name: Option<&str>, kinds: &[DeviceKind]) -> anyhow::Result<Vec<RungFacts>> {
    let rungs: Vec<RungFacts> = ops::rungs().into_iter().filter(|r| r.op == op && kinds.contains(&r.device)).collect();
    let Some(name) = name else { return Ok(rungs) };
    let found: Vec<RungFacts> = rungs.iter().filter(|r| r.is(name)).copied().collect();
    if found.is_empty() {
        let known: Vec<String> = rungs.iter().map(|r| format!("{} ({})", r.full_name(), r.device.name())).collect();
        return Err(upsweep::Error::UnknownRung { name: name.into(), known: known.join(", ") }.into());
    }
    Ok(found)
}

/// What the simulator counted of a rung.
#[derive(Default)]
struct Counted {
    sentence: Option<String>,
    lines: Option<Section>,
    json: serde_json::Value,
}

/// Elements on which rungs are counted: the figures are of a request or of a thread, and hardly depend on it.
#[cfg(feature = "sim")]
const COUNTED: u64 = 1 << 18;

/// What the simulator counts of a rung, and what of it is otherwise than in the rung before; nothing without a C++ compiler.
#[cfg(feature = "sim")]
fn counters(rung: &RungFacts) -> anyhow::Result<Option<Counted>> {
    use upsweep_gate::climb::ClimbOptions;
    let sim = upsweep_sim::Sim::new();
    if sim.compiler().is_err() {
        return Ok(None);
    }
    let ladder: Vec<RungFacts> = ops::rungs().into_iter().filter(|one| one.op == rung.op && one.device == rung.device).collect();
    let position = ladder.iter().position(|one| one.number == rung.number).unwrap_or(0);
    let asked = &ladder[position.saturating_sub(1)..=position];
    let options = ClimbOptions {
        n: COUNTED,
        dtype: upsweep::types::DType::F32,
        operators: vec![],
        rungs: asked.iter().map(RungFacts::full_name).collect(),
        block: None,
        peers: vec![],
        repeats: 1,
        seed: 1,
    };
    let record = super::of_op!(rung.op, O => upsweep_gate::sim::climb::<O>(&sim, &options, &super::context(), &mut |_| ()))?;
    let Some(last) = record.counted.last() else { return Ok(None) };
    let before = record.counted.first().filter(|before| before.rung != last.rung);
    let sentence = last.why.clone().or_else(|| upsweep_gate::counted::jump(before?, last));
    Ok(Some(Counted { sentence, lines: super::simulated::lines(last), json: serde_json::to_value(last)? }))
}

#[cfg(not(feature = "sim"))]
fn counters(_: &RungFacts) -> anyhow::Result<Option<Counted>> {
    Ok(None)
}

/// A row of a committed record.
struct Figure {
    path: &'static str,
    device: String,
    row: Row,
}

/// The rung's verified rows in the committed ladders.
fn figures(rung: &RungFacts) -> Vec<Figure> {
    let name = rung.full_name();
    let mut figures = Vec::new();
    for (path, record) in committed_records() {
        if record.kind != Kind::Ladder || record.op != rung.op || !record.invalid.is_empty() {
            continue;
        }
        let rows = record.rows.into_iter().filter(|row| row.rung == name && row.device == rung.device.name() && row.verified);
        figures.extend(rows.map(|row| Figure { path, device: record.device.name.clone(), row }));
    }
    figures
}

fn section(rung: &RungFacts, figures: &[Figure]) -> Section {
    let explain = &rung.explain;
    let mut section = Section::new(format!("{} on {}", rung.id(), list::device(rung)), &["", ""]);
    let mut line = |what: &str, text: String| section.row([what.into(), text]);
    line("what changed", explain.changed.into());
    line("why it helps", explain.helps.into());
    line("cost", explain.cost.into());
    line("source", explain.source.into());
    let claims = &rung.claims;
    line(
        "claims",
        format!("operators {}; dtypes {}; {}", list::operators(claims), list::dtypes(claims), list::forms(claims.forms)),
    );
    if rung.device == DeviceKind::Cuda {
        let limit =
            if claims.max_length == u64::MAX { String::new() } else { format!("; at most {} elements", claims.max_length) };
        line("needs", format!("compute capability {}.{}{limit}", claims.compute.0, claims.compute.1));
    }
    line("deterministic", if rung.deterministic { "yes" } else { "no: the last bits may differ from run to run" }.into());
    line("gate expects", list::expected(rung));
    if let Some(file) = rung.file {
        line("kernel", file.path.into());
    }
    for Figure { path, device, row } in figures {
        line(&format!("figure, {device}"), format!("{} ({path})", super::rows::in_words(row)));
    }
    if figures.is_empty() {
        line("figure", format!("no committed record has this rung; measure it with `upsweep ladder {}`", rung.op));
    }
    section
}
