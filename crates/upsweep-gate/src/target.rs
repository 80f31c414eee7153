//! The device as the judge sees it, and the poisons and guards that every device shares.

use crate::candidate::Candidate;
use crate::error::{GateError, Result};
use crate::judged::{Huge, Judged, Traffic};
use crate::points::Placement;
use crate::record::{Ceiling, Device, HostCost, Peak, Row};
use crate::verify::{DETERMINISM_RUNS, Verified};
use rayon::prelude::*;
use std::mem::MaybeUninit;
use std::path::Path;
use upsweep::device::caps::Caps;
use upsweep::flow::{HostSlice, Plan};
use upsweep::types::{DType, dispatch};

/// Elements of guard on each side of every buffer.
pub const GUARD_ELEMENTS: usize = 64;

/// What fills input guards and the gaps of strided views: a NaN in every float dtype, so that a read outside the
/// input's elements shows in the result.
pub const GAP_BYTE: u8 = 0xff;

/// What fills guards of outputs and of scratch.
pub const GUARD_BYTE: u8 = 0xa5;

/// An output is filled with one of these before a run, by turns, so that no value which happens to be right can hide
/// that nothing was written: the first reads as NaN in f32 and as garbage elsewhere, the second as a plain number.
pub const POISONS: [u32; 2] = [0xffc0_dead, 0x5a5a_5a5a];

/// A device as records know it, and the ceilings that it sets.
pub trait Machine {
    /// What the planner needs to know of the device.
    fn caps(&self) -> Caps;

    /// Names and versions, for records. `Device::kind` and `Device::name` identify the device.
    fn describe(&self) -> Device;

    /// The stated memory bandwidth, where there is one.
    fn peak(&self) -> Option<Peak>;

    /// Last-level cache in bytes, for the rotation of inputs.
    fn cache_bytes(&self) -> u64;

    /// Block sizes worth a sweep; empty where a plan has no block.
    fn blocks(&self) -> &[u32];

    /// Whether a run's output can be the input's own memory. Where it cannot, cases that ask for it are counted as not
    /// claimed.
    fn runs_in_place(&self) -> bool {
        false
    }

    /// Runs of a case: one for each poison of outputs, unless the device sees itself what was not written.
    fn case_runs(&self) -> u32 {
        POISONS.len() as u32
    }

    /// Runs that are compared bit by bit where a rung claims determinism.
    fn determinism_runs(&self) -> u32 {
        DETERMINISM_RUNS
    }

    /// Why quick cases of tens of thousands of rows are left out, if they are.
    fn leaves_many_rows_out(&self) -> Option<&'static str> {
        None
    }

    /// Why a fault, by its name, cannot show on this device though it has the form; such a form is skipped.
    fn cannot_show(&self, _fault: &str) -> Option<&'static str> {
        None
    }

    /// Measures the best known plain read, or copy, that moves `bytes` bytes in all, now.
    ///
    /// # Errors
    /// What the library or the driver refuses.
    fn ceiling(&mut self, traffic: Traffic, bytes: u64, repeats: u32) -> Result<Ceiling>;
}

/// A device that runs an operation's plans for the judge.
///
/// An implementation owns its memory: it copies the input between guard bands at the asked shift, poisons the output
/// between guard bands, hands scratch over filled with garbage at an odd address, and reports what it saw. It decides
/// nothing: comparing is the judge's part.
pub trait Target<O: Judged>: Machine {
    /// Builds what the plans need, many at a time; later calls find it ready. Devices without a compiler do nothing.
    ///
    /// # Errors
    /// The first kernel that does not compile.
    fn prefetch(&mut self, _plans: &[Plan<O>]) -> Result<()> {
        Ok(())
    }

    /// This device's forms of the wrong kernels, each under the name of its [`Fault`](crate::judged::Fault).
    fn wrong_kernels(&self) -> Vec<Candidate<O>> {
        vec![]
    }

    /// Runs a plan `request.repeats` times on one input and reports what came out.
    ///
    /// # Errors
    /// What the library or the driver refuses. A device error word is not an error here but part of [`Observed`].
    fn run(&mut self, plan: &Plan<O>, input: &Input, request: RunRequest) -> Result<Observed>;

    /// Runs a plan on the closed-form data of a huge case, made on the device; the outputs are those of the case's
    /// windows, one after the other. `None` if this device makes no data.
    fn run_huge(&mut self, _plan: &Plan<O>, _case: &Huge<O>, _request: RunRequest) -> Option<Result<Observed>> {
        None
    }

    /// Opens another library (a shared library that `peers/README.md` describes), once: before anything is timed, so that
    /// a wrong path costs no measurement.
    ///
    /// # Errors
    /// [`crate::GateError::InvalidArgument`] where the device has no peers, or the path is no such library.
    fn open_peer(&mut self, path: &Path) -> Result<()> {
        Err(GateError::InvalidArgument {
            argument: "peer",
            got: path.display().to_string(),
            allowed: "peers are libraries for CUDA devices; the CPU's are measured by the programs in peers/".into(),
        })
    }

    /// Verifies and times another library on this target's own buffers, which begin where `placement` says; `None` where
    /// the library does not have the problem.
    ///
    /// # Errors
    /// As [`Target::open_peer`]; what the library or the driver refuses.
    fn peer(
        &mut self,
        path: &Path,
        _problem: &O::Problem,
        _placement: Placement,
        _request: &TimingRequest,
    ) -> Result<Option<Row>> {
        self.open_peer(path).map(|()| None)
    }

    /// Times the plan that was verified, where it was verified. The token is the only way to a plan here: see [`Timing::measure`].
    ///
    /// # Errors
    /// What the library or the driver refuses.
    ///
    /// [`Timing::measure`]: crate::timing::Timing::measure
    fn time(&mut self, verified: &Verified<O>, request: &TimingRequest) -> Result<Samples>;
}

/// How [`Target::run`] runs.
#[derive(Clone, Copy, Debug)]
pub struct RunRequest {
    /// Runs on the same input; before run `r` the output is filled with `POISONS[r % 2]`.
    pub repeats: u32,
    /// The output is the input's own memory, on devices where a caller can ask so.
    pub in_place: bool,
    /// Elements between an aligned address and the output's first element.
    pub output_shift: u64,
}

impl RunRequest {
    /// Runs into an aligned output of its own.
    pub fn repeats(repeats: u32) -> RunRequest {
        RunRequest { repeats, in_place: false, output_shift: 0 }
    }
}

/// What [`Target::run`] saw.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The output's bytes after each run.
    pub outputs: Vec<Vec<u8>>,
    /// The first guard band that was written, if one was.
    pub broken_guard: Option<String>,
    /// The bytes of every input (gaps and guards included) hash to the same before the first and after the last run.
    pub input_unchanged: bool,
    /// What the device error word said.
    pub device_error: Option<String>,
    /// What the device saw the kernel do wrong, whatever came out of it (the simulator).
    pub faults: Vec<String>,
}

/// How [`Target::time`] times.
#[derive(Clone, Debug)]
pub struct TimingRequest {
    /// Calls that are not counted.
    pub warm_up: u32,
    /// Timed calls.
    pub repeats: u32,
    /// Seed of the inputs.
    pub seed: u64,
    /// Bytes that the rotated inputs must exceed together; a single input that is larger needs no rotation.
    pub footprint: u64,
}

/// What [`Target::time`] measured.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Seconds of each timed call.
    pub seconds: Vec<f64>,
    /// Seconds of the first kernel alone, for plans of several launches (may be empty).
    pub first_pass_seconds: Vec<f64>,
    /// Seconds of a call through the eager path, where `seconds` are of graph replays (may be empty).
    pub eager_seconds: Vec<f64>,
    /// What the host spends on a call, where `seconds` are of graph replays.
    pub host: Option<HostCost>,
    /// Kernel launches of one call.
    pub launches: Option<u64>,
    /// Distinct input bytes that were rotated through.
    pub footprint: u64,
    /// The time is that of launching rather than of working.
    pub launch_bound: bool,
}

/// Host memory whose dtype is known at run time, with the elements `shift` elements after an aligned base; and, of a problem
/// with two inputs, the second one.
#[derive(Clone, Debug)]
pub struct Input {
    words: Vec<Word>,
    dtype: DType,
    len: usize,
    shift: usize,
    second: Option<Box<Input>>,
}

/// Alignment of an input's base: the strictest that any backend treats specially is a 16-byte vector load; a cache
/// line keeps CPU measurements steady.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Word([u8; 64]);

impl Input {
    /// `len` elements, every byte of them, of the guards and of the shift [`GAP_BYTE`] (for bool the byte 1, since a
    /// bool has no other values to spare).
    pub fn new(dtype: DType, len: u64, shift: u64) -> Input {
        Input::filled(dtype, len, shift, GAP_BYTE)
    }

    /// As [`Input::new`], every byte `fill`.
    pub(crate) fn filled(dtype: DType, len: u64, shift: u64, fill: u8) -> Input {
        let (len, shift) = (len as usize, shift as usize);
        let bytes = (GUARD_ELEMENTS + len + shift + GUARD_ELEMENTS) * dtype.size() as usize;
        let fill = if dtype == DType::Bool { 1 } else { fill };
        let count = bytes.div_ceil(64);
        let mut words: Vec<Word> = Vec::with_capacity(count);
        ask_for_huge_pages(words.as_ptr().cast(), count * 64);
        let places = &mut words.spare_capacity_mut()[..count];
        places.par_chunks_mut(1 << 14).for_each(|places| places.fill(MaybeUninit::new(Word([fill; 64]))));
        // SAFETY: the capacity is there, and each of these words was just written.
        unsafe { words.set_len(count) };
        Input { words, dtype, len, shift, second: None }
    }

    /// The same with the problem's second input.
    pub fn and(self, second: Option<Input>) -> Input {
        Input { second: second.map(Box::new), ..self }
    }

    /// The problem's second input.
    pub fn second(&self) -> Option<&Input> {
        self.second.as_deref()
    }

    /// The elements of the second input.
    pub fn second_slice(&self) -> Option<HostSlice<'_>> {
        self.second().map(Input::slice)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements, without guards.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Elements between the aligned base and the first element.
    pub fn shift(&self) -> u64 {
        self.shift as u64
    }

    /// Everything: leading guard, shift, elements, trailing guard.
    pub fn allocation(&self) -> &[u8] {
        // SAFETY: `Word` is 64 plain bytes without padding.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.words.len() * 64) }
    }

    pub(crate) fn allocation_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `allocation`, and `self` is borrowed exclusively. Callers keep bools 0 or 1.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.words.len() * 64) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let (start, len) = (self.first_byte(), self.bytes().len());
        &mut self.allocation_mut()[start..start + len]
    }

    /// Byte offset of the first element (a multiple of 64 bytes, plus the shift) in [`Input::allocation`].
    pub fn first_byte(&self) -> usize {
        (GUARD_ELEMENTS + self.shift) * self.dtype.size() as usize
    }

    /// The elements' bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.allocation()[self.first_byte()..][..self.len * self.dtype.size() as usize]
    }

    /// The elements.
    pub fn slice(&self) -> HostSlice<'_> {
        // SAFETY: the range lies within `words`; the base is 64-byte aligned and whole elements precede, so the start is
        // aligned; every byte was initialised to a value that is valid for the dtype, and `fill` writes whole elements.
        dispatch!(self.dtype, T => unsafe {
            HostSlice::from(std::slice::from_raw_parts(self.bytes().as_ptr().cast::<T>(), self.len))
        })
    }

    /// The elements, to be written.
    ///
    /// # Errors
    /// [`upsweep::Error::DTypeMismatch`] if `T` is another type.
    pub fn typed_mut<T: upsweep::types::Element>(&mut self) -> upsweep::Result<&mut [T]> {
        if T::DTYPE != self.dtype {
            return Err(upsweep::Error::DTypeMismatch { argument: "input", got: self.dtype, expected: T::DTYPE });
        }
        let start = self.first_byte();
        // SAFETY: as in `slice`, and `self` is borrowed exclusively.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast::<u8>().add(start).cast::<T>(), self.len) })
    }
}

/// Asks the system to back a large buffer by huge pages, as NumPy does for its arrays: both sides of a comparison then
/// walk the same page tables. A system that declines is no error.
fn ask_for_huge_pages(start: *const u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 4096;
        let first = (start as usize).next_multiple_of(PAGE);
        let end = (start as usize + bytes) / PAGE * PAGE;
        if bytes >= 4 << 20 && end > first {
            // SAFETY: whole pages inside an allocation of ours; the advice changes no contents.
            unsafe { libc::madvise(first as *mut libc::c_void, end - first, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}

/// The word that an output's memory is filled with before a run. Bool outputs get valid bools, by turns.
pub fn poison_word(dtype: DType, run: u32) -> u32 {
    if dtype == DType::Bool { (run % 2) * 0x0101_0101 } else { POISONS[run as usize % POISONS.len()] }
}

/// Fills an output's bytes with the poison of a run.
pub fn poison(bytes: &mut [u8], dtype: DType, run: u32) {
    let pattern = poison_word(dtype, run).to_le_bytes();
    for word in bytes.chunks_mut(4) {
        word.copy_from_slice(&pattern[..word.len()]);
    }
}

/// A hash of bytes that any change of a byte changes: FNV-1a over 64-bit words of pieces, in parallel, then over the pieces.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    const PIECE: usize = 1 << 20;
    let pieces: Vec<u64> = bytes.par_chunks(PIECE).map(piece_fingerprint).collect();
    pieces.iter().fold(bytes.len() as u64, |hash, piece| absorb(hash, *piece))
}

/// Each step is a bijection of the state, so a single changed word changes the result.
fn absorb(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29)
}

fn piece_fingerprint(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8);
    let start = words.remainder().iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| absorb(hash, u64::from(*byte)));
    words.fold(start, |hash, word| {
        let mut buffer = [0; 8];
        buffer.copy_from_slice(word);
        absorb(hash, u64::from_le_bytes(buffer))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_stand_between_guards_at_the_asked_shift() {
        for row in &DType::TABLE {
            for shift in 0..8 {
                let input = Input::new(row.dtype, 5, shift);
                assert_eq!(input.bytes().len() as u64, 5 * row.size);
                assert_eq!(input.slice().len(), 5);
                let address = input.bytes().as_ptr() as u64 - shift * row.size;
                assert_eq!(address % 64, 0, "{}", row.name);
                let after = input.allocation().len() - input.first_byte() - input.bytes().len();
                assert!(after as u64 >= GUARD_ELEMENTS as u64 * row.size);
            }
        }
    }

    #[test]
    fn gaps_are_nan_and_poisons_differ() {
        assert!(Input::new(DType::F32, 1, 0).slice().typed::<f32>().unwrap()[0].is_nan());
        assert!(Input::new(DType::F64, 1, 0).slice().typed::<f64>().unwrap()[0].is_nan());
        let mut bytes = [[0u8; 8]; 2];
        for dtype in DType::all() {
            bytes.iter_mut().zip(0..).for_each(|(bytes, run)| poison(bytes, dtype, run));
            assert!(bytes[0].iter().zip(&bytes[1]).all(|(a, b)| a != b), "{dtype}");
        }
    }

    #[test]
    fn any_changed_byte_changes_the_fingerprint() {
        let mut bytes: Vec<u8> = (0..77).collect();
        let before = fingerprint(&bytes);
        for position in 0..bytes.len() {
            bytes[position] ^= 0x10;
            assert_ne!(fingerprint(&bytes), before, "{position}");
            bytes[position] ^= 0x10;
        }
        assert_eq!(fingerprint(&bytes), before);
    }
}
