//! Compiles tile kernels to Tile IR bytecode. `cargo xtask tiles` sets up what this needs, says on standard input what to
//! compile and turns the bytecode into cubins.
//!
//! A job is a line of words: kernel file, function, extents (by commas), worker warps (0: the compiler's choice),
//! target, output file.

// The library's own kernel files; a job for another one is an error.
#[path = "../../crates/upsweep/src/ops/reduce/cuda/12_tiles.rs"]
mod reduce;
#[path = "../../crates/upsweep/src/ops/softmax/cuda/07_tiles.rs"]
mod softmax;

use cutile::compile_api::KernelCompiler;
use cutile::tile_kernel::CompileOptions;
use std::io::{BufRead, stdin};
use std::process::ExitCode;

fn compile(job: &str) -> Result<(), String> {
    let words: Vec<&str> = job.split_whitespace().collect();
    let [file, function, extents, worker_warps, target, output] = words[..] else {
        return Err("a job has six words".into());
    };
    let module = match file {
        "ops/reduce/cuda/12_tiles.rs" => reduce::kernels::__module_ast_self,
        "ops/softmax/cuda/07_tiles.rs" => softmax::kernels::__module_ast_self,
        _ => return Err(format!("tiles/src/main.rs has no module for {file}")),
    };
    let worker_warps = worker_warps.parse().map_err(|e| format!("worker warps {worker_warps}: {e}"))?;
    let options = CompileOptions::default();
    let options = if worker_warps == 0 { options } else { options.num_worker_warps_per_cta(worker_warps) };
    let compiler = KernelCompiler::new(module, "kernels", function)
        .generics(extents.split(',').map(String::from).collect())
        .target(target)
        .options(options);
    let bytecode = compiler.compile().and_then(|kernel| kernel.bytecode()).map_err(|e| e.to_string())?;
    std::fs::write(output, bytecode).map_err(|e| format!("{output}: {e}"))
}

fn run() -> Result<(), String> {
    for job in stdin().lock().lines() {
        let job = job.map_err(|e| format!("standard input: {e}"))?;
        compile(&job).map_err(|why| format!("{job}: {why}"))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    // The kernels' compiler recurses deeply.
    let worker = std::thread::Builder::new().stack_size(256 << 20).spawn(run);
    let outcome = worker.map_err(|e| e.to_string()).and_then(|w| w.join().unwrap_or_else(|_| Err("the compiler panicked".into())));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}
