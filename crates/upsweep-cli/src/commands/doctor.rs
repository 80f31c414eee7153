//! `doctor`: what was found, and the next step for what was not. It never fails because something is missing.

use crate::args::DoctorArgs;
use crate::device::cpu_caps;
use crate::output::{Report, Section};
use serde_json::json;

/// One thing that was looked for.
struct Finding {
    what: &'static str,
    found: bool,
    detail: String,
    next_step: Option<String>,
}

impl Finding {
    fn found(what: &'static str, detail: String) -> Finding {
        Finding { what, found: true, detail, next_step: None }
    }
}

/// Runs the command.
///
/// # Errors
/// Those of the output only.
pub fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let caps = cpu_caps();
    let mut findings = vec![
        Finding::found("upsweep", crate::build::VERSION.into()),
        Finding::found("cpu", format!("{}, {} threads, vector instructions {}", caps.name, caps.threads, caps.simd)),
    ];
    cuda(&mut findings);
    simulator(&mut findings);
    findings.push(Finding::found("records", format!("{} committed records are built in", crate::build::RECORDS.len())));
    let mut section = Section::new(None, &["what", "state", "detail", "next step"]);
    for finding in &findings {
        let state = if finding.found { "found" } else { "missing" };
        section.row([finding.what.into(), state.into(), finding.detail.clone(), finding.next_step.clone().unwrap_or_default()]);
    }
    let json = json!({ "findings": findings.iter().map(|f| json!({
        "what": f.what, "found": f.found, "detail": f.detail, "next_step": f.next_step,
    })).collect::<Vec<_>>() });
    Report { sections: vec![section], json }.write(&args.output)
}

/// What the simulator needs.
fn simulator(findings: &mut Vec<Finding>) {
    #[cfg(feature = "sim")]
    findings.push(match upsweep_sim::HostCompiler::find() {
        Ok(compiler) => Finding::found("C++ compiler (simulator)", compiler.version().into()),
        Err(upsweep::Error::Unavailable { what, why, next_step }) => {
            Finding { what, found: false, detail: why, next_step: Some(next_step) }
        }
        Err(other) => Finding { what: "C++ compiler (simulator)", found: false, detail: other.to_string(), next_step: None },
    });
    #[cfg(not(feature = "sim"))]
    let _ = findings;
}

#[cfg(not(feature = "cuda"))]
fn cuda(findings: &mut Vec<Finding>) {
    findings.push(Finding {
        what: "cuda backend",
        found: false,
        detail: "this build has no `cuda` feature".into(),
        next_step: Some("build with `--features cuda`".into()),
    });
}

#[cfg(feature = "cuda")]
fn cuda(findings: &mut Vec<Finding>) {
    use upsweep::Error;
    use upsweep::device::cache::Cache;
    use upsweep::device::cuda::Cuda;
    use upsweep::device::cuda::nvrtc::Compiler;

    let missing = |what: &'static str, error: Error| match error {
        Error::Unavailable { why, next_step, .. } => Finding { what, found: false, detail: why, next_step: Some(next_step) },
        other => Finding {
            what,
            found: false,
            detail: other.to_string(),
            next_step: Some("run `nvidia-smi`: if it fails too, repair the driver first".into()),
        },
    };
    match Cuda::device_count() {
        Err(error) => findings.push(missing("driver", error)),
        Ok(0) => {
            findings.push(Finding::found("driver", "loaded".into()));
            findings.push(Finding {
                what: "device",
                found: false,
                detail: "the driver sees no device".into(),
                next_step: Some("check `nvidia-smi` and the environment variable CUDA_VISIBLE_DEVICES".into()),
            });
        }
        Ok(count) => {
            for index in 0..count {
                match Cuda::new(index) {
                    Err(error) => findings.push(missing("device", error)),
                    Ok(cuda) => {
                        if index == 0 {
                            let (major, minor) = cuda.driver_version();
                            findings.push(Finding::found("driver", format!("supports CUDA {major}.{minor}")));
                        }
                        let caps = cuda.caps();
                        let peak = caps
                            .peak()
                            .map_or("peak unknown".into(), |(peak, source)| format!("peak {:.0} GB/s ({source})", peak / 1e9));
                        findings.push(Finding::found(
                            "device",
                            format!(
                                "cuda:{index}: {}, compute {}.{}, {} multiprocessors, {:.1} GiB, {peak}",
                                caps.name,
                                caps.compute.0,
                                caps.compute.1,
                                caps.multiprocessors,
                                caps.memory_bytes as f64 / (1u64 << 30) as f64
                            ),
                        ));
                    }
                }
            }
        }
    }
    match Compiler::load() {
        Ok(compiler) => {
            let (major, minor) = compiler.version();
            findings.push(Finding::found("nvrtc", format!("{major}.{minor} from {}", compiler.location().display())));
        }
        Err(error) => findings.push(missing("nvrtc", error)),
    }
    let cache = Cache::from_environment();
    findings.push(match cache.folder() {
        Some(folder) => {
            let (files, bytes) = folder_size(folder);
            Finding::found("kernel cache", format!("{}: {files} files, {bytes} bytes", folder.display()))
        }
        None => Finding {
            what: "kernel cache",
            found: false,
            detail: "switched off, or no home folder: kernels are compiled in every process".into(),
            next_step: Some("set UPSWEEP_CACHE_DIR to a folder, and unset UPSWEEP_CACHE".into()),
        },
    });
}

/// Files and bytes directly in a folder; none if it does not exist yet.
#[cfg(feature = "cuda")]
fn folder_size(folder: &std::path::Path) -> (u64, u64) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return (0, 0);
    };
    let files = entries.flatten().filter_map(|entry| entry.metadata().ok()).filter(|metadata| metadata.is_file());
    files.fold((0, 0), |(count, bytes), metadata| (count + 1, bytes + metadata.len()))
}
