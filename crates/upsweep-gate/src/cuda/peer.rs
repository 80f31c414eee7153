//! Other libraries behind a C interface (see `peers/`), loaded at run time: verified by the same comparator and timed by
//! the same timer on the same buffers as our rungs.

use super::buffer::Buffer;
use super::{CudaTarget, GRAPH_BELOW, GRAPH_CALLS, LAUNCH_BOUND};
use crate::comparator::compare_outputs;
use crate::error::{GateError, Result};
use crate::families::Family;
use crate::judged::{Judged, PeerProblem};
use crate::points::Placement;
use crate::record::Row;
use crate::statistics::Spread;
use crate::target::{Machine, TimingRequest};
use crate::timing::{CACHE_MULTIPLE, CACHE_RESIDENT};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use upsweep::Error;
use upsweep::flow::Problem;
use upsweep::types::DType;

type Scratch = unsafe extern "C" fn(*const c_char, *const c_char, u64, u64) -> i64;
type Run = unsafe extern "C" fn(
    *const c_char,
    *const c_char,
    u64,
    u64,
    *mut c_void,
    u64,
    *const c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;

/// A loaded peer.
pub(super) struct Peer {
    name: String,
    version: String,
    run: Run,
    scratch: Scratch,
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
        let run = symbol!("upsweep_peer_run", Run);
        let scratch = symbol!("upsweep_peer_scratch", Scratch);
        // SAFETY: the function returns a static NUL-terminated string.
        let name = unsafe { CStr::from_ptr(name()) }.to_string_lossy().into_owned();
        // SAFETY: as above.
        let version = unsafe { CStr::from_ptr(version()) }.to_string_lossy().into_owned();
        Ok(Peer { name, version, run, scratch, _library: library })
    }
}

impl CudaTarget {
    /// Verifies and times a peer; `None` where the peer does not have the problem.
    ///
    /// # Errors
    /// What the peer or the driver refuses.
    pub(super) fn time_peer<O: Judged>(
        &mut self,
        peer: &Peer,
        problem: &O::Problem,
        placement: Placement,
        request: &TimingRequest,
    ) -> Result<Option<Row>> {
        let Some(PeerProblem { what, rows, columns, output_dtype }) = O::peer_problem(problem) else { return Ok(None) };
        let input_operand = problem.input();
        let dtype = input_operand.dtype;
        let text = |text: &str| CString::new(text).map_err(|_| GateError::Measurement(format!("`{text}` has a NUL")));
        let (what, dtype_name) = (text(&what)?, text(dtype.name())?);
        self.cuda.context().bind_to_thread().map_err(super::buffer::failed("cuCtxSetCurrent", String::new()))?;
        // SAFETY: both are NUL-terminated; a size query launches nothing.
        let scratch_bytes = unsafe { (peer.scratch)(what.as_ptr(), dtype_name.as_ptr(), rows, columns) };
        let Ok(scratch_bytes) = u64::try_from(scratch_bytes) else { return Ok(None) };
        let scratch = Buffer::new(&self.cuda, scratch_bytes)?;
        // Behind the outputs there is room for what a peer writes besides (the value of an argmax).
        let outputs = problem.output().len * output_dtype.size();
        let output_lead = placement.output * output_dtype.size();
        let output = Buffer::new(&self.cuda, output_lead + outputs + 8)?;
        let stream = self.timer.stream().clone();
        let call = |address: u64| -> Result<(), Error> {
            // SAFETY: the buffers have the sizes that the peer asked for and outlive the calls, which are waited for.
            let status = unsafe {
                (peer.run)(
                    what.as_ptr(),
                    dtype_name.as_ptr(),
                    rows,
                    columns,
                    scratch.address() as *mut c_void,
                    scratch_bytes,
                    address as *const c_void,
                    (output.address() + output_lead) as *mut c_void,
                    stream.cu_stream().cast(),
                )
            };
            if status == 0 {
                return Ok(());
            }
            Err(Error::Driver {
                call: "upsweep_peer_run",
                asked: format!("{peer:?}: {problem}"),
                text: format!("CUDA error {status}"),
            })
        };

        let input = O::make(problem, Family::Uniform, request.seed, placement.input)?;
        let first = self.upload(&input)?.first;
        output.poison(output_lead, outputs as usize, DType::U64, 0)?;
        call(first)?;
        self.timer.wait()?;
        let mut image = vec![0u8; outputs as usize];
        output.read_at(output_lead, &mut image)?;
        let n = O::elements(problem);
        let mut row = Row {
            op: O::NAME.into(),
            rung: format!("{} {}", peer.name, peer.version),
            device: "cuda".into(),
            operator: O::operator_of(problem).into(),
            dtype: dtype.name().into(),
            n,
            shape: if rows == 1 { columns.to_string() } else { format!("{rows} x {columns}, last axis") },
            bytes: problem.bytes(),
            traffic: O::traffic(problem),
            repeats: Some(request.repeats.into()),
            ..Row::default()
        };
        let expected = O::reference(problem, input.slice(), input.second_slice())?;
        let found = &image[..];
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
        let input_lead = placement.input * dtype.size();
        let (addresses, footprint) = self.pool(dtype, placement.input + input_operand.len, None, request)?;
        let call = |slot: u64| call(slot + input_lead);
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
