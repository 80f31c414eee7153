//! The host's C++ compiler: found when first needed, and asked for shared libraries of kernels.
//!
//! Order: `CXX` (a command or a path, alone), then `c++`, `g++`, `clang++` on `PATH`. GCC 12 and clang 16 are the oldest that know
//! all the options.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use upsweep::Error;
use upsweep::device::cache::Artefact;

/// The host's side of the kernel layer.
pub(crate) const HEADER: (&str, &str) = ("simulated.h", include_str!("simulated.h"));

/// Options of every build. Optimised, but for what would move basic blocks out of the order of the text: the order tells
/// iterations of loops. No contraction: host and device then round alike where the device's compiler does not fuse.
const OPTIONS: [&str; 15] = [
    "-std=c++17",
    "-O1",
    "-g1",
    "-fPIC",
    "-w",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-strict-aliasing",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fwrapv",
    "-fsanitize=thread",
    "-fsanitize-coverage=trace-pc",
    "-fno-asynchronous-unwind-tables",
    "-c",
];

/// Options that only GCC has.
const GCC_OPTIONS: [&str; 2] = ["-fno-reorder-blocks", "--param=tsan-distinguish-volatile=1"];

/// A C++ compiler of the host.
#[derive(Clone, Debug)]
pub struct HostCompiler {
    command: OsString,
    version: String,
}

impl HostCompiler {
    /// Finds the compiler.
    ///
    /// # Errors
    /// [`Error::Unavailable`], with what was tried and how to install one.
    pub fn find() -> Result<HostCompiler, Error> {
        let asked = std::env::var_os("CXX").filter(|value| !value.is_empty());
        let candidates: Vec<OsString> = match asked {
            Some(asked) => vec![asked],
            None => ["c++", "g++", "clang++"].map(OsString::from).into(),
        };
        let mut tried = Vec::new();
        for command in candidates {
            match version(&command) {
                Ok(version) => return Ok(HostCompiler { command, version }),
                Err(why) => tried.push(format!("{}: {why}", command.to_string_lossy())),
            }
        }
        Err(Error::Unavailable {
            what: "a C++ compiler for the simulator",
            why: format!("none of these could be started: {}", tried.join("; ")),
            next_step: "install g++ 12 or later (for instance `apt-get install g++`) or clang 16 or later, or set CXX to one; \
                        the CPU's own rungs need none (`--device cpu`)"
                .into(),
        })
    }

    /// What it says of itself: a line.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Everything that a build depends on besides its text.
    pub(crate) fn options(&self) -> Vec<&'static str> {
        let gcc = !self.version.contains("clang");
        OPTIONS.into_iter().chain(GCC_OPTIONS.into_iter().filter(move |_| gcc)).collect()
    }

    /// A shared library that exports an entry for each expression.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's words.
    pub(crate) fn build(&self, source: &str, name: &str, expressions: &[String]) -> Result<Artefact, Error> {
        let failed = |log: String| Error::Compile {
            kernel: expressions.first().cloned().unwrap_or_else(|| name.to_string()),
            target: "the simulator".into(),
            log,
        };
        let io = |error: std::io::Error| failed(error.to_string());
        let folder = tempfile::Builder::new().prefix("upsweep-sim-").tempdir().map_err(io)?;
        let at = |name: &str| folder.path().join(name);
        let mut text = String::from(source);
        let mut symbols = Vec::new();
        for (number, expression) in expressions.iter().enumerate() {
            let symbol = format!("upsweep_kernel_{number}");
            text.push_str(&format!(
                "UPSWEEP_EXPORT void {symbol}(const unsigned long long* words) {{ upsweep_sim::call(&{expression}, words); }}\n"
            ));
            symbols.push((expression.clone(), symbol));
        }
        std::fs::write(at("kernel.cpp"), text).map_err(io)?;
        let mut log =
            self.run(folder.path(), &[&self.options()[..], &["kernel.cpp", "-o", "kernel.o"]].concat()).map_err(failed)?;
        // Linked without -fsanitize: the functions that it calls are the header's own.
        log += &self.run(folder.path(), &["-shared", "-o", "kernel.so", "kernel.o", "-lm"]).map_err(failed)?;
        let image = std::fs::read(at("kernel.so")).map_err(io)?;
        Ok(Artefact { image, symbols, log })
    }

    fn run(&self, folder: &Path, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.command)
            .args(arguments)
            .current_dir(folder)
            .output()
            .map_err(|error| format!("{}: {error}", self.command.to_string_lossy()))?;
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(log) } else { Err(log) }
    }
}

fn version(command: &OsString) -> Result<String, String> {
    let output = Command::new(command).arg("--version").output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("`--version` gave {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().to_string())
}
