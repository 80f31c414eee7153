//! Planning: a pure function of problem and device that says what runs and why, and the lowering of a rung's numbers
//! into launches, written once for all rungs.
//!
//! Which kernel and which numbers a row gets depends on its length, its dtype and its layout, never on how many rows
//! there are nor on the device: a row's bits are the same in every batch.

use super::problem::{DTYPES, Masked, SoftmaxKind, SoftmaxProblem};
use super::{Softmax, SoftmaxPlan, SoftmaxRung};
use crate::device::caps::{Caps, CudaCaps, DeviceKind};
use crate::error::{Error, Result};
use crate::flow::{Arg, Body, Forms, KernelFile, KernelSpec, Launch, Plan, Program, Rung, Step, TileKernel, Tuning};
use crate::types::{DType, Dim, MAX_DIMS};

/// The numbers that a CUDA rung supplies.
#[derive(Clone, Copy, Debug)]
pub enum Schedule {
    /// One block a row, whatever its length.
    RowPerBlock {
        /// Kernel template `<T, Kind, BLOCK>`.
        kernel: &'static str,
    },
    /// Rows held in registers.
    Registers,
    /// Long rows in chunks.
    LongRows {
        /// Threads of a block.
        block: u32,
    },
    /// Rows of any strides.
    Axes,
    /// The file's tile kernels, each for rows of up to so many elements: extents are rows and columns of a tile.
    Tiles,
}

/// Chooses the rung for a problem on a device. Pure: needs no device.
///
/// # Errors
/// [`Error::NotClaimed`] if no rung of the device takes the problem (a build without the device's backend).
pub fn plan(problem: &SoftmaxProblem, caps: &Caps) -> Result<SoftmaxPlan> {
    let (name, why) = choose(problem, caps);
    let rung = Rung::<Softmax>::find(caps.kind(), name)?;
    Plan::with_rung(problem, caps, rung, Tuning::default(), why)
}

/// Blocks of a grid at most.
const GRID: u64 = i32::MAX as u64;

/// Launches of a plan at most: more rows than 64 full grids have fit in no device's memory.
const LAUNCHES: u64 = 64;

/// Rows in strided layouts up to this length are walked by one group of threads; longer ones are cut into chunks.
const STRIDED_ROW: u64 = 1 << 16;

fn choose(problem: &SoftmaxProblem, caps: &Caps) -> (&'static str, String) {
    if let Caps::Cpu(cpu) = caps {
        return ("simd", format!("vectors on all {} threads; a row of {} elements", cpu.threads, problem.cols()));
    }
    let cols = problem.cols();
    let plain = problem.rows_are_plain();
    let held = longest_in_registers(problem.dtype(), cols);
    if plain && cols <= held {
        let shape = register_shape(problem.dtype(), cols, Tuning::default());
        let who = if shape.lanes < shape.block { "rows side by side in a block" } else { "a block a row" };
        return (
            "registers",
            format!(
                "one read and one write: {} threads hold a row of {cols} elements, {} each in loads of {}; {who}",
                shape.lanes,
                shape.packs * shape.width,
                shape.width
            ),
        );
    }
    if plain || cols > STRIDED_ROW {
        let why = if plain { format!("more than the {held} elements that a block holds") } else { "a long strided row".into() };
        return ("long_rows", format!("{why}: chunks of fixed length, two reads and one write"));
    }
    ("axes", "rows with strides: neighbouring threads follow the shorter stride".into())
}

/// Whether a rung is for a problem.
pub(super) fn claim(rung: &SoftmaxRung, problem: &SoftmaxProblem) -> Result<()> {
    let missing = |why: String| Err(Error::NotClaimed { rung: rung.id(), why });
    let claims = &rung.claims;
    if !claims.dtypes.is_empty() && !claims.dtypes.contains(&problem.dtype()) {
        let names: Vec<&str> = claims.dtypes.iter().map(|d| d.name()).collect();
        return missing(format!("its dtypes are {}", names.join(", ")));
    }
    if claims.forms != Forms::Any && !problem.rows_are_plain() {
        return missing("it takes rows whose elements are neighbours in the input and in the output".into());
    }
    if problem.cols() > claims.max_length {
        return missing(format!("it takes rows of up to {} elements", claims.max_length));
    }
    if let Body::Cuda { schedule: Schedule::Tiles, .. } = rung.body {
        if problem.kind() != SoftmaxKind::Softmax {
            return missing(format!("it gives {}", SoftmaxKind::Softmax));
        }
        // Its indices have 32 bits.
        let limit = i32::MAX as u64;
        if problem.rows() > limit || problem.pitch() < 0 || problem.pitch() as u64 > limit {
            return missing(format!("it takes up to {limit} rows, at most that many elements apart"));
        }
    }
    if let Body::Cuda { schedule: Schedule::Registers, .. } = rung.body {
        let held = longest_in_registers(problem.dtype(), problem.cols());
        if problem.cols() > held {
            return missing(format!("a block holds rows of up to {held} elements of {}", problem.dtype()));
        }
    }
    Ok(())
}

/// How a row lies in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegisterShape {
    /// Elements of one load.
    width: u32,
    /// Threads that hold a row.
    lanes: u32,
    /// Loads of a thread.
    packs: u32,
    /// Threads of a block.
    block: u32,
}

/// Elements of one load: 16 bytes, or as many as rows of this length keep aligned.
fn load_width(dtype: DType, cols: u64) -> u32 {
    let most = 16 / dtype.size() as u32;
    if cols == 0 { most } else { 1 << cols.trailing_zeros().min(most.trailing_zeros()) }
}

/// Values that a thread holds at most: 32 f32 leave half of the 64 registers that 1024 threads may have.
fn most_held(dtype: DType) -> u32 {
    if dtype == DType::F64 { 16 } else { 32 }
}

/// Threads of a block whose rows take a warp or less.
const SHORT_ROWS_BLOCK: u32 = 128;

/// Up to so many threads hold a row with so many values each, by the size of an element: the first entry that reaches.
/// Measured on an H200: two loads of 16 bytes a thread and many threads are best, but for halves, whose exponentials keep
/// the threads busy; a block of 1024 threads waits for itself, so it comes late.
fn held_by(dtype: DType) -> &'static [(u32, u32)] {
    match dtype.size() {
        2 => &[(32, 16), (1024, 32)],
        4 => &[(32, 4), (1024, 8), (1024, 16), (1024, 32)],
        _ => &[(32, 4), (512, 4), (1024, 8), (1024, 16)],
    }
}

/// The longest row that a block holds.
fn longest_in_registers(dtype: DType, cols: u64) -> u64 {
    let width = load_width(dtype, cols);
    u64::from(1024 * (most_held(dtype) / width * width))
}

/// The numbers of `registers` for a row that fits. A block size that was asked for is the number of threads that hold a
/// long row, if they can.
fn register_shape(dtype: DType, cols: u64, tuning: Tuning) -> RegisterShape {
    let (width, most) = (load_width(dtype, cols), most_held(dtype));
    let packs_of_row = cols.div_ceil(u64::from(width)).max(1);
    let packs = |lanes: u32| packs_of_row.div_ceil(u64::from(lanes)) as u32;
    let threads = |values: u32| cols.div_ceil(u64::from(values)).next_power_of_two();
    let reaches = |(longest, values): &&(u32, u32)| threads(*values) <= u64::from(*longest);
    let usual = held_by(dtype).iter().find(reaches).map_or(1024, |(_, values)| threads(*values));
    // Neighbouring threads load neighbours: narrow loads are spread over a warp first, two a thread.
    let lanes = usual.max(packs_of_row.div_ceil(2).next_power_of_two().min(32)) as u32;
    if lanes <= 32 {
        let block = if tuning.block == 0 { SHORT_ROWS_BLOCK } else { tuning.block };
        return RegisterShape { width, lanes, packs: packs(lanes), block };
    }
    let lanes = if tuning.block == 0 { lanes } else { tuning.block.max(threads(most) as u32) };
    RegisterShape { width, lanes, packs: packs(lanes), block: lanes }
}

/// The C++ operator types whose states scratch is sized by, each with the bytes of its `State`. The kernels' build
/// asserts them, one by one.
#[doc(hidden)]
pub fn state_sizes() -> Vec<(String, u64)> {
    DTYPES.iter().map(|d| (format!("upsweep::LogSumExp<{}>", d.row().c_name), state_bytes(*d))).collect()
}

/// Bytes of the C++ `MaxSum` of a dtype's accumulator.
fn state_bytes(dtype: DType) -> u64 {
    2 * dtype.row().accumulator.size()
}

/// What every lowering needs.
struct Lowering<'a> {
    problem: &'a SoftmaxProblem,
    file: KernelFile,
    caps: &'a CudaCaps,
    program: Program,
}

impl Lowering<'_> {
    /// A launch of `blocks` blocks, or of as many as a grid has: kernels stride over what is left, or a next launch follows.
    fn launch(&mut self, template: &str, parameters: &str, blocks: u64, block: u32, args: Vec<Arg>) {
        let grid = blocks.clamp(1, GRID) as u32;
        let expression = format!("upsweep::{template}<{parameters}>");
        let kernel = KernelSpec { file: self.file, expression };
        self.program.steps.push(Step::Launch(Launch { kernel, grid, block, shared_bytes: 0, args }));
    }

    fn element(&self) -> &'static str {
        self.problem.dtype().row().c_name
    }

    fn kind(&self) -> &'static str {
        match self.problem.kind() {
            SoftmaxKind::Softmax => "upsweep::Softmax",
            SoftmaxKind::LogSoftmax => "upsweep::LogSoftmax",
            SoftmaxKind::LogSumExp => "upsweep::RowLogSumExp",
        }
    }

    fn input(&self) -> Arg {
        Arg::Input { operand: 0, bytes: self.problem.shape().offset * self.problem.dtype().size() }
    }

    fn zero_masked(&self) -> Arg {
        Arg::U64(u64::from(self.problem.masked() == Masked::Zero))
    }

    /// The arguments of kernels over plain rows.
    fn plain_rows(&self) -> Vec<Arg> {
        let p = self.problem;
        let numbers = [p.rows(), p.cols(), p.pitch() as u64].map(Arg::U64);
        [self.input(), Arg::Output { operand: 0 }].into_iter().chain(numbers).chain([self.zero_masked()]).collect()
    }

    /// `RowsShape` of softmax.cuh.
    fn rows_shape(&self, chunk: u64, chunks: u64) -> Arg {
        let p = self.problem;
        let kept = &p.shape().kept;
        let stride = p.shape().reduced.first().map_or(1, |dim| dim.stride);
        let mut words = vec![p.rows(), p.cols(), chunk, chunks, p.inner(), stride as u64, kept.len() as u64];
        let padded = |value: &dyn Fn(&Dim) -> u64| (0..MAX_DIMS).map(|d| kept.get(d).map_or(1, value)).collect::<Vec<_>>();
        words.extend(padded(&|d| d.extent));
        words.extend(padded(&|d| d.stride as u64));
        Arg::Words(words)
    }

    fn registers(&mut self, tuning: Tuning) -> Result<()> {
        let p = self.problem;
        tuning.block_size(0)?;
        let RegisterShape { width, lanes, packs, block } = register_shape(p.dtype(), p.cols(), tuning);
        // Threads of a multiprocessor that the kernel is compiled to hold: bounds the registers of a thread.
        let value_registers = packs * width * (p.dtype().row().accumulator.size() / 4) as u32;
        let resident_threads = if value_registers <= 16 { 2048 } else { 1024 };
        let resident = (resident_threads.min(self.caps.threads_per_multiprocessor) / block).max(1);
        let parameters = format!("{}, {}, {lanes}, {packs}, {width}, {block}, {resident}", self.element(), self.kind());
        // A kernel that strides over rows is 0.5 % slower: what is more than a grid gets another launch.
        let rows_of_block = u64::from(block / lanes);
        let rows_of_launch = GRID * rows_of_block;
        if p.rows().div_ceil(rows_of_launch) > LAUNCHES {
            return Err(Error::InvalidArgument {
                argument: "rows",
                got: format!("{} rows", p.rows()),
                allowed: format!("at most {} rows of {} elements", LAUNCHES * rows_of_launch, p.cols()),
            });
        }
        for first in (0..p.rows()).step_by(rows_of_launch as usize) {
            let blocks = (p.rows() - first).div_ceil(rows_of_block);
            let args = self.plain_rows().into_iter().chain([Arg::U64(first)]).collect();
            self.launch("softmax_registers", &parameters, blocks, block, args);
        }
        Ok(())
    }

    fn long_rows(&mut self, block: u32) {
        let p = self.problem;
        // Strided elements are loaded one by one.
        let width = if p.rows_are_plain() { load_width(p.dtype(), p.cols()) } else { 1 };
        let packs = most_held(p.dtype()) / width;
        let chunk = u64::from(block * packs * width);
        let chunks = p.cols().div_ceil(chunk).max(1);
        let items = p.rows() * chunks;
        let shape = self.rows_shape(chunk, chunks);
        let bytes = state_bytes(p.dtype());
        let row_states = (items * bytes).next_multiple_of(16);
        self.program.scratch_bytes = row_states + p.rows() * bytes;
        let (states, row_states, output) = (Arg::Scratch(0), Arg::Scratch(row_states), Arg::Output { operand: 0 });
        let (element, kind, input) = (self.element(), self.kind(), self.input());
        let numbers = format!("{packs}, {width}, {block}");
        let args = vec![input.clone(), states.clone(), shape.clone()];
        self.launch("softmax_chunk_states", &format!("{element}, {numbers}"), items, block, args);
        let args = vec![states, row_states.clone(), output.clone(), Arg::U64(p.rows()), Arg::U64(chunks)];
        self.launch("softmax_merge_states", &format!("{element}, {kind}, 256"), p.rows(), 256, args);
        if p.kind() != SoftmaxKind::LogSumExp {
            let args = vec![input, row_states, output, shape, self.zero_masked()];
            self.launch("softmax_chunk_outputs", &format!("{element}, {kind}, {numbers}"), items, block, args);
        }
    }

    fn tiles(&mut self, rung: &SoftmaxRung) -> Result<()> {
        let p = self.problem;
        let columns = |kernel: &&TileKernel| u64::from(kernel.extents[1]) >= p.cols();
        let Some(kernel) = self.file.tiles.iter().find(columns) else {
            return Err(Error::NotClaimed { rung: rung.id(), why: format!("no tile of it holds {} elements", p.cols()) });
        };
        let cubin = self.file.cubin(kernel, self.caps, &rung.id())?;
        let grid = p.rows().div_ceil(u64::from(kernel.extents[0])).max(1) as u32;
        let args = self.plain_rows();
        let kernel = KernelSpec { file: self.file, expression: kernel.expression() };
        self.program.steps.push(Step::Launch(Launch { kernel, grid, block: cubin.threads, shared_bytes: 0, args }));
        Ok(())
    }

    fn axes(&mut self) {
        let p = self.problem;
        let along = p.shape().reduced.first().map_or(1, |dim| dim.stride.unsigned_abs());
        let across = p.shape().kept.last().map_or(u64::MAX, |dim| dim.stride.unsigned_abs());
        // Equal bits both ways: only which threads do the work differs.
        let parameters = format!("{}, {}, {}", self.element(), self.kind(), across < along);
        let args = vec![self.input(), Arg::Output { operand: 0 }, self.rows_shape(p.cols(), 1), self.zero_masked()];
        self.launch("softmax_axes", &parameters, p.rows().div_ceil(32), 1024, args);
    }
}

/// Turns a rung's numbers into launches.
pub(super) fn lower(
    rung: &'static SoftmaxRung,
    schedule: &Schedule,
    problem: &SoftmaxProblem,
    caps: &CudaCaps,
    tuning: Tuning,
) -> Result<Program> {
    let Body::Cuda { file, .. } = rung.body else {
        return Err(Error::NotClaimed { rung: rung.id(), why: format!("it runs on {}", DeviceKind::Cpu.name()) });
    };
    let mut low = Lowering { problem, file, caps, program: Program::default() };
    if problem.output_len() == 0 {
        // Nothing comes out: nothing is launched.
        tuning.block_size(0)?;
        return Ok(low.program);
    }
    match *schedule {
        Schedule::RowPerBlock { kernel } => {
            let block = tuning.block_size(256)?;
            let parameters = format!("{}, {}, {block}", low.element(), low.kind());
            let args = low.plain_rows();
            low.launch(kernel, &parameters, problem.rows(), block, args);
        }
        Schedule::Registers => low.registers(tuning)?,
        Schedule::LongRows { block } => {
            let block = tuning.block_size(block)?;
            low.long_rows(block);
        }
        Schedule::Axes => {
            tuning.block_size(0)?;
            low.axes();
        }
        Schedule::Tiles => {
            tuning.block_size(0)?;
            low.tiles(rung)?;
        }
    }
    if low.program.scratch_bytes > 0 {
        low.program.scratch_bytes += crate::flow::SCRATCH_ALIGNMENT;
    }
    Ok(low.program)
}
