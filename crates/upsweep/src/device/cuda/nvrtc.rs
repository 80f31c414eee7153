//! Our own binding of NVRTC, the run-time compiler of CUDA C++: loaded when first needed, looked for in a documented order.
//!
//! Order: `UPSWEEP_NVRTC` (a library file, or a folder that holds one); the loader's path; `CUDA_PATH` and `CUDA_HOME`;
//! the usual toolkit folders (`/usr/local/cuda`, `/usr/local/cuda-*`, `/opt/cuda`); the `nvidia` wheels of an active
//! Python environment (`VIRTUAL_ENV`, `CONDA_PREFIX`). Compiling needs no GPU and no driver.

use crate::device::cache::Artefact;
use crate::error::{Error, Result};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

type Program = *mut c_void;

/// The functions that are used, resolved once.
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    add_name: unsafe extern "C" fn(Program, *const c_char) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    lowered_name: unsafe extern "C" fn(Program, *const c_char, *mut *const c_char) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// A loaded compiler. Safe to use from several threads: every compilation is a program of its own.
pub struct Compiler {
    functions: Functions,
    version: (u32, u32),
    location: PathBuf,
    // Last, so that it is unloaded after everything that points into it; the builtins must outlive it.
    _library: Library,
    _builtins: Option<Library>,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NVRTC {}.{} at {}", self.version.0, self.version.1, self.location.display())
    }
}

impl Compiler {
    /// Finds and loads the compiler.
    ///
    /// # Errors
    /// [`Error::Unavailable`], with every place that was looked at and how to install it.
    pub fn load() -> Result<Compiler> {
        let mut tried = Vec::new();
        for candidate in candidates() {
            match Compiler::open(&candidate) {
                Ok(compiler) => return Ok(compiler),
                Err(why) => tried.push(format!("{}: {why}", candidate.display())),
            }
        }
        Err(Error::Unavailable {
            what: "NVRTC (libnvrtc, the run-time compiler of CUDA C++)",
            why: format!("none of these could be loaded: {}", tried.join("; ")),
            next_step:
                "install a CUDA toolkit 12.4 or later, or `python3 -m pip install nvidia-cuda-nvrtc` in an active virtual \
                        environment, or set UPSWEEP_NVRTC to the library"
                    .into(),
        })
    }

    /// Loads the compiler from one file, or by one loader name.
    ///
    /// # Errors
    /// The loader's own words.
    pub fn open(path: &Path) -> Result<Compiler, String> {
        let builtins = path.parent().filter(|folder| folder.is_dir()).and_then(open_builtins);
        // SAFETY: loading NVRTC runs its initialisers, which have no preconditions.
        let library = unsafe { Library::new(path) }.map_err(|e| e.to_string())?;
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the name belongs to the signature of the field it is stored in (NVRTC's public header).
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(|e| e.to_string())?
            };
        }
        let functions = Functions {
            version: symbol!("nvrtcVersion"),
            create: symbol!("nvrtcCreateProgram"),
            destroy: symbol!("nvrtcDestroyProgram"),
            add_name: symbol!("nvrtcAddNameExpression"),
            compile: symbol!("nvrtcCompileProgram"),
            log_size: symbol!("nvrtcGetProgramLogSize"),
            log: symbol!("nvrtcGetProgramLog"),
            cubin_size: symbol!("nvrtcGetCUBINSize"),
            cubin: symbol!("nvrtcGetCUBIN"),
            lowered_name: symbol!("nvrtcGetLoweredName"),
            error_string: symbol!("nvrtcGetErrorString"),
        };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are to live integers.
        let status = unsafe { (functions.version)(&mut major, &mut minor) };
        if status != 0 {
            return Err(format!("nvrtcVersion returned {status}"));
        }
        let version = (major as u32, minor as u32);
        Ok(Compiler { functions, version, location: path.to_path_buf(), _library: library, _builtins: builtins })
    }

    /// Major and minor version.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Where it was found.
    pub fn location(&self) -> &Path {
        &self.location
    }

    /// Compiles any text that is complete in itself, with options of the caller's.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's log.
    pub fn compile_source(
        &self,
        source: &str,
        name: &str,
        expressions: &[String],
        target: &str,
        options: &[&str],
    ) -> Result<Artefact> {
        let failed = |log: String| Error::Compile {
            kernel: expressions.first().cloned().unwrap_or_else(|| name.to_string()),
            target: target.to_string(),
            log,
        };
        let c_string = |text: &str| CString::new(text).map_err(|e| failed(e.to_string()));
        let (source, name) = (c_string(source)?, c_string(name)?);
        let names = expressions.iter().map(|e| c_string(e)).collect::<Result<Vec<_>>>()?;
        let options: Vec<CString> = options
            .iter()
            .map(|o| o.to_string())
            .chain([format!("--gpu-architecture={target}")])
            .map(|o| c_string(&o))
            .collect::<Result<_>>()?;
        let option_pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();

        let mut handle = Handle { compiler: self, program: std::ptr::null_mut() };
        let program = &mut handle.program;
        let none = std::ptr::null();
        // SAFETY: all strings are NUL-terminated and outlive the call, which copies them.
        self.check("nvrtcCreateProgram", unsafe {
            (self.functions.create)(program, source.as_ptr(), name.as_ptr(), 0, none, none)
        })
        .map_err(failed)?;
        let program = handle.program;
        for name in &names {
            // SAFETY: the program is live and the string is NUL-terminated.
            self.check("nvrtcAddNameExpression", unsafe { (self.functions.add_name)(program, name.as_ptr()) }).map_err(failed)?;
        }
        // SAFETY: the pointers are valid for the call.
        let status = unsafe { (self.functions.compile)(program, option_pointers.len() as c_int, option_pointers.as_ptr()) };
        let log = self.text(program, self.functions.log_size, self.functions.log);
        if status != 0 {
            return Err(failed(format!("{}\n{log}", self.words(status))));
        }
        let image = self.bytes(program, self.functions.cubin_size, self.functions.cubin);
        let mut symbols = Vec::with_capacity(names.len());
        for (expression, name) in expressions.iter().zip(&names) {
            let mut lowered = std::ptr::null();
            // SAFETY: the program is live; the result points into it and is copied below, before it is destroyed.
            self.check("nvrtcGetLoweredName", unsafe { (self.functions.lowered_name)(program, name.as_ptr(), &mut lowered) })
                .map_err(failed)?;
            // SAFETY: NVRTC returned success, so it is a NUL-terminated string owned by the live program.
            let lowered = unsafe { CStr::from_ptr(lowered) }.to_string_lossy().into_owned();
            symbols.push((expression.clone(), lowered));
        }
        Ok(Artefact { image, symbols, log })
    }

    fn words(&self, status: c_int) -> String {
        // SAFETY: NVRTC returns a static string for any status.
        let text = unsafe { CStr::from_ptr((self.functions.error_string)(status)) };
        text.to_string_lossy().into_owned()
    }

    fn check(&self, call: &str, status: c_int) -> Result<(), String> {
        if status == 0 { Ok(()) } else { Err(format!("{call}: {}", self.words(status))) }
    }

    fn bytes(
        &self,
        program: Program,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        get: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Vec<u8> {
        let mut len = 0usize;
        // SAFETY: the program is live and the pointer is to a live integer.
        if unsafe { size(program, &mut len) } != 0 || len == 0 {
            return Vec::new();
        }
        let mut bytes = vec![0u8; len];
        // SAFETY: the buffer has the size that NVRTC asked for.
        if unsafe { get(program, bytes.as_mut_ptr().cast()) } != 0 {
            bytes.clear();
        }
        bytes
    }

    fn text(
        &self,
        program: Program,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        get: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> String {
        let bytes = self.bytes(program, size, get);
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_string()
    }
}

/// Options of every compilation; part of the cache key.
pub const OPTIONS: [&str; 3] = ["--std=c++17", "-default-device", "--ptxas-options=-v"];

/// [`OPTIONS`], and with `UPSWEEP_RACECHECK=1` in the environment those of kernels whose barriers compute-sanitizer's racecheck
/// can follow (`warp_arrive` of the layer says how they differ).
pub fn options() -> Vec<&'static str> {
    let followed = std::env::var_os("UPSWEEP_RACECHECK").is_some_and(|value| value == "1");
    OPTIONS.into_iter().chain(followed.then_some("--define-macro=UPSWEEP_EVERY_LANE_ARRIVES")).collect()
}

/// Destroys the program whichever way its compilation ends.
struct Handle<'a> {
    compiler: &'a Compiler,
    program: Program,
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: created by this compiler and destroyed once.
            unsafe { (self.compiler.functions.destroy)(&mut self.program) };
        }
    }
}

/// A wheel's compiler finds its builtins only if they were opened globally before it.
fn open_builtins(folder: &Path) -> Option<Library> {
    let path = files_named(folder, "libnvrtc-builtins.so").into_iter().find(|p| !p.to_string_lossy().contains(".alt."))?;
    #[cfg(unix)]
    {
        use libloading::os::unix;
        // SAFETY: a data library without initialisers of note.
        unsafe { unix::Library::open(Some(path), unix::RTLD_NOW | unix::RTLD_GLOBAL) }.ok().map(Library::from)
    }
    #[cfg(not(unix))]
    {
        // SAFETY: as above.
        unsafe { Library::new(path) }.ok()
    }
}

/// Files of a folder whose names begin with a prefix, highest version first.
fn files_named(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix)))
        .collect();
    found.sort();
    found.reverse();
    found
}

#[cfg(windows)]
const LOADER_NAMES: [&str; 2] = ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"];
#[cfg(not(windows))]
const LOADER_NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
#[cfg(windows)]
const FILE_PREFIX: &str = "nvrtc64_";
#[cfg(not(windows))]
const FILE_PREFIX: &str = "libnvrtc.so";

/// Where the compiler is looked for, in order.
pub fn candidates() -> Vec<PathBuf> {
    let mut list = Vec::new();
    let in_folder = |folder: PathBuf| files_named(&folder, FILE_PREFIX);
    if let Some(set) = std::env::var_os("UPSWEEP_NVRTC").map(PathBuf::from) {
        // A set variable is an order: nothing else is tried.
        return if set.is_dir() { in_folder(set) } else { vec![set] };
    }
    list.extend(LOADER_NAMES.iter().map(PathBuf::from));
    let mut roots: Vec<PathBuf> = ["CUDA_PATH", "CUDA_HOME"].iter().filter_map(std::env::var_os).map(PathBuf::from).collect();
    roots.push("/usr/local/cuda".into());
    roots.extend(files_named(Path::new("/usr/local"), "cuda-"));
    roots.push("/opt/cuda".into());
    for root in roots {
        for folder in ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "bin"] {
            list.extend(in_folder(root.join(folder)));
        }
    }
    for environment in ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from) {
        for python in files_named(&environment.join("lib"), "python3") {
            for wheel in ["cu13", "cuda_nvrtc"] {
                list.extend(in_folder(python.join("site-packages/nvidia").join(wheel).join("lib")));
            }
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_error_with_a_reason() {
        let error = Compiler::open(Path::new("/nonexistent/libnvrtc.so.13")).unwrap_err();
        assert!(error.contains("nonexistent"), "{error}");
    }
}
