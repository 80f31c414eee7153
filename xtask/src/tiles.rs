//! Compiles the Rust tile kernels that the ladders list into the cubins that the library embeds.
//!
//! The compilers are pinned, and the same source gives the same bytes: what is committed can be made again and compared.

use crate::{paths, wheels};
use anyhow::{Context, Result, bail};
use object::LittleEndian;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, SectionHeader};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use upsweep::flow::{KernelFile, TileKernel};
use upsweep::kernels::tiles::TARGETS;

/// The version of CUDA's compilers.
const VERSION: &str = "13.5.37";

/// From bytecode to cubins (tileiras, libnvvm, ptxas), and what building the front end needs: CUDA's headers and libclang.
const WHEELS: [wheels::Wheel; 7] = [
    ("nvidia-cuda-tileiras", VERSION),
    ("nvidia-nvvm", VERSION),
    ("nvidia-cuda-nvcc", VERSION),
    ("nvidia-cuda-runtime", VERSION),
    ("nvidia-cuda-crt", VERSION),
    ("nvidia-curand", "10.4.5.25"),
    ("libclang", "18.1.1"),
];

/// One cubin to make.
struct Job {
    file: KernelFile,
    kernel: &'static TileKernel,
    compute: (u32, u32),
    target: &'static str,
}

impl Job {
    /// Name of the embedded file, for instance `reduce-sum-4096-sm_90.cubin`.
    fn name(&self) -> String {
        let op = self.file.path.split('/').nth(1).unwrap_or("kernel");
        let extents: Vec<String> = self.kernel.extents.iter().map(u32::to_string).collect();
        format!("{op}-{}-{}-{}.cubin", self.kernel.function, extents.join("x"), self.target)
    }

    /// Name of the kernel in the cubin.
    fn symbol(&self) -> String {
        format!("{}_entry", self.kernel.function)
    }
}

/// What the library embeds: file names below its folder, with their contents.
type Embedded = BTreeMap<String, Vec<u8>>;

fn folder() -> PathBuf {
    paths::root().join("crates/upsweep/src/kernels/tiles")
}

/// Writes the cubins and the list of them.
pub(crate) fn write() -> Result<()> {
    let made = make()?;
    for stale in committed()?.into_keys().filter(|name| !made.contains_key(name)) {
        std::fs::remove_file(folder().join(stale))?;
    }
    for (name, bytes) in &made {
        std::fs::write(folder().join(name), bytes).with_context(|| name.clone())?;
    }
    println!("{} cubins, {} bytes", made.len() - 1, made.values().map(Vec::len).sum::<usize>());
    Ok(())
}

/// Makes the cubins again and compares them with the embedded ones, byte by byte.
pub(crate) fn check() -> Result<()> {
    let (made, committed) = (make()?, committed()?);
    let names = made.keys().chain(committed.keys()).collect::<std::collections::BTreeSet<_>>();
    let stale: Vec<&str> = names.into_iter().filter(|n| made.get(*n) != committed.get(*n)).map(String::as_str).collect();
    println!("{} cubins made again, {} differ", made.len() - 1, stale.len());
    if !stale.is_empty() {
        bail!("not what the sources give: {}; `cargo xtask tiles` makes them", stale.join(", "));
    }
    Ok(())
}

/// What lies in the folder now.
fn committed() -> Result<Embedded> {
    let mut found = Embedded::new();
    for entry in std::fs::read_dir(folder())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name == "built.rs" || name.ends_with(".cubin") {
            found.insert(name, std::fs::read(&path)?);
        }
    }
    Ok(found)
}

fn jobs() -> Vec<Job> {
    let files: BTreeMap<&str, KernelFile> =
        upsweep::ops::rungs().iter().filter_map(|rung| rung.file).map(|file| (file.path, file)).collect();
    let mut jobs = Vec::new();
    for file in files.into_values() {
        for kernel in file.tiles {
            jobs.extend(TARGETS.map(|(compute, target)| Job { file, kernel, compute, target }));
        }
    }
    jobs
}

fn make() -> Result<Embedded> {
    let compilers = paths::target().join("tile-compilers");
    wheels::ensure(&compilers, &WHEELS)?;
    let toolkit = compilers.join("nvidia/cu13");
    let front_end = build_front_end(&compilers, &toolkit)?;
    let work = paths::target().join("tile-kernels");
    std::fs::create_dir_all(&work)?;
    let jobs = jobs();
    let bytecode = |job: &Job| work.join(job.name()).with_extension("bytecode");
    let mut lines = String::new();
    for job in &jobs {
        let extents: Vec<String> = job.kernel.extents.iter().map(u32::to_string).collect();
        let (file, kernel, output) = (job.file.path, job.kernel, bytecode(job));
        let words = [file, kernel.function, &extents.join(","), &kernel.worker_warps.to_string(), job.target].join(" ");
        lines.push_str(&format!("{words} {}\n", output.display()));
    }
    feed(&front_end, &toolkit, &lines)?;
    let mut made = Embedded::new();
    let mut entries = String::new();
    for job in &jobs {
        let (name, symbol) = (job.name(), job.symbol());
        let output = work.join(&name);
        let mut assembler = Command::new(toolkit.join("bin/tileiras"));
        assembler.args(["--gpu-name", job.target, "--opt-level", "3", "-o"]).arg(&output).arg(bytecode(job));
        succeed(&mut assembler, &name)?;
        let image = std::fs::read(&output).with_context(|| name.clone())?;
        let threads = required_threads(&image, &symbol).with_context(|| name.clone())?;
        entries.push_str(&format!(
            "    Cubin {{\n        file: {:?},\n        expression: {:?},\n        compute: {:?},\n        threads: {threads},\n        symbol: {symbol:?},\n        image: image!({name:?}),\n    }},\n",
            job.file.path,
            job.kernel.expression(),
            job.compute,
        ));
        made.insert(name, image);
    }
    made.insert("built.rs".into(), list(&jobs, &entries)?.into_bytes());
    Ok(made)
}

/// The text of `built.rs`.
fn list(jobs: &[Job], entries: &str) -> Result<String> {
    let manifest: toml::Table = std::fs::read_to_string(paths::root().join("tiles/Cargo.toml"))?.parse()?;
    let front_end = manifest["dependencies"]["cutile"].as_str().context("tiles/Cargo.toml names no version of cutile")?;
    let front_end = front_end.trim_start_matches('=');
    let sources: BTreeMap<&str, &str> = jobs.iter().map(|job| (job.file.path, job.file.text)).collect();
    let digest = |text: &str| Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let sources: String = sources.iter().map(|(path, text)| format!("    ({path:?}, {:?}),\n", digest(text))).collect();
    Ok(format!(
        "//! Written by `cargo xtask tiles`.\n\n\
         use super::Cubin;\n\n\
         #[cfg(feature = \"cuda\")]\n\
         macro_rules! image {{\n    ($name:literal) => {{\n        include_bytes!($name)\n    }};\n}}\n\
         #[cfg(not(feature = \"cuda\"))]\n\
         macro_rules! image {{\n    ($name:literal) => {{\n        &[]\n    }};\n}}\n\n\
         /// What compiled them.\n\
         pub const COMPILER: &str = \"cutile {front_end}, tileiras {VERSION}\";\n\n\
         /// The kernel files they were made from, each with its SHA-256.\n\
         pub const SOURCES: &[(&str, &str)] = &[\n{sources}];\n\n\
         pub(super) static CUBINS: &[Cubin] = &[\n{entries}];\n"
    ))
}

/// Builds `tiles/`, which reads the kernel files as Rust.
fn build_front_end(compilers: &Path, toolkit: &Path) -> Result<PathBuf> {
    let target = paths::target().join("tiles");
    let include = Command::new("gcc").arg("-print-file-name=include").output().context("gcc did not start")?;
    let include = String::from_utf8_lossy(&include.stdout).trim().to_string();
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build
        .args(["build", "--quiet", "--release", "--locked", "--manifest-path"])
        .arg(paths::root().join("tiles/Cargo.toml"))
        .env("CARGO_TARGET_DIR", &target)
        .env("CUDA_TOOLKIT_PATH", toolkit)
        .env("LIBCLANG_PATH", compilers.join("clang/native"))
        .env("BINDGEN_EXTRA_CLANG_ARGS", format!("-I{include}"));
    succeed(&mut build, "tiles/")?;
    Ok(target.join("release/upsweep-tiles"))
}

/// Gives the front end its jobs. It asks the assembler which version of bytecode it reads.
fn feed(program: &Path, toolkit: &Path, lines: &str) -> Result<()> {
    let mut command = Command::new(program);
    let mut child = command
        .env("CUDA_TOOLKIT_PATH", toolkit)
        .stdin(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} did not start", program.display()))?;
    child.stdin.take().context("no standard input")?.write_all(lines.as_bytes())?;
    let status = child.wait()?;
    if !status.success() {
        bail!("the tile kernels did not compile: {status}");
    }
    Ok(())
}

fn succeed(command: &mut Command, what: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("{what}: {} did not start", command.get_program().display()))?;
    if !status.success() {
        bail!("{what}: {} ended with {status}", command.get_program().display());
    }
    Ok(())
}

/// Threads of a block that a kernel requires: attribute REQNTID of its section `.nv.info`, three numbers of 32 bits behind
/// a head of format, attribute and length.
fn required_threads(image: &[u8], symbol: &str) -> Result<u32> {
    const SIZED: u8 = 4;
    const REQUIRED_THREADS: u8 = 0x10;
    // Sections only: a cubin's program headers are not as other files have them.
    let header = FileHeader64::<LittleEndian>::parse(image)?;
    let sections = header.sections(LittleEndian, image)?;
    let name = format!(".nv.info.{symbol}");
    let (_, section) = sections.section_by_name(LittleEndian, name.as_bytes()).context("no attributes of the kernel")?;
    let mut rest = section.data(LittleEndian, image)?;
    while let [format, attribute, low, high, tail @ ..] = rest {
        let length = if *format == SIZED { usize::from(u16::from_le_bytes([*low, *high])) } else { 0 };
        let value = tail.get(..length).context("an attribute is cut off")?;
        if let (SIZED, REQUIRED_THREADS, [a, b, c, d, ..]) = (*format, *attribute, value) {
            return Ok(u32::from_le_bytes([*a, *b, *c, *d]));
        }
        rest = &tail[length..];
    }
    bail!("no number of threads is required")
}
