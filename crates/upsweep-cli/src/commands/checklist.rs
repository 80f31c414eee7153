//! `checklist`: the assignment's nine boxes.

use super::{Bar, context, ladder, record_json, seed};
use crate::args::ChecklistArgs;
use crate::device::Device;
use crate::output::{self, Report, Section};
use upsweep_gate::checklist::{Checked, ChecklistOptions, checklist};
use upsweep_gate::cpu::CpuTarget;

/// Runs the command. A box that is not met is an answer, not a failure.
///
/// # Errors
/// The library's and the output's errors.
pub fn run(args: &ChecklistArgs) -> anyhow::Result<()> {
    let device = Device::select(args.device.device)?;
    let options = ChecklistOptions {
        n: args.n.unwrap_or_else(|| ladder::default_n(&device)),
        repeats: ladder::default_repeats(&device),
        seed: seed(args.seed),
    };
    let bar = Bar::new();
    let mut show = |progress| bar.show(progress);
    let Checked { record, ladder } = match &device {
        #[cfg(feature = "sim")]
        Device::Sim(_) => return Err(super::no_time("checklist")),
        Device::Cpu(caps) => checklist(&mut CpuTarget::new(caps.clone()), options, &context(), &mut show)?,
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => {
            let mut target = upsweep_gate::cuda::CudaTarget::new(cuda.clone())?;
            checklist(&mut target, options, &context(), &mut show)?
        }
    };
    drop(bar);
    if let Some(path) = &args.ladder {
        let text = serde_json::to_string_pretty(&record_json(&ladder)?)? + "\n";
        output::write_whole(path, |file| file.write_all(text.as_bytes()))?;
    }
    let mut section = Section::new(
        format!("The nine boxes on {} ({})", record.device.name, record.device.kind),
        &["box", "asks", "state", "evidence"],
    );
    for one in &record.boxes {
        let state = match one.met {
            Some(true) => "met",
            Some(false) => "not met",
            None => "not built",
        };
        section.row([one.number.to_string(), one.text.clone(), state.into(), one.evidence.clone()]);
    }
    section.notes.push(format!("Seed {}, commit {}.", record.seed, record.commit));
    Report { sections: vec![section], json: record_json(&record)? }.write(&args.output)
}
