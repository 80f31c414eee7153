//! The CUDA device: driver through cudarc, kernels by NVRTC, and the one executor of programs.
//!
//! ```no_run
//! use upsweep::device::cuda::Cuda;
//! use upsweep::ops::reduce;
//!
//! # fn main() -> Result<(), upsweep::Error> {
//! let cuda = Cuda::new(0)?;
//! let x = cuda.upload(&[1.0f32, 2.0, 3.0])?;
//! assert_eq!(reduce::sum(&cuda, &x)?, 6.0);
//! # Ok(())
//! # }
//! ```

mod memory;
pub mod nvrtc;
mod prepared;

pub use prepared::{Graph, GraphCapture, Prepared, Scope};

use crate::device::cache::{Artefact, Cache};
use crate::device::caps::CudaCaps;
use crate::error::{Error, Result};
use crate::flow::{DeviceMut, DeviceRef, HostSlice, HostSliceMut, KernelFile, Launch, Op, Plan, Program, Step};
use crate::kernels::{full_source, tiles};
use crate::types::{Element, dispatch};
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DeviceRepr, DriverError, result, sys};
use nvrtc::Compiler;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::sync::{Arc, Mutex, OnceLock};

/// A CUDA device with its compiler and its built kernels. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Cuda {
    inner: Arc<Inner>,
}

struct Inner {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    caps: CudaCaps,
    driver_version: (u32, u32),
    compiler: OnceLock<Result<Compiler>>,
    cache: Cache,
    modules: Mutex<HashMap<String, Arc<Module>>>,
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cuda:{} ({})", self.inner.context.ordinal(), self.inner.caps.name)
    }
}

/// A driver call's failure with what was asked of it.
fn driver(call: &'static str, asked: impl FnOnce() -> String) -> impl FnOnce(DriverError) -> Error {
    move |error| {
        let text = |words: std::result::Result<&std::ffi::CStr, DriverError>| words.map(|w| w.to_string_lossy().into_owned());
        let name = text(error.error_name()).unwrap_or_else(|_| format!("{:?}", error.0));
        let words = text(error.error_string()).unwrap_or_default();
        Error::Driver { call, asked: asked(), text: format!("{name}: {words}") }
    }
}

/// Whether the driver library can be loaded. cudarc panics on first use without it, so this is asked first.
fn require_driver() -> Result<()> {
    // SAFETY: it only tries to load the driver library by its usual names.
    if unsafe { sys::is_culib_present() } {
        return Ok(());
    }
    Err(Error::Unavailable {
        what: "the CUDA driver (libcuda)",
        why: "the loader finds no libcuda.so.1 or nvcuda.dll".into(),
        next_step: "run on a machine with an NVIDIA GPU and its driver 580 or later, or use the CPU (`--device cpu`)".into(),
    })
}

/// A loaded cubin.
pub(crate) struct Module {
    handle: sys::CUmodule,
    context: Arc<CudaContext>,
    symbols: Vec<(String, String)>,
}

// SAFETY: module handles belong to the context, not to a thread; the driver's calls on them are thread-safe.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: loaded once, unloaded once; everything that launches its functions holds an Arc to it.
            let _ = unsafe { result::module::unload(self.handle) };
        }
    }
}

impl Module {
    fn load(context: &Arc<CudaContext>, artefact: Artefact) -> Result<Module> {
        context.bind_to_thread().map_err(driver("cuCtxSetCurrent", || "the device's context".into()))?;
        // SAFETY: the image is a whole cubin that outlives the call; the driver checks it.
        let handle = unsafe { result::module::load_data(artefact.image.as_ptr().cast()) }
            .map_err(driver("cuModuleLoadData", || format!("a cubin of {} bytes", artefact.image.len())))?;
        Ok(Module { handle, context: context.clone(), symbols: artefact.symbols })
    }

    fn function(&self, expression: &str) -> Result<sys::CUfunction> {
        let symbol = self.symbols.iter().find(|(e, _)| e == expression).map(|(_, s)| s.as_str()).unwrap_or(expression);
        let name = CString::new(symbol).map_err(|e| Error::Compile {
            kernel: expression.into(),
            target: String::new(),
            log: e.to_string(),
        })?;
        // SAFETY: the module is loaded and the name NUL-terminated.
        unsafe { result::module::get_function(self.handle, name) }.map_err(driver("cuModuleGetFunction", || symbol.to_string()))
    }
}

impl Cuda {
    /// Opens a device (its primary context, shared with other libraries).
    ///
    /// # Errors
    /// [`Error::Unavailable`] without a driver or such a device; [`Error::Driver`].
    pub fn new(ordinal: usize) -> Result<Cuda> {
        let count = Cuda::device_count()?;
        if ordinal >= count {
            return Err(Error::Unavailable {
                what: "the CUDA device",
                why: format!("device {ordinal} was asked for and the driver sees {count}"),
                next_step: if count == 0 {
                    "check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use the CPU (`--device cpu`)".into()
                } else {
                    format!("allowed are 0 to {}", count - 1)
                },
            });
        }
        let context = CudaContext::new(ordinal).map_err(driver("cuDevicePrimaryCtxRetain", || format!("device {ordinal}")))?;
        Cuda::from_context(context)
    }

    /// Number of devices the driver sees.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without a driver.
    pub fn device_count() -> Result<usize> {
        require_driver()?;
        if let Err(error) = result::init() {
            // A driver without a device fails to initialise: for a caller that is "no device", not a fault.
            if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE {
                return Ok(0);
            }
            return Err(driver("cuInit", || "flags 0".into())(error));
        }
        let count = result::device::get_count().map_err(driver("cuDeviceGetCount", || "all devices".into()))?;
        Ok(count.max(0) as usize)
    }

    /// Uses a context that the caller (or another library) opened.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn from_context(context: Arc<CudaContext>) -> Result<Cuda> {
        let caps = capabilities(&context)?;
        let stream = context.new_stream().map_err(driver("cuStreamCreate", || "a non-blocking stream".into()))?;
        let mut version = 0;
        // SAFETY: the pointer is to a live integer.
        unsafe { sys::cuDriverGetVersion(&mut version) }
            .result()
            .map_err(driver("cuDriverGetVersion", || "the driver's CUDA version".into()))?;
        let driver_version = (version as u32 / 1000, version as u32 % 1000 / 10);
        Ok(Cuda {
            inner: Arc::new(Inner {
                context,
                stream,
                caps,
                driver_version,
                compiler: OnceLock::new(),
                cache: Cache::from_environment(),
                modules: Mutex::default(),
            }),
        })
    }

    /// The device's context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.inner.context
    }

    /// The stream of the convenience calls.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.inner.stream
    }

    /// What the device can do.
    pub fn caps(&self) -> &CudaCaps {
        &self.inner.caps
    }

    /// The newest CUDA version that the driver supports.
    pub fn driver_version(&self) -> (u32, u32) {
        self.inner.driver_version
    }

    /// The kernel cache.
    pub fn cache(&self) -> &Cache {
        &self.inner.cache
    }

    /// The run-time compiler, loaded on first use.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the places that were looked at.
    pub fn compiler(&self) -> Result<&Compiler> {
        self.inner.compiler.get_or_init(Compiler::load).as_ref().map_err(Clone::clone)
    }

    /// Copies host elements to new device memory on the device's stream.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn upload<T: Element + DeviceRepr>(&self, host: &[T]) -> Result<CudaSlice<T>> {
        // The driver has no allocation of zero bytes.
        let mut slice = self.allocate::<T>(host.len().max(1))?;
        let asked = || format!("{} elements of {} to the device", host.len(), T::DTYPE);
        self.inner.stream.memcpy_htod(host, &mut slice).map_err(driver("cuMemcpyHtoDAsync", asked))?;
        Ok(slice)
    }

    /// Copies device elements to the host and waits for them.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn download<T: Element + DeviceRepr>(&self, slice: &CudaSlice<T>) -> Result<Vec<T>> {
        let mut host = vec![T::default(); slice.len()];
        let asked = || format!("{} elements of {} to the host", slice.len(), T::DTYPE);
        self.inner.stream.memcpy_dtoh(slice, &mut host).map_err(driver("cuMemcpyDtoHAsync", asked))?;
        self.synchronize(&self.inner.stream)?;
        Ok(host)
    }

    /// Runs a plan from host memory to host memory and waits: uploads the input, allocates output and scratch, downloads
    /// the result. For tools and tests of problems with one input; a program that calls often keeps its memory on the device.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`], [`Error::LengthMismatch`] before anything runs; [`Error::Driver`], [`Error::Compile`],
    /// [`Error::Device`].
    pub fn run_from_host<O: Op>(&self, plan: &Plan<O>, input: HostSlice<'_>, output: HostSliceMut<'_>) -> Result<()> {
        let stream = self.stream().clone();
        let mut prepared = self.prepare(plan)?;
        let (dtype, len) = (output.dtype(), output.len() as u64);
        let mut result = self.allocate::<u8>((len * dtype.size()) as usize)?;
        let mut scratch = self.allocate::<u8>(plan.scratch_bytes() as usize)?;
        dispatch!(input.dtype(), T => {
            let uploaded = self.upload(input.typed::<T>()?)?;
            self.scope(&stream, |scope| {
                let bytes = DeviceMut::of::<u8, _>(&mut result, &stream);
                // SAFETY: the allocation holds `len` elements of the dtype, is aligned by the driver, and is borrowed for
                // the scope.
                let output = unsafe { DeviceMut::from_raw(bytes.address(), len, dtype) }?;
                let operands = O::device_operands(DeviceRef::of::<T, _>(&uploaded, &stream), None, output);
                scope.enqueue(&mut prepared, operands, Some(DeviceMut::of::<u8, _>(&mut scratch, &stream)))
            })?;
        });
        let bytes = self.download(&result)?;
        dispatch!(dtype, R => {
            let values = output.typed::<R>()?;
            // SAFETY: `values` holds len * size bytes of plain data; kernels write only valid values (0 or 1 for bool).
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), values.as_mut_ptr().cast(), size_of_val(values)) };
        });
        Ok(())
    }

    /// New device memory with undefined contents (bits of any kind are valid for every dtype but bool, which kernels
    /// never read from an output).
    pub(crate) fn allocate<T: DeviceRepr>(&self, len: usize) -> Result<CudaSlice<T>> {
        let bytes = len * std::mem::size_of::<T>();
        // SAFETY: every caller writes the memory before it is read.
        unsafe { self.inner.stream.alloc::<T>(len.max(1)) }.map_err(driver("cuMemAllocAsync", || format!("{bytes} bytes")))
    }

    fn synchronize(&self, stream: &CudaStream) -> Result<()> {
        stream.synchronize().map_err(driver("cuStreamSynchronize", || "the enqueued work".into()))
    }

    /// Compiles what programs need and is not cached yet, on all host threads; later [`Cuda::prepare`] calls only load.
    ///
    /// # Errors
    /// The first compilation that failed.
    pub fn precompile<'a>(&self, programs: impl IntoIterator<Item = &'a Program>) -> Result<()> {
        let mut units: BTreeMap<String, (KernelFile, Vec<String>, &Program)> = BTreeMap::new();
        for program in programs {
            for (file, expressions) in units_of(program) {
                units.insert(format!("{} {expressions:?} {:?}", file.path, program.operator), (file, expressions, program));
            }
        }
        // What was compiled ahead of time needs no compiler.
        if units.values().any(|(file, ..)| file.tiles.is_empty()) {
            self.compiler()?;
        }
        let queue = Mutex::new(units.into_values());
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    loop {
                        let next = queue.lock().unwrap_or_else(|e| e.into_inner()).next();
                        let Some((file, expressions, program)) = next else { return };
                        if let Err(error) = self.build(file, &expressions, program.operator.as_deref()) {
                            failure.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
                        }
                    }
                });
            }
        });
        failure.into_inner().unwrap_or_else(|e| e.into_inner()).map_or(Ok(()), Err)
    }

    /// A kernel file's instantiations, loaded: from memory, from the cache, or compiled.
    fn build(&self, file: KernelFile, expressions: &[String], operator: Option<&str>) -> Result<Arc<Module>> {
        if !file.tiles.is_empty() {
            let expression = expressions.first().map_or("", String::as_str);
            return self.embedded(file, expression);
        }
        let target = self.inner.caps.target();
        let source = full_source(file, operator);
        // The compiler's version belongs to the key; without a compiler nothing can be built, so its absence shows here.
        let version = format!("{:?}", self.compiler()?.version());
        let mut parts = vec![source.as_str(), target.as_str(), version.as_str()];
        parts.extend(nvrtc::options());
        parts.extend(expressions.iter().map(String::as_str));
        let key = Cache::key(&parts);
        let load = |artefact| Module::load(&self.inner.context, artefact);
        self.loaded(key, |key| {
            if let Some(module) = self.inner.cache.get(key).and_then(|artefact| load(artefact).ok()) {
                return Ok(module);
            }
            let artefact = self.compiler()?.compile_source(&source, file.path, expressions, &target, &nvrtc::options())?;
            self.inner.cache.put(key, &artefact);
            load(artefact)
        })
    }

    /// A tile kernel's embedded cubin, loaded.
    fn embedded(&self, file: KernelFile, expression: &str) -> Result<Arc<Module>> {
        let caps = &self.inner.caps;
        let cubin = tiles::find_expression(file.path, expression, caps.compute).ok_or_else(|| Error::Compile {
            kernel: expression.to_string(),
            target: caps.target(),
            log: format!("tile kernels are embedded for {}; `cargo xtask tiles` makes them", tiles::devices()),
        })?;
        self.loaded(format!("{} {expression}", file.path), |_| {
            let symbols = vec![(expression.to_string(), cubin.symbol.to_string())];
            Module::load(&self.inner.context, Artefact { image: cubin.image.to_vec(), symbols, log: String::new() })
        })
    }

    /// The module of a key: what was loaded before, or what `load` gives.
    fn loaded(&self, key: String, load: impl FnOnce(&str) -> Result<Module>) -> Result<Arc<Module>> {
        let modules = || self.inner.modules.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(module) = modules().get(&key) {
            return Ok(module.clone());
        }
        let module = load(&key)?;
        Ok(modules().entry(key).or_insert(Arc::new(module)).clone())
    }
}

/// The modules a program needs: one for each kernel file with all its expressions, or one for each tile kernel.
fn units_of(program: &Program) -> Vec<(KernelFile, Vec<String>)> {
    let mut units: Vec<(KernelFile, Vec<String>)> = Vec::new();
    for Step::Launch(Launch { kernel, .. }) in &program.steps {
        let expression = &kernel.expression;
        let is_tile = !kernel.file.tiles.is_empty();
        let same = |(file, expressions): &&mut (KernelFile, Vec<String>)| {
            file.path == kernel.file.path && (!is_tile || expressions.contains(expression))
        };
        match units.iter_mut().find(same) {
            Some((_, expressions)) if expressions.contains(expression) => {}
            Some((_, expressions)) => expressions.push(expression.clone()),
            None => units.push((kernel.file, vec![expression.clone()])),
        }
    }
    units
}

/// How many multiprocessors are planned for: the device's, or fewer by `UPSWEEP_MULTIPROCESSORS`. Few blocks then take many tiles
/// each, which a check of small arrays meets on no large device.
fn at_most(device: u32, asked: Option<&str>) -> Result<u32> {
    let Some(asked) = asked else { return Ok(device) };
    match asked.parse() {
        Ok(count) if (1..=device).contains(&count) => Ok(count),
        _ => Err(Error::InvalidArgument {
            argument: "UPSWEEP_MULTIPROCESSORS",
            got: asked.into(),
            allowed: format!("allowed is 1 to {device}, the device's"),
        }),
    }
}

fn capabilities(context: &Arc<CudaContext>) -> Result<CudaCaps> {
    let attribute = |which: Attribute| {
        context.attribute(which).map(|v| v.max(0) as u32).map_err(driver("cuDeviceGetAttribute", || format!("{which:?}")))
    };
    let clock_khz = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)? as f64;
    let bus_bits = attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)? as f64;
    let bus = 2.0 * clock_khz * 1e3 * bus_bits / 8.0;
    Ok(CudaCaps {
        name: context.name().map_err(driver("cuDeviceGetName", || "the device's name".into()))?,
        compute: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: at_most(
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            std::env::var("UPSWEEP_MULTIPROCESSORS").ok().as_deref(),
        )?,
        threads_per_multiprocessor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        shared_bytes_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as u64,
        memory_bytes: context.total_mem().map_err(driver("cuDeviceTotalMem", || "the device's memory".into()))? as u64,
        bus_bytes_per_second: (bus > 0.0).then_some(bus),
        simulated: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_multiprocessors_are_an_order_and_more_are_an_error() {
        assert_eq!(at_most(132, None).unwrap(), 132);
        assert_eq!(at_most(132, Some("4")).unwrap(), 4);
        for wrong in ["0", "133", "four", ""] {
            let text = at_most(132, Some(wrong)).unwrap_err().to_string();
            assert!(text.contains("UPSWEEP_MULTIPROCESSORS") && text.contains("132"), "{text}");
        }
    }
}
