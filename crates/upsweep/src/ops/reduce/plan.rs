//! Planning: a pure function of problem and device that says what runs and why, and the lowering of a rung's numbers
//! into launches, written once for all rungs.

use super::problem::ReduceProblem;
use super::{Reduce, ReducePlan, ReduceRung};
use crate::device::caps::{Caps, CudaCaps, DeviceKind};
use crate::error::{Error, Result};
use crate::flow::{Arg, Body, ControlBlock, Forms, KernelFile, KernelSpec, Launch, Plan, Program, Rung, Step, Tuning};
use crate::types::{Accuracy, DType, Dim, Kind, MAX_DIMS, Operator};

/// The numbers that a CUDA rung supplies.
#[derive(Clone, Copy, Debug)]
pub enum Schedule {
    /// Partial states, and the same kernel on them again, until one value is left.
    Passes {
        /// Kernel template `<Op, Source, BLOCK>`.
        kernel: &'static str,
        /// Items a thread loads.
        per_thread: u32,
    },
    /// Initialise, accumulate with one atomic a block, finish.
    Atomic,
    /// A resident grid writes partial states; one block adds them.
    TwoPass {
        /// 16-byte loads in flight a thread.
        packs: u32,
        /// Blocks of a multiprocessor.
        blocks_per_multiprocessor: u32,
    },
    /// One launch, the last block to arrive finishes.
    LastBlock {
        /// 16-byte loads in flight a thread.
        packs: u32,
        /// Blocks of a multiprocessor.
        blocks_per_multiprocessor: u32,
    },
    /// One launch, states published as tagged words.
    Published {
        /// 16-byte loads in flight a thread.
        packs: u32,
        /// Threads of a block.
        block: u32,
    },
    /// One launch, one block a multiprocessor fed by the copy engine, states published as tagged words.
    Bulk {
        /// Threads that add.
        consumers: u32,
        /// Stages of the ring.
        stages: u32,
        /// Bytes of a stage.
        stage_bytes: u32,
    },
    /// Rows of any layout.
    Axes,
    /// A grid whose warps take contiguous parts, and one block over its states, in order.
    InOrder {
        /// 16-byte loads in flight a thread.
        packs: u32,
        /// Blocks of a multiprocessor.
        blocks_per_multiprocessor: u32,
    },
    /// The file's one tile kernel, whose extent is the tile; then the kernel again, on its partials.
    Tiles {
        /// Blocks of a multiprocessor among which a short input is spread.
        blocks_per_multiprocessor: u32,
        /// Tiles that a block adds at most, one after the other: what keeps a long sum within its bound.
        tiles_of_block: u32,
    },
}

/// Blocks among which a small input is spread before a thread takes more than one pack: fewer leave the memory system
/// idle, more make the last block wait for more words.
const SMALL_GRID: u64 = 64;

/// Longest row that a warp reduces; longer ones get a block.
const WARP_ROW: u64 = 1024;

/// Rows are cut into chunks of this many elements, whatever the number of rows.
const ROW_CHUNK: u64 = 1 << 16;

/// Chooses the rung for a problem on a device. Pure: needs no device.
///
/// # Errors
/// [`Error::NotClaimed`] if no rung of the device takes the problem (a build without the device's backend).
pub fn plan(problem: &ReduceProblem, caps: &Caps) -> Result<ReducePlan> {
    let (name, why) = choose(problem, caps);
    let rung = Rung::<Reduce>::find(caps.kind(), name)?;
    Plan::with_rung(problem, caps, rung, Tuning::default(), why)
}

fn choose(problem: &ReduceProblem, caps: &Caps) -> (&'static str, String) {
    let cuda = match caps {
        Caps::Cpu(cpu) => return ("threads", format!("all {} threads over fixed chunks", cpu.threads)),
        Caps::Cuda(cuda) => cuda,
    };
    let shape = problem.shape();
    if let Some(user) = problem.user().filter(|user| !user.facts().commutative && is_contiguous_whole(problem)) {
        let why = format!("{} was not said to commute: neighbours stay neighbours", user.facts().name);
        return ("in_order", why);
    }
    if !is_contiguous_whole(problem) {
        let form = if shape.whole { "a strided array" } else { "a set of axes" };
        return ("axes", format!("{form}: rows by warps or blocks"));
    }
    (
        "published_words",
        format!("one launch over {} multiprocessors, fixed order of additions, no fence and no counter", cuda.multiprocessors),
    )
}

/// The whole of a contiguous array.
fn is_contiguous_whole(problem: &ReduceProblem) -> bool {
    problem.shape().whole && problem.shape().rows_are_contiguous()
}

/// Whether a rung is for a problem.
pub(super) fn claim(rung: &ReduceRung, problem: &ReduceProblem) -> Result<()> {
    let missing = |why: String| Err(Error::NotClaimed { rung: rung.id(), why });
    let claims = &rung.claims;
    if !claims.operators.is_empty() && !claims.operators.contains(&problem.operator()) {
        return missing(format!("its operators are {}", names(claims.operators.iter().map(|o| o.name()))));
    }
    if !claims.dtypes.is_empty() && !claims.dtypes.contains(&problem.dtype()) {
        return missing(format!("its dtypes are {}", names(claims.dtypes.iter().map(|d| d.name()))));
    }
    if let (Some(user), Body::Cuda { schedule, .. }) = (problem.user(), &rung.body) {
        user.device().map(|_| ()).or_else(missing)?;
        let name = &user.facts().name;
        if !user.facts().commutative && !matches!(schedule, Schedule::InOrder { .. }) {
            return missing(format!("its lanes take turns, and operator `{name}` was not said to commute"));
        }
    }
    if claims.forms == Forms::Whole && !is_contiguous_whole(problem) {
        return missing("it reduces the whole of a contiguous array".into());
    }
    if problem.shape().length > claims.max_length {
        return missing(format!("it takes up to {} elements", claims.max_length));
    }
    if problem.accuracy() == Accuracy::Compensated && !claims.operators.is_empty() {
        return missing("it has no compensated sum".into());
    }
    Ok(())
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// The C++ operator type of a problem.
fn operator_type(problem: &ReduceProblem) -> String {
    if problem.user().is_some() {
        return format!("upsweep::{}", problem.operator().row().c_name);
    }
    let name = match (problem.operator(), problem.accuracy()) {
        (Operator::Sum, Accuracy::Compensated) => "CompensatedSum",
        (Operator::Mean, Accuracy::Compensated) => "CompensatedMean",
        (operator, _) => operator.row().c_name,
    };
    format!("upsweep::{name}<{}>", problem.dtype().row().c_name)
}

/// The C++ operator types of all problems, each with the bytes of its `State` that scratch and control blocks are sized
/// by. The kernels' build asserts them, one by one.
#[doc(hidden)]
pub fn state_sizes() -> Vec<(String, u64)> {
    let mut sizes = Vec::new();
    for operator in Operator::reductions() {
        for dtype in DType::all().filter(|dtype| operator.accepts(*dtype)) {
            let Ok(problem) = ReduceProblem::whole(operator, dtype, 1) else { continue };
            let compensated = problem.clone().with_accuracy(Accuracy::Compensated).ok();
            let both = [Some(problem), compensated];
            sizes.extend(both.iter().flatten().map(|problem| (operator_type(problem), state_bytes(problem))));
        }
    }
    sizes
}

/// Bytes of the C++ `State` of a problem's operator (kernels/operators.cuh).
fn state_bytes(problem: &ReduceProblem) -> u64 {
    if let Some(user) = problem.user() {
        return user.facts().state_bytes;
    }
    let row = problem.dtype().row();
    let wide = row.size.max(4);
    let accumulator = row.accumulator.size();
    let real = if row.kind == Kind::Float { accumulator } else { DType::F64.size() };
    match (problem.operator(), problem.accuracy()) {
        (Operator::Sum | Operator::Mean, Accuracy::Compensated) => 16,
        (Operator::Sum | Operator::Prod | Operator::WrappingSum | Operator::WrappingProd, _) => accumulator,
        (Operator::Mean, _) => real,
        (Operator::LogSumExp | Operator::LinearRecurrence | Operator::User, _) => 2 * real,
        (Operator::Min | Operator::Max, _) => wide,
        (Operator::NanMin | Operator::NanMax | Operator::ArgMin | Operator::ArgMax, _) => wide + 8,
    }
}

/// What every lowering needs.
struct Lowering<'a> {
    problem: &'a ReduceProblem,
    file: KernelFile,
    caps: &'a CudaCaps,
    op: String,
    program: Program,
}

impl Lowering<'_> {
    fn launch(&mut self, template: &str, parameters: &str, grid: u64, block: u32, args: Vec<Arg>) -> Result<&mut Launch> {
        let grid = u32::try_from(grid).ok().filter(|g| *g <= i32::MAX as u32).ok_or_else(|| Error::InvalidArgument {
            argument: "block",
            got: format!("{block} threads, which needs a grid of {grid} blocks"),
            allowed: format!("a grid has at most {} blocks; take a larger block", i32::MAX),
        })?;
        let expression = format!("upsweep::{template}<{}{parameters}>", self.op);
        let kernel = KernelSpec { file: self.file, expression };
        self.program.steps.push(Step::Launch(Launch { kernel, grid: grid.max(1), block, shared_bytes: 0, args }));
        let Some(Step::Launch(launch)) = self.program.steps.last_mut() else { unreachable!("a launch was just pushed") };
        Ok(launch)
    }

    fn input(&self) -> Arg {
        Arg::Input { operand: 0, bytes: self.problem.shape().offset * self.problem.dtype().size() }
    }

    fn length(&self) -> u64 {
        self.problem.shape().length
    }

    /// Blocks of a resident grid over tiles of `block * packs` 16-byte packs.
    fn resident_grid(&self, block: u32, packs: u32, blocks_per_multiprocessor: u32) -> u64 {
        let per_pack = 16 / self.problem.dtype().size();
        let tile = block as u64 * packs as u64 * per_pack;
        // The numbers of the ladder are for 256 threads; other block sizes keep the same number of threads resident.
        let threads = (blocks_per_multiprocessor * 256).min(self.caps.threads_per_multiprocessor);
        let resident = self.caps.multiprocessors as u64 * (threads / block).max(1) as u64;
        self.length().div_ceil(tile).clamp(1, resident)
    }

    /// Blocks of a multiprocessor that the published kernel is compiled for: half the threads that the device holds, so
    /// that a thread has registers for its loads in flight; a quarter where f64 exponentials or wide states need more.
    fn resident_blocks(&self, block: u32) -> u32 {
        let wide = matches!(self.problem.operator(), Operator::LogSumExp | Operator::User) && state_bytes(self.problem) >= 16;
        (self.caps.threads_per_multiprocessor / if wide { 4 } else { 2 } / block).max(1)
    }

    /// How `blocks` blocks share the elements in tiles of `tile_packs` packs (`Deal` in collectives.cuh).
    fn deal(&self, blocks: u64, tile_packs: u64) -> Arg {
        let per_pack = 16 / self.problem.dtype().size();
        let round = blocks * tile_packs * per_pack;
        let rounds = self.length() / round;
        let rest_first = rounds * round;
        let rest_share = (self.length() - rest_first).div_ceil(blocks).next_multiple_of(per_pack);
        Arg::Words(vec![rounds, rest_first, rest_share])
    }

    fn publish(&mut self, blocks: u64) {
        self.program.control = ControlBlock { words: blocks * state_bytes(self.problem) / 4 };
    }

    /// The passes of rungs 0 to 5a.
    fn passes(&mut self, kernel: &str, per_thread: u32, block: u32) -> Result<()> {
        let per_block = block as u64 * per_thread as u64;
        let state = state_bytes(self.problem);
        let count = self.length();
        let output = Arg::Output { operand: 0 };
        let first = count.div_ceil(per_block).max(1);
        // Two scratch regions in turn: a pass reads one and writes the other.
        let regions = [0, (first * state).next_multiple_of(16)];
        self.program.scratch_bytes =
            if first > 1 { regions[1] + (first.div_ceil(per_block) * state).next_multiple_of(16) } else { 0 };
        let (mut n, mut pass, mut source) = (count, 0usize, self.input());
        loop {
            let blocks = n.div_ceil(per_block).max(1);
            let from = if pass == 0 { "Elements" } else { "Partials" };
            let target = Arg::Scratch(if blocks > 1 { regions[pass % 2] } else { 0 });
            let args = vec![source, Arg::U64(n), target.clone(), output.clone(), Arg::U64(count)];
            self.launch(kernel, &format!(", upsweep::{from}, {block}"), blocks, block, args)?;
            if blocks == 1 {
                return Ok(());
            }
            (n, pass, source) = (blocks, pass + 1, target);
        }
    }

    /// The passes of rung 13.
    fn in_order(&mut self, packs: u32, blocks_per_multiprocessor: u32) -> Result<()> {
        const BLOCK: u32 = 256;
        let n = self.length();
        let grid = self.resident_grid(BLOCK, packs, blocks_per_multiprocessor);
        let step = 32 * u64::from(packs) * (16 / self.problem.dtype().size());
        let share = n.div_ceil(grid * u64::from(BLOCK / 32)).next_multiple_of(step);
        // Whole steps may leave the last blocks without a part.
        let grid = n.div_ceil(share.max(1) * u64::from(BLOCK / 32)).max(1);
        let (partials, output) = (Arg::Scratch(0), Arg::Output { operand: 0 });
        let args = vec![self.input(), Arg::U64(n), Arg::U64(share), partials.clone(), output.clone()];
        self.launch("reduce_in_order", &format!(", {BLOCK}, {packs}"), grid, BLOCK, args)?;
        if grid > 1 {
            self.program.scratch_bytes = grid * state_bytes(self.problem);
            let args = vec![partials, Arg::U64(grid), output, Arg::U64(n)];
            self.launch("reduce_in_order_partials", &format!(", {BLOCK}"), 1, BLOCK, args)?;
        }
        Ok(())
    }

    fn axes(&mut self) -> Result<()> {
        let shape = self.problem.shape();
        let (outputs, length) = (shape.outputs, shape.length);
        if outputs == 0 {
            return Ok(());
        }
        let chunk = if length <= ROW_CHUNK { length.max(1) } else { ROW_CHUNK };
        let chunks = length.div_ceil(chunk).max(1);
        let words = |outputs, length, chunk, chunks, offset, kept: &[Dim], reduced: &[Dim]| {
            let mut words = vec![outputs, length, chunk, chunks, self.length(), offset, kept.len() as u64, reduced.len() as u64];
            for dims in [kept, reduced] {
                let padded =
                    |value: &dyn Fn(&Dim) -> u64| (0..MAX_DIMS).map(|d| dims.get(d).map_or(1, value)).collect::<Vec<_>>();
                words.extend(padded(&|d| d.extent));
                words.extend(padded(&|d| d.stride as u64));
            }
            Arg::Words(words)
        };
        let first = words(outputs, length, chunk, chunks, shape.offset, &shape.kept, &shape.reduced);
        let lanes = |length: u64| if length <= WARP_ROW { 32 } else { 256 };
        let grid = |items: u64, lanes: u64| items.div_ceil(256 / lanes).min(self.caps.multiprocessors as u64 * 32).max(1);
        let second = words(
            outputs,
            chunks,
            chunks,
            1,
            0,
            &[Dim { extent: outputs, stride: chunks as i64 }],
            &[Dim { extent: chunks, stride: 1 }],
        );
        let (first_lanes, second_lanes) = (lanes(chunk), lanes(chunks));
        let (first_grid, second_grid) = (grid(outputs * chunks, first_lanes), grid(outputs, second_lanes));
        let (partials, output) = (Arg::Scratch(0), Arg::Output { operand: 0 });
        let input = Arg::Input { operand: 0, bytes: 0 };
        let args = vec![input, partials.clone(), output.clone(), first];
        self.launch("reduce_axes", &format!(", upsweep::Elements, {first_lanes}"), first_grid, 256, args)?;
        if chunks > 1 {
            self.program.scratch_bytes = outputs * chunks * state_bytes(self.problem);
            let args = vec![partials, Arg::U64(0), output, second];
            self.launch("reduce_axes", &format!(", upsweep::Partials, {second_lanes}"), second_grid, 256, args)?;
        }
        Ok(())
    }
}

/// Elements of one launch of a tile kernel: its indices have 32 bits.
const TILED_PART: u64 = 1 << 30;

impl Lowering<'_> {
    fn tiles(&mut self, rung: &ReduceRung, blocks_per_multiprocessor: u32, tiles_of_block: u32) -> Result<()> {
        let kernel = &self.file.tiles[0];
        let cubin = self.file.cubin(kernel, self.caps, &rung.id())?;
        let resident = u64::from(self.caps.multiprocessors * blocks_per_multiprocessor);
        let grid = |length: u64| {
            let tiles = length.div_ceil(u64::from(kernel.extents[0]));
            tiles.clamp(1, resident).max(tiles.div_ceil(u64::from(tiles_of_block)))
        };
        let mut launch = |input: Arg, target: Arg, length: u64, grid: u64| {
            let kernel = KernelSpec { file: self.file, expression: kernel.expression() };
            let args = vec![input, target, Arg::U64(length)];
            let step = Launch { kernel, grid: grid as u32, block: cubin.threads, shared_bytes: 0, args };
            self.program.steps.push(Step::Launch(step));
        };
        let (size, length) = (self.problem.dtype().size(), self.problem.shape().length);
        let first = self.problem.shape().offset * size;
        let input = |element: u64| Arg::Input { operand: 0, bytes: first + element * size };
        if grid(length) == 1 {
            launch(input(0), Arg::Output { operand: 0 }, length, 1);
            return Ok(());
        }
        let mut partials = 0;
        for start in (0..length).step_by(TILED_PART as usize) {
            let part = (length - start).min(TILED_PART);
            launch(input(start), Arg::Scratch(partials * size), part, grid(part));
            partials += grid(part);
        }
        launch(Arg::Scratch(0), Arg::Output { operand: 0 }, partials, 1);
        self.program.scratch_bytes = partials * size;
        Ok(())
    }
}

/// Turns a rung's numbers into launches.
pub(super) fn lower(
    rung: &'static ReduceRung,
    schedule: &Schedule,
    problem: &ReduceProblem,
    caps: &CudaCaps,
    tuning: Tuning,
) -> Result<Program> {
    let Body::Cuda { file, .. } = rung.body else {
        return Err(Error::NotClaimed { rung: rung.id(), why: format!("it runs on {}", DeviceKind::Cpu.name()) });
    };
    let mut low = Lowering { problem, file, caps, op: operator_type(problem), program: Program::default() };
    low.program.operator = problem.user().and_then(|user| user.device().ok().cloned());
    let (n, output, state) = (low.length(), Arg::Output { operand: 0 }, state_bytes(problem));
    match *schedule {
        Schedule::Passes { kernel, per_thread } => low.passes(kernel, per_thread, tuning.block_size(256)?)?,
        Schedule::Atomic => {
            let block = tuning.block_size(256)?;
            low.program.scratch_bytes = 16;
            let accumulator = Arg::Scratch(0);
            low.launch("reduce_atomic_initialise", "", 1, 1, vec![accumulator.clone()])?;
            let args = vec![low.input(), Arg::U64(n), accumulator.clone()];
            low.launch("reduce_atomic", &format!(", {block}"), n.div_ceil(2 * block as u64), block, args)?;
            low.launch("reduce_atomic_finish", "", 1, 1, vec![accumulator, output, Arg::U64(n)])?;
        }
        Schedule::TwoPass { packs, blocks_per_multiprocessor } => {
            let block = tuning.block_size(256)?;
            let grid = low.resident_grid(block, packs, blocks_per_multiprocessor);
            let partials = Arg::Scratch(0);
            low.program.scratch_bytes = if grid > 1 { grid * state } else { 0 };
            let share = low.deal(grid, block as u64 * packs as u64);
            let args = vec![low.input(), Arg::U64(n), share, partials.clone(), output.clone(), Arg::U64(n)];
            low.launch("reduce_packs", &format!(", {block}, {packs}"), grid, block, args)?;
            if grid > 1 {
                let args = vec![partials, Arg::U64(grid), Arg::U64(0), output, Arg::U64(n)];
                low.launch("reduce_partials", ", 1024", 1, 1024, args)?;
            }
        }
        Schedule::LastBlock { packs, blocks_per_multiprocessor } => {
            let block = tuning.block_size(256)?;
            let grid = low.resident_grid(block, packs, blocks_per_multiprocessor);
            low.program.scratch_bytes = grid * state;
            let share = low.deal(grid, block as u64 * packs as u64);
            let args = vec![low.input(), Arg::U64(n), share, Arg::Scratch(0), output, Arg::U64(n), Arg::Control];
            low.launch("reduce_last_block", &format!(", {block}, {packs}"), grid, block, args)?;
        }
        Schedule::Published { packs, block } => {
            let block = tuning.block_size(block)?;
            let resident = low.resident_blocks(block);
            let whole_packs = n.div_ceil(16 / problem.dtype().size());
            let spread = whole_packs.div_ceil(block as u64).min(SMALL_GRID);
            let grid = whole_packs.div_ceil(block as u64 * packs as u64).max(spread);
            let grid = grid.clamp(1, caps.multiprocessors as u64 * resident as u64);
            low.publish(grid);
            let share = low.deal(grid, block as u64 * packs as u64);
            let args = vec![low.input(), Arg::U64(n), share, output, Arg::U64(n), Arg::Control];
            low.launch("reduce_published_words", &format!(", {block}, {packs}, {resident}"), grid, block, args)?;
        }
        Schedule::Bulk { consumers, stages, stage_bytes } => {
            let consumers = tuning.block_size(consumers)?.min(512);
            let packs = n.div_ceil(16 / problem.dtype().size());
            let grid = packs.div_ceil(consumers as u64).clamp(1, caps.multiprocessors as u64);
            low.publish(grid);
            let share = low.deal(grid, stage_bytes as u64 / 16);
            let args = vec![low.input(), Arg::U64(n), share, output, Arg::U64(n), Arg::Control];
            let parameters = format!(", {consumers}, {stages}, {stage_bytes}");
            let launch = low.launch("reduce_bulk_copy", &parameters, grid, consumers + 32, args)?;
            launch.shared_bytes = stages * (stage_bytes + 16);
        }
        Schedule::Axes => low.axes()?,
        Schedule::InOrder { packs, blocks_per_multiprocessor } => {
            tuning.block_size(0)?;
            low.in_order(packs, blocks_per_multiprocessor)?;
        }
        Schedule::Tiles { blocks_per_multiprocessor, tiles_of_block } => {
            tuning.block_size(0)?;
            low.tiles(rung, blocks_per_multiprocessor, tiles_of_block)?;
        }
    }
    if low.program.scratch_bytes > 0 {
        low.program.scratch_bytes += crate::flow::SCRATCH_ALIGNMENT;
    }
    Ok(low.program)
}
