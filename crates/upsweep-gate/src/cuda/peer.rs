//! Other libraries behind a C interface (see `peers/`), loaded at run time: verified by the same comparator and timed by
//! the same timer on the same buffers as our rungs.

use super::buffer::Buffer;
use super::{CudaTarget, GRAPH_BELOW, GRAPH_CALLS, LAUNCH_BOUND};
use crate::comparator::compare_outputs;
use crate::error::{GateError, Result};
use crate::families::{Family, make};
use crate::record::Row;
use crate::statistics::Spread;
use crate::target::{Target, TimingRequest, poison};
use crate::timing::{CACHE_MULTIPLE, CACHE_RESIDENT};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use upsweep::Error;
use upsweep::ops::reduce::{ReduceProblem, oracle};
use upsweep::types::{DType, Operator};

type Reduce = unsafe extern "C" fn(c_int, c_int, *mut c_void, u64, *const c_void, *mut c_void, u64, *mut c_void) -> c_int;
type ReduceScratch = unsafe extern "C" fn(c_int, c_int, u64) -> i64;

/// A loaded peer.
pub(super) struct Peer {
    name: String,
    version: String,
    reduce: Reduce,
    scratch: ReduceScratch,
    _library: Library,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

impl Peer {
    /// Loads a peer's shared library.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the loader's words.
    pub(super) fn open(path: &Path) -> Result<Peer> {
        let unavailable = |why: String| Error::Unavailable {
            what: "the peer library",
            why: format!("{}: {why}", path.display()),
            next_step: "build it as the head of its source in peers/ says".into(),
        };
        // SAFETY: a peer's initialisers are those of the CUDA runtime.
        let library = unsafe { Library::new(path) }.map_err(|e| unavailable(e.to_string()))?;
        macro_rules! symbol {
            ($name:literal, $type:ty) => {
                // SAFETY: the name belongs to this signature (peers/README.md).
                *unsafe { library.get::<$type>(concat!($name, "\0").as_bytes()) }.map_err(|e| unavailable(e.to_string()))?
            };
        }
        let name = symbol!("upsweep_peer_name", unsafe extern "C" fn() -> *const c_char);
        let version = symbol!("upsweep_peer_version", unsafe extern "C" fn() -> *const c_char);
        let reduce = symbol!("upsweep_peer_reduce", Reduce);
        let scratch = symbol!("upsweep_peer_reduce_scratch", ReduceScratch);
        // SAFETY: the function returns a static NUL-terminated string.
        let name = unsafe { CStr::from_ptr(name()) }.to_string_lossy().into_owned();
        // SAFETY: as above.
        let version = unsafe { CStr::from_ptr(version()) }.to_string_lossy().into_owned();
        Ok(Peer { name, version, reduce, scratch, _library: library })
    }
}

impl CudaTarget {
    /// Verifies and times a peer on whole arrays; `None` where the peer does not have the combination.
    ///
    /// # Errors
    /// What the peer or the driver refuses.
    pub(super) fn time_peer(
        &mut self,
        peer: &Peer,
        operator: Operator,
        dtype: DType,
        n: u64,
        request: &TimingRequest,
    ) -> Result<Option<Row>> {
        let (op, ty) = (operator as c_int, dtype as c_int);
        self.cuda.context().bind_to_thread().map_err(super::buffer::failed("cuCtxSetCurrent", String::new()))?;
        // SAFETY: a size query launches nothing.
        let scratch_bytes = unsafe { (peer.scratch)(op, ty, n) };
        let Ok(scratch_bytes) = u64::try_from(scratch_bytes) else { return Ok(None) };
        let problem = ReduceProblem::whole(operator, dtype, n)?;
        // A peer that sums 16-bit floats returns f32: hold it to the f32 result of the same elements.
        let output_dtype = if operator == Operator::Sum && dtype.size() == 2 { DType::F32 } else { problem.output_dtype() };
        let scratch = Buffer::new(&self.cuda, scratch_bytes)?;
        // Room for an index and a value.
        let output = Buffer::new(&self.cuda, 16)?;
        let stream = self.timer.stream().clone();
        let call = |address: u64| -> Result<(), Error> {
            // SAFETY: the buffers have the sizes that the peer asked for and outlive the calls, which are waited for.
            let status = unsafe {
                (peer.reduce)(
                    op,
                    ty,
                    scratch.address() as *mut c_void,
                    scratch_bytes,
                    address as *const c_void,
                    output.address() as *mut c_void,
                    n,
                    stream.cu_stream().cast(),
                )
            };
            if status == 0 {
                return Ok(());
            }
            Err(Error::Driver {
                call: "upsweep_peer_reduce",
                asked: format!("{peer:?}: {problem}"),
                text: format!("CUDA error {status}"),
            })
        };

        let input = make(&problem, Family::Uniform, request.seed, 0)?;
        let (first, _) = self.upload(&input)?;
        let mut image = vec![0u8; 16];
        poison(&mut image, DType::U64, 0);
        output.write(&image)?;
        call(first)?;
        self.timer.wait()?;
        output.read(&mut image)?;
        let mut row = Row {
            op: "reduce".into(),
            rung: format!("{} {}", peer.name, peer.version),
            device: "cuda".into(),
            operator: operator.name().into(),
            dtype: dtype.name().into(),
            n,
            shape: n.to_string(),
            bytes: problem.bytes(),
            repeats: Some(request.repeats.into()),
            ..Row::default()
        };
        let expected = oracle::reference(&problem, input.slice())?;
        let found = &image[..output_dtype.size() as usize];
        // The oracle's expectation carries the 16-bit rounding in its bound, so an f32 result is held to no less.
        match compare_outputs(&expected, found, output_dtype) {
            Ok(agreement) => {
                row.verified = true;
                row.error = Some(agreement.error);
                row.bound = Some(agreement.bound);
                row.rtol_1e4_met = Some(agreement.document_rtol_met);
            }
            Err(why) => {
                row.failure = Some(why);
                return Ok(Some(row));
            }
        }
        let (addresses, footprint) = self.pool(dtype, n, request)?;
        let seconds = if n < GRAPH_BELOW {
            let seconds = self.timer.graph(&self.cuda, request, GRAPH_CALLS, &addresses, call)?;
            row.eager_seconds = Some(Spread::of(&self.timer.eager(request, GRAPH_CALLS, &addresses, call)?)?.median);
            seconds
        } else {
            self.timer.events(request, &addresses, call)?
        };
        let spread = Spread::of(&seconds)?;
        if spread.median <= 0.0 {
            return Err(GateError::Measurement(format!("{peer:?} took no time")));
        }
        if spread.min < LAUNCH_BOUND {
            row.marks.push("launch-bound".into());
        }
        if footprint <= CACHE_MULTIPLE * self.cache_bytes() {
            row.marks.push(CACHE_RESIDENT.into());
        }
        row.seconds = Some(spread.median);
        row.seconds_min = Some(spread.min);
        row.seconds_p10 = Some(spread.p10);
        row.seconds_p90 = Some(spread.p90);
        row.bytes_per_second = Some(row.bytes as f64 / spread.median);
        Ok(Some(row))
    }
}
