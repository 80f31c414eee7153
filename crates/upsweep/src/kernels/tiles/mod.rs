//! Cubins of the Rust tile kernels, compiled ahead of time and embedded.
//!
//! A tile kernel is Rust whose values are tiles; which threads, copies and pipelines carry them out is the compiler's
//! choice. That compiler (the `cutile` crate and the `tileiras` program) needs the CUDA headers and libclang, so it runs
//! where the library is developed, not where it is built: `cargo xtask tiles` installs it below `target/`, compiles what the
//! ladders list and writes this folder. A cubin runs on the architecture it was made for and has no intermediate form for
//! others: a device that the list leaves out has the CUDA C++ rungs.

mod built;

use crate::flow::TileKernel;

pub use built::{COMPILER, SOURCES};

/// One compiled tile kernel for one architecture.
#[derive(Clone, Copy, Debug)]
pub struct Cubin {
    /// The kernel file's path, as [`KernelFile::path`](crate::flow::KernelFile::path).
    pub file: &'static str,
    /// The instantiation, as [`TileKernel::expression`].
    pub expression: &'static str,
    /// Compute capability it was made for.
    pub compute: (u32, u32),
    /// Threads of a block: what the compiler requires of a launch, neither more nor fewer.
    pub threads: u32,
    /// Name of the kernel in the image.
    pub symbol: &'static str,
    /// The image; empty in a build without the `cuda` feature.
    pub image: &'static [u8],
}

impl Cubin {
    /// Whether a device of this compute capability runs it: later minor versions of 8 run what is made for 8.0; the images
    /// for 9.0 and later use what one architecture alone has.
    pub fn runs_on(&self, compute: (u32, u32)) -> bool {
        self.compute == compute || (self.compute == (8, 0) && compute.0 == 8)
    }
}

/// Compute capabilities that cubins are made for, each with the compiler's name of it.
pub const TARGETS: [((u32, u32), &str); 4] = [((8, 0), "sm_80"), ((9, 0), "sm_90"), ((10, 0), "sm_100"), ((12, 0), "sm_120")];

/// Everything that is embedded.
pub fn cubins() -> &'static [Cubin] {
    built::CUBINS
}

/// A kernel's cubin for a device.
pub fn find(file: &str, kernel: &TileKernel, compute: (u32, u32)) -> Option<&'static Cubin> {
    find_expression(file, &kernel.expression(), compute)
}

/// As [`find`], by the name that a launch carries.
pub(crate) fn find_expression(file: &str, expression: &str, compute: (u32, u32)) -> Option<&'static Cubin> {
    cubins().iter().find(|cubin| cubin.file == file && cubin.expression == expression && cubin.runs_on(compute))
}

/// The devices that have cubins, in words.
pub(crate) fn devices() -> String {
    let word = |((major, minor), _): &((u32, u32), &str)| if *major == 8 { "8.x".into() } else { format!("{major}.{minor}") };
    format!("compute capability {}", TARGETS.iter().map(word).collect::<Vec<String>>().join(", "))
}
