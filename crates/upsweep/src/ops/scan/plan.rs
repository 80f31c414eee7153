//! Planning: a pure function of problem and device that says what runs and why, and the lowering of a rung's numbers
//! into launches, written once for all rungs.

use super::problem::{OPERATORS, ScanProblem};
use super::{Scan, ScanKind, ScanPlan, ScanRung, ScanSpec, Segments};
use crate::device::caps::{Caps, CudaCaps, DeviceKind};
use crate::error::{Error, Result};
use crate::flow::{Arg, Body, ControlBlock, Forms, KernelFile, KernelSpec, Launch, Plan, Program, Rung, Step, Tuning};
use crate::types::{DType, Dim, MAX_DIMS, Operator};

/// The numbers that a CUDA rung supplies.
#[derive(Clone, Copy, Debug)]
pub enum Schedule {
    /// Blocks are scanned apart, their totals by the same kernel, and so on until one block is left; then every level's
    /// carries are added to the level below.
    Passes {
        /// Kernel template `<Op, Source, BLOCK>`.
        kernel: &'static str,
        /// Items of a thread.
        per_thread: u32,
    },
    /// Totals of tiles, one block over the totals, and the tiles again with their carries.
    ThreePhase {
        /// Threads of a block.
        block: u32,
        /// States that a thread holds.
        held: Held,
    },
    /// One launch, a block a tile, tiles that look back.
    LookBack {
        /// Threads of a block.
        block: u32,
        /// States that a thread holds.
        held: Held,
        /// Threads of a multiprocessor that the registers are shared out for.
        resident_threads: u32,
    },
    /// Rows of any layout.
    Axes,
    /// Rows held in registers.
    Registers,
    /// Columns that are neighbours.
    Columns,
    /// The same in one pass, whose steps look ahead.
    ColumnAhead {
        /// Bytes of shared memory that steps may take.
        ring_bytes: u32,
    },
    /// One launch, a block a multiprocessor, tiles in shared memory whose totals are published ahead.
    LookAhead {
        /// Warps of a block that scan; four more serve them.
        warps: u32,
        /// Bytes of a tile's elements.
        tile_bytes: u32,
        /// 16-byte stores of a thread and tile, at most: a tile whose results are wider than its elements is smaller.
        rows: u32,
        /// Bytes of shared memory that tiles may take.
        ring_bytes: u32,
        /// Tiles whose totals one warp holds at a time.
        group: u32,
    },
}

/// States of a tile that a thread holds in registers: what bounds the bytes under way to and from memory.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// States of 4 bytes.
    pub narrow: u32,
    /// States of 8 bytes.
    pub wide: u32,
}

/// Longest row that a warp scans; longer ones get a block.
const WARP_ROW: u64 = 1024;

/// Chooses the rung for a problem on a device. Pure: needs no device.
///
/// # Errors
/// [`Error::NotClaimed`] if no rung of the device takes the problem (a build without the device's backend);
/// [`Error::Unavailable`] on CUDA devices for an operator of the caller's own without a C++ form.
pub fn plan(problem: &ScanProblem, caps: &Caps) -> Result<ScanPlan> {
    let with =
        |name: &str, why: String| Plan::with_rung(problem, caps, Rung::<Scan>::find(caps.kind(), name)?, Tuning::default(), why);
    if let (Caps::Cuda(_), Err(why)) = (caps, on_cuda(problem)) {
        return Err(Error::Unavailable { what: "this scan on CUDA devices", why, next_step: "run it on the CPU device".into() });
    }
    let multiprocessors = match caps {
        Caps::Cpu(cpu) => return with("three_phase", format!("all {} threads over fixed chunks", cpu.threads)),
        Caps::Cuda(cuda) => format!("{} multiprocessors", cuda.multiprocessors),
    };
    let length = problem.length();
    if has_other_states(problem) {
        let ways = [
            ("look_ahead", format!("one pass over {multiprocessors}, tiles staged by the copy engine")),
            ("three_phase", format!("totals, then carries, over {multiprocessors}")),
            ("axes", "each row by itself, at any strides and with results of any size".into()),
        ];
        // The single pass takes whole tiles, of which short rows would leave most empty.
        let short_rows = !problem.is_contiguous_row() && length <= WARP_ROW;
        let mut planned = ways.into_iter().skip(if short_rows { 2 } else { 0 }).map(|(name, why)| with(name, why));
        let first = planned.find(|plan| !matches!(plan, Err(Error::NotClaimed { .. })));
        return first.unwrap_or_else(|| with("axes", String::new()));
    }
    let down = format!("neighbouring columns side by side, {length} elements down");
    let in_one_pass = ("column_ahead", format!("{down} in one pass over {multiprocessors}"));
    let in_steps = ("columns", format!("{down} in steps of fixed length"));
    let walks =
        matches!(caps, Caps::Cuda(cuda) if problem.rows_are_columns() && ColumnShape::of(problem).walks_best(problem, cuda));
    let columns = if walks { [in_steps, in_one_pass] } else { [in_one_pass, in_steps] };
    let [first, second] = columns;
    for (name, why) in [
        ("rows", format!("one read and one write: threads hold a row of {length} elements in registers")),
        ("look_ahead", format!("one pass over {multiprocessors}, tiles staged by the copy engine, fixed order of combinations")),
        first,
        second,
    ] {
        match with(name, why) {
            Err(Error::NotClaimed { .. }) => {}
            planned => return planned,
        }
    }
    if !problem.is_contiguous_row() {
        let form = if problem.shape().whole { "a strided array" } else { "rows along an axis" };
        return with("axes", format!("{form}: a warp or a block for each row"));
    }
    let what = format!("{} of {}", problem.operator(), problem.dtype());
    if Beside::of(problem) != Beside::Nothing {
        return with("three_phase", format!("{what} with a second input: totals, then carries, over {multiprocessors}"));
    }
    if rounds(problem) {
        let why = "rounds, so the order of combinations must be fixed: totals, then carries";
        return with("three_phase", format!("{what} {why}, over {multiprocessors}"));
    }
    let why = "is exact, so the order in which tiles meet does not show";
    with("look_back", format!("one pass over {multiprocessors}; {what} {why}"))
}

/// Whether the order of combinations shows in the last bits.
fn rounds(problem: &ScanProblem) -> bool {
    problem.operator().row().rounds && problem.dtype().is_float()
}

/// Whether there are kernels for a problem; if not, why not: an operator of the caller's own may have no C++ form.
fn on_cuda(problem: &ScanProblem) -> std::result::Result<(), String> {
    problem.user().map_or(Ok(()), |user| user.device().map(|_| ()))
}

/// What kernels read beside a problem's elements (`Beside` in kernels/scan.cuh).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// Nothing.
    Nothing,
    /// The coefficient of each element.
    Coefficients,
    /// A bit an element, made of keys or offsets by a launch before: set where a segment begins.
    Heads,
}

impl Beside {
    fn of(problem: &ScanProblem) -> Beside {
        match problem.segments() {
            Segments::Keys(_) | Segments::Offsets { .. } => Beside::Heads,
            Segments::Rows if problem.operator() == Operator::LinearRecurrence => Beside::Coefficients,
            Segments::Rows => Beside::Nothing,
        }
    }

    /// Whether a CUDA rung's kernels read it.
    fn is_read_by(self, schedule: &Schedule) -> bool {
        match schedule {
            Schedule::ThreePhase { .. } | Schedule::LookAhead { .. } => true,
            Schedule::Axes | Schedule::Registers | Schedule::Columns => self != Beside::Heads,
            Schedule::Passes { .. } | Schedule::LookBack { .. } | Schedule::ColumnAhead { .. } => self == Beside::Nothing,
        }
    }
}

/// Whether a rung is for a problem.
pub(super) fn claim(rung: &ScanRung, problem: &ScanProblem) -> Result<()> {
    let missing = |why: String| Err(Error::NotClaimed { rung: rung.id(), why });
    let claims = &rung.claims;
    if let (Body::Cuda { .. }, Err(why)) = (&rung.body, on_cuda(problem)) {
        return missing(why);
    }
    if !claims.operators.is_empty() && !claims.operators.contains(&problem.operator()) {
        return missing(format!("its operators are {}", names(claims.operators.iter().map(|o| o.name()))));
    }
    if !claims.dtypes.is_empty() && !claims.dtypes.contains(&problem.dtype()) {
        return missing(format!("its dtypes are {}", names(claims.dtypes.iter().map(|d| d.name()))));
    }
    if let (true, Body::Cuda { schedule, .. }) = (has_other_states(problem), &rung.body) {
        claim_any_state(schedule, problem).or_else(missing)?;
    }
    if claims.forms == Forms::Whole && !problem.is_contiguous_row() {
        return missing("it scans the whole of a contiguous array".into());
    }
    if claims.forms == Forms::Rows && !problem.rows_are_plain() {
        return missing("it scans rows whose elements are neighbours in the input and in the output".into());
    }
    if claims.forms == Forms::Columns && !problem.rows_are_columns() {
        return missing("it scans along an axis before the last, where what lies behind it is contiguous".into());
    }
    let beside = Beside::of(problem);
    if let Body::Cuda { schedule, .. } = &rung.body
        && !beside.is_read_by(schedule)
    {
        let second = if beside == Beside::Heads { "segments" } else { "coefficients" };
        return missing(format!("its kernels take no {second}"));
    }
    if matches!(rung.body, Body::Cuda { schedule: Schedule::Registers, .. }) {
        let held = longest_in_block(problem);
        if problem.length() > held {
            return missing(format!("a block holds rows of up to {held} elements of {}", problem.dtype()));
        }
    }
    if problem.length() > claims.max_length {
        return missing(format!("it takes up to {} elements", claims.max_length));
    }
    let teaching = matches!(rung.body, Body::Cuda { schedule: Schedule::Passes { .. }, .. });
    if teaching && (problem.kind() != ScanKind::Inclusive || problem.initial().is_some() || problem.reverse()) {
        return missing("it scans inclusively from the first element to the last".into());
    }
    Ok(())
}

/// Whether states are more than a number: those of operators of the caller's own, which may have any size, and the pairs of a
/// logsumexp.
fn has_other_states(problem: &ScanProblem) -> bool {
    matches!(problem.operator(), Operator::User | Operator::LogSumExp)
}

/// Whether a kernel takes states of any size.
fn claim_any_state(schedule: &Schedule, problem: &ScanProblem) -> std::result::Result<(), String> {
    match schedule {
        Schedule::Axes => Ok(()),
        Schedule::ThreePhase { .. } | Schedule::LookAhead { .. } if problem.output_dtype().size() >= problem.dtype().size() => {
            Ok(())
        }
        Schedule::ThreePhase { .. } | Schedule::LookAhead { .. } => Err(format!(
            "its results have at least the bytes of its elements, not {} of {}",
            problem.output_dtype(),
            problem.dtype()
        )),
        _ => Err("its states are numbers".into()),
    }
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// The C++ operator type of a problem.
fn operator_type(problem: &ScanProblem) -> String {
    if problem.user().is_some() {
        return format!("upsweep::{}", problem.operator().row().c_name);
    }
    let operator = format!("upsweep::{}<{}>", problem.operator().row().c_name, problem.dtype().row().c_name);
    if Beside::of(problem) == Beside::Heads { format!("upsweep::Segmented<{operator}>") } else { operator }
}

/// The C++ types, each with the bytes of its `State`, that scratch and control blocks are sized by: every operator, and
/// its carry. The kernels' build asserts them, one by one.
#[doc(hidden)]
pub fn state_sizes() -> Vec<(String, u64)> {
    let mut sizes = Vec::new();
    for operator in OPERATORS.into_iter().chain([Operator::LinearRecurrence]) {
        for dtype in DType::all().filter(|dtype| operator.accepts(*dtype)) {
            let plain = ScanSpec::inclusive(operator);
            for spec in [plain, plain.by_offsets(1)] {
                let Ok(problem) = ScanProblem::whole(spec, dtype, 1) else { continue };
                let name = operator_type(&problem);
                sizes.push((format!("upsweep::Carry<{name}>"), carry_bytes(&problem)));
                sizes.push((name, state_bytes(&problem)));
            }
        }
    }
    sizes
}

/// Bytes of the number, or of a logsumexp's pair, that an operator's C++ `State` holds (kernels/operators.cuh).
fn number_bytes(problem: &ScanProblem) -> u64 {
    let row = problem.dtype().row();
    match problem.operator() {
        Operator::Min | Operator::Max => row.size.max(4),
        Operator::LogSumExp => 2 * row.accumulator.size(),
        _ => row.accumulator.size(),
    }
}

/// Bytes of the C++ `State` of a problem's operator: the number, and its product of coefficients or its head.
fn state_bytes(problem: &ScanProblem) -> u64 {
    if let Some(user) = problem.user() {
        return user.facts().state_bytes;
    }
    let number = number_bytes(problem);
    match Beside::of(problem) {
        Beside::Nothing => number,
        Beside::Coefficients => 2 * number,
        // The head is a word, and where the number is wider there is no padding.
        Beside::Heads => number + number.min(8),
    }
}

/// Bytes of the C++ `Carry` of a problem's operator (kernels/scan.cuh).
fn carry_bytes(problem: &ScanProblem) -> u64 {
    let carried = match problem.operator() {
        Operator::Sum if problem.dtype().is_float() => 2 * number_bytes(problem),
        Operator::LogSumExp => 24, // a maximum and a double-double, whatever the dtype
        Operator::User => state_bytes(problem),
        _ => number_bytes(problem),
    };
    match Beside::of(problem) {
        Beside::Nothing => carried,
        Beside::Coefficients => 2 * carried,
        // The head is 8 bytes wide.
        Beside::Heads => carried.next_multiple_of(8) + 8,
    }
}

/// The initial value, or the identity, as the bits of the number in the C++ `State`; of a logsumexp's, those of the maximum.
fn initial_bits(problem: &ScanProblem) -> u64 {
    use crate::types::Kind;
    if problem.user().is_some() {
        return 0; // not read: the operator's own identity stands there
    }
    let operator = problem.operator();
    let state = match operator {
        Operator::Min | Operator::Max => problem.dtype(),
        _ => problem.dtype().row().accumulator,
    };
    let float = |x: f64| if state == DType::F64 { x.to_bits() } else { u64::from((x as f32).to_bits()) };
    let least = operator == Operator::Max;
    match (problem.initial(), state.row().kind) {
        (Some(initial), Kind::Float) => float(initial.to_f64()),
        (Some(initial), _) => initial.to_i128() as u64,
        (_, Kind::Float) => float(match operator {
            Operator::Min => f64::INFINITY,
            Operator::Max | Operator::LogSumExp => f64::NEG_INFINITY,
            Operator::Prod => 1.0,
            _ => 0.0,
        }),
        (_, kind) => {
            let bits = 8 * state.size();
            match operator {
                Operator::Prod | Operator::WrappingProd => 1,
                Operator::Sum | Operator::WrappingSum => 0,
                _ if kind == Kind::Bool => u64::from(!least),
                _ if kind == Kind::Signed => (if least { -(1i128 << (bits - 1)) } else { (1i128 << (bits - 1)) - 1 }) as u64,
                _ if least => 0,
                _ => u64::MAX >> (64 - bits),
            }
        }
    }
}

/// How a row lies in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RegisterShape {
    /// Elements of one load and of one store.
    width: u32,
    /// Threads that hold a row.
    lanes: u32,
    /// Loads of a thread.
    packs: u32,
    /// Threads of a block.
    block: u32,
}

/// Elements of one store: 16 bytes, or as many as rows of this length keep aligned.
fn store_width(problem: &ScanProblem) -> u32 {
    let most = 16 / problem.output_dtype().size() as u32;
    1 << problem.length().trailing_zeros().min(most.trailing_zeros())
}

/// Up to so many threads hold a row with so many states each: the first entry that reaches. Elements of a byte or two come
/// in loads of eight and more. Measured on an H200: sixteen states of 4 bytes a thread are best from 4096 elements on, and no
/// worse below; a block of 1024 threads waits for itself.
fn held_by(problem: &ScanProblem) -> &'static [(u32, u32)] {
    match (state_bytes(problem), problem.dtype().size()) {
        (4, 1 | 2) => &[(32, 16), (512, 16)],
        (4, _) => &[(32, 4), (512, 16)],
        _ => &[(32, 4), (512, 8)],
    }
}

/// The longest row that a block holds.
fn longest_in_block(problem: &ScanProblem) -> u64 {
    held_by(problem).iter().map(|(threads, states)| u64::from(threads * states)).max().unwrap_or(0)
}

/// Threads of a block whose rows take a warp or less.
const SHORT_ROWS_BLOCK: u32 = 128;

/// The numbers of `rows` for a row that fits.
fn register_shape(problem: &ScanProblem) -> RegisterShape {
    let (width, length) = (store_width(problem), problem.length());
    let packs_of_row = length.div_ceil(u64::from(width));
    let threads = |states: u32| length.div_ceil(u64::from(states)).next_power_of_two();
    let reaches = |(longest, states): &&(u32, u32)| threads(*states) <= u64::from(*longest);
    let usual = held_by(problem).iter().find(reaches).map_or(512, |(_, states)| threads(*states));
    // Neighbouring threads load neighbours: narrow loads are spread over a warp first, two a thread.
    let lanes = usual.max(packs_of_row.div_ceil(2).next_power_of_two().min(32)) as u32;
    let packs = packs_of_row.div_ceil(u64::from(lanes)) as u32;
    RegisterShape { width, lanes, packs, block: if lanes <= 32 { SHORT_ROWS_BLOCK } else { lanes } }
}

/// Columns up to this length are walked down by blocks if there are enough of them, in wide strips, which memory likes best.
/// Of longer ones there may be few, and each takes words: strips of 128 bytes of input are enough.
const SHORT_COLUMNS: u64 = 32_768;

/// How columns are cut. Threads side by side and rows follow from dtype and length alone: they are the order of combinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ColumnShape {
    /// Neighbouring columns of a thread.
    width: u32,
    /// Threads side by side.
    across: u32,
    /// Rows of a thread in a step.
    rows: u32,
    /// Threads of a block that scan.
    block: u32,
}

impl ColumnShape {
    /// Columns of a thread that loads whole packs.
    fn most(problem: &ScanProblem) -> u32 {
        (16 / problem.output_dtype().size() as u32).min(8)
    }

    fn of(problem: &ScanProblem) -> ColumnShape {
        let most = Self::most(problem);
        let width = 1 << problem.inner().trailing_zeros().min(most.trailing_zeros());
        let wider = (problem.output_dtype().size() / problem.dtype().size()) as u32;
        let across = (8 * wider).clamp(if problem.length() <= SHORT_COLUMNS { 16 } else { 8 }, 32);
        // What a thread holds are sixteen words.
        let rows = (16 / (most * state_bytes(problem) as u32 / 4)).max(1);
        // Small blocks overlap best, but where a block walks far.
        let whole = problem.length().div_ceil(u64::from(rows)) * u64::from(across);
        let block = if problem.length() <= 256 { whole.next_power_of_two().clamp(128, 256) as u32 } else { 512 };
        ColumnShape { width, across, rows, block }
    }

    /// Strips of columns, over all matrices.
    fn strips(self, problem: &ScanProblem) -> u64 {
        problem.inner().div_ceil(u64::from(self.across * self.width)) * (problem.rows() / problem.inner())
    }

    /// Whether blocks that walk down a strip, and so read once, are enough for a device.
    fn walks(self, problem: &ScanProblem, caps: &CudaCaps) -> bool {
        problem.length() <= 4 * self.step() || self.strips(problem) * 4 >= u64::from(caps.multiprocessors) * 3
    }

    /// Whether a device is measured to be fastest by walking.
    fn walks_best(self, problem: &ScanProblem, caps: &CudaCaps) -> bool {
        problem.length() <= SHORT_COLUMNS && self.walks(problem, caps)
    }

    /// Rows of a step.
    fn step(self) -> u64 {
        u64::from(self.block / self.across * self.rows)
    }
}

/// What every lowering needs.
struct Lowering<'a> {
    rung: &'static ScanRung,
    problem: &'a ScanProblem,
    file: KernelFile,
    caps: &'a CudaCaps,
    op: String,
    program: Program,
}

impl Lowering<'_> {
    /// Launches a kernel template of the problem's operator and further parameters.
    fn launch(&mut self, template: &str, parameters: &str, grid: u64, block: u32, args: Vec<Arg>) -> Result<()> {
        self.launch_of(format!("{template}<{}{parameters}>", self.op), grid, block, args)
    }

    fn launch_of(&mut self, template: String, grid: u64, block: u32, args: Vec<Arg>) -> Result<()> {
        let grid = u32::try_from(grid).ok().filter(|g| *g <= i32::MAX as u32).ok_or_else(|| Error::InvalidArgument {
            argument: "block",
            got: format!("{block} threads, which needs a grid of {grid} blocks"),
            allowed: format!("a grid has at most {} blocks; take a larger block", i32::MAX),
        })?;
        let expression = format!("upsweep::{template}");
        let kernel = KernelSpec { file: self.file, expression };
        self.program.steps.push(Step::Launch(Launch { kernel, grid, block, shared_bytes: 0, args }));
        Ok(())
    }

    fn input(&self) -> Arg {
        Arg::Input { operand: 0, bytes: self.problem.shape().offset * self.problem.dtype().size() }
    }

    /// What kernels read beside the elements. Of segments, a launch makes bits for so many whole tiles of so many elements, in
    /// scratch that the rung has no other use for.
    fn beside(&mut self, tiles: u64, elements: u64) -> Result<Arg> {
        let size = self.problem.dtype().size();
        let second = |bytes| Arg::Input { operand: 1, bytes };
        if Beside::of(self.problem) != Beside::Heads {
            let nothing = Beside::of(self.problem) == Beside::Nothing;
            return Ok(if nothing { Arg::U64(0) } else { second(self.problem.shape().offset * size) });
        }
        /// Elements of a block of each kernel, and its threads.
        const OF_KEYS: (u64, u32) = (8192, 256);
        const OF_OFFSETS: (u64, u32) = (65_536, 512);
        let (n, reverse) = (Arg::U64(self.problem.length()), self.problem.reverse());
        let heads = Arg::Scratch(self.program.scratch_bytes);
        let covered = |span: u64| (tiles * elements).div_ceil(span);
        let blocks = match self.problem.segments() {
            Segments::Keys(keys) => {
                let (span, threads) = OF_KEYS;
                // Elements of a whole array begin at its offset, and so do their keys.
                let keys_at = second(self.problem.shape().offset * keys.size());
                let expression = format!("scan_heads_of_keys<{}, {reverse}>", keys.size());
                self.launch_of(expression, covered(span), threads, vec![keys_at, n, heads.clone()])?;
                covered(span) * span
            }
            Segments::Offsets { count } => {
                let (span, threads) = OF_OFFSETS;
                let expression = format!("scan_heads_of_offsets<{span}, {reverse}>");
                self.launch_of(expression, covered(span), threads, vec![second(0), Arg::U64(count), n, heads.clone()])?;
                covered(span) * span
            }
            Segments::Rows => 0,
        };
        self.program.scratch_bytes += blocks / 8;
        Ok(heads)
    }

    /// The initial value, and whether the scan is exclusive.
    fn start(&self) -> [Arg; 2] {
        let exclusive = self.problem.kind() != ScanKind::Inclusive;
        [Arg::U64(initial_bits(self.problem)), Arg::U64(exclusive.into())]
    }

    /// 16-byte stores of a thread that holds so many states.
    fn rows(&self, held: Held) -> u32 {
        let held = match state_bytes(self.problem) {
            4 => held.narrow,
            8 => held.wide,
            bytes => held.narrow * 4 / bytes as u32,
        };
        (held / (16 / self.problem.output_dtype().size() as u32)).max(1)
    }

    /// Elements of a tile (`ScanTile` in kernels/scan.cuh).
    fn tile(&self, block: u32, rows: u32) -> u64 {
        u64::from(block) * u64::from(rows) * (16 / self.problem.output_dtype().size())
    }

    /// The passes of rungs 0 to 3.
    fn passes(&mut self, kernel: &str, per_thread: u32, block: u32) -> Result<()> {
        let per_block = u64::from(block) * u64::from(per_thread);
        let state = state_bytes(self.problem);
        // Items of each level: the elements, then the totals of the level below.
        let mut counts = vec![self.problem.length()];
        while let Some(&count) = counts.last().filter(|count| **count > per_block) {
            counts.push(count.div_ceil(per_block));
        }
        let mut regions = vec![0];
        for count in &counts[1..] {
            let start = self.program.scratch_bytes;
            regions.push(start);
            self.program.scratch_bytes += (count * state).next_multiple_of(16);
        }
        let output = Arg::Output { operand: 0 };
        for (level, &count) in counts.iter().enumerate() {
            let blocks = count.div_ceil(per_block);
            let totals = Arg::Scratch(regions.get(level + 1).copied().unwrap_or(0));
            let region = Arg::Scratch(regions[level]);
            let (from, to, source) =
                if level == 0 { (self.input(), output.clone(), "Elements") } else { (region.clone(), region, "Partials") };
            let args = vec![from, Arg::U64(count), to, totals];
            self.launch(kernel, &format!(", upsweep::{source}, {block}"), blocks, block, args)?;
        }
        for level in (0..counts.len() - 1).rev() {
            let items = if level == 0 { output.clone() } else { Arg::Scratch(regions[level]) };
            let args = vec![items, Arg::U64(counts[level]), Arg::Scratch(regions[level + 1])];
            self.launch("scan_add", &format!(", {block}, {per_block}"), counts[level + 1], block, args)?;
        }
        Ok(())
    }

    fn three_phase(&mut self, block: u32, rows: u32) -> Result<()> {
        const SPINE: u32 = 1024;
        let n = Arg::U64(self.problem.length());
        let tiles = self.problem.length().div_ceil(self.tile(block, rows));
        let parameters = format!(", {block}, {rows}, {}", self.problem.reverse());
        let beside = self.beside(tiles, self.tile(block, rows))?;
        let totals = Arg::Scratch(self.program.scratch_bytes.next_multiple_of(16));
        if tiles > 1 {
            self.program.scratch_bytes = self.program.scratch_bytes.next_multiple_of(16) + tiles * state_bytes(self.problem);
            let args = vec![self.input(), beside.clone(), n.clone(), totals.clone()];
            self.launch("scan_tile_totals", &parameters, tiles, block, args)?;
            self.launch("scan_spine", &format!(", {SPINE}"), 1, SPINE, vec![totals.clone(), Arg::U64(tiles)])?;
        }
        let [initial, exclusive] = self.start();
        let args = vec![self.input(), beside, n, totals, Arg::Output { operand: 0 }, initial, exclusive];
        self.launch("scan_tiles", &parameters, tiles, block, args)
    }

    fn look_back(&mut self, block: u32, rows: u32, resident_threads: u32) -> Result<()> {
        let tiles = self.problem.length().div_ceil(self.tile(block, rows));
        let resident = (resident_threads / block).max(1);
        self.program.control = ControlBlock { words: tiles * carry_bytes(self.problem) / 4 };
        let [initial, exclusive] = self.start();
        let output = Arg::Output { operand: 0 };
        let beside = self.beside(tiles, self.tile(block, rows))?;
        let args = vec![self.input(), beside, Arg::U64(self.problem.length()), output, initial, exclusive, Arg::Control];
        let parameters = format!(", {block}, {rows}, {resident}, {}", self.problem.reverse());
        self.launch("scan_look_back", &parameters, tiles, block, args)
    }

    fn look_ahead(&mut self, warps: u32, rows: u32, ring_bytes: u32, group: u32) -> Result<()> {
        let elements = self.tile(32 * warps, rows);
        let tiles_of_row = self.problem.length().div_ceil(elements);
        let tiles = tiles_of_row * self.problem.rows();
        if tiles > i32::MAX as u64 {
            let why = format!("its tickets count {} tiles at most, and this takes {tiles}", i32::MAX);
            return Err(Error::NotClaimed { rung: self.rung.id(), why });
        }
        let state = state_bytes(self.problem);
        let tile_bytes = elements as u32 * self.problem.dtype().size() as u32;
        let beside_bytes = match Beside::of(self.problem) {
            Beside::Nothing => 0,
            Beside::Coefficients => tile_bytes + 128,
            Beside::Heads => elements as u32 / 8,
        };
        // More than twelve stages were not seen to help; two thirds of them are what a tile's total is ahead of its scan.
        let arrays = if Beside::of(self.problem) == Beside::Coefficients { 2 } else { 1 };
        let stages = (ring_bytes / (arrays * tile_bytes)).min(12);
        let ahead = stages * 2 / 3;
        // Of each stage: a tile, 128 bytes, what lies beside it, and what is told about it (`RingOfTiles::Stage` asserts that it
        // fits).
        let told = 112 + carry_bytes(self.problem) as u32 + (1 + warps) * state as u32;
        let shared_bytes = stages * (tile_bytes + 128 + beside_bytes + told.next_multiple_of(16));
        // A lane holds the words of several tiles of a group.
        let group = if state > 8 { group.min(64) } else { group };
        let grid = tiles.min(u64::from(self.caps.multiprocessors));
        // Who looks ahead waits for the block's next tiles, if there are any. The order of combinations is the same.
        let delay = if tiles > grid { 2 } else { 0 };
        // A row's words begin where two of them can be read at once.
        let words_of_row = tiles_of_row.next_multiple_of(2) * state / 4;
        self.program.control = ControlBlock { words: words_of_row * self.problem.rows() };
        let beside = self.beside(tiles, elements)?;
        let mut args = self.plain_rows(beside);
        args.push(Arg::Control);
        let parameters = format!(", {warps}, {rows}, {stages}, {ahead}, {delay}, {group}, {}", self.problem.reverse());
        self.launch("scan_look_ahead", &parameters, grid, 32 * (warps + 4), args)?;
        if let Some(Step::Launch(launch)) = self.program.steps.last_mut() {
            launch.shared_bytes = shared_bytes;
        }
        Ok(())
    }

    /// The arguments of kernels over plain rows.
    fn plain_rows(&self, beside: Arg) -> Vec<Arg> {
        let p = self.problem;
        let numbers = [p.rows(), p.length(), p.pitch() as u64].map(Arg::U64);
        let rest = [Arg::Output { operand: 0 }].into_iter().chain(self.start());
        [self.input(), beside].into_iter().chain(numbers).chain(rest).collect()
    }

    fn registers(&mut self) -> Result<()> {
        let RegisterShape { width, lanes, packs, block } = register_shape(self.problem);
        // Threads of a multiprocessor that the kernel is compiled to hold: bounds the registers of a thread.
        let words = packs * width * (state_bytes(self.problem) / 4) as u32;
        let resident_threads = if words <= 8 { 1536 } else { 1024 };
        let resident = (resident_threads.min(self.caps.threads_per_multiprocessor) / block).max(1);
        let parameters = format!(", {lanes}, {packs}, {width}, {block}, {resident}, {}", self.problem.reverse());
        let grid = self.problem.rows().div_ceil(u64::from(block / lanes));
        if grid > i32::MAX as u64 {
            let why = format!("a grid has {} blocks at most, and this takes {grid}", i32::MAX);
            return Err(Error::NotClaimed { rung: self.rung.id(), why });
        }
        let beside = self.beside(0, 0)?;
        let args = self.plain_rows(beside);
        self.launch("scan_rows", &parameters, grid, block, args)
    }

    /// `ColumnsShape` of kernels/scan.cuh.
    fn columns_shape(&self, steps: u64, steps_of_block: u64) -> Arg {
        let (p, kept) = (self.problem, &self.problem.shape().kept);
        let outer_stride = if kept.len() == 2 { kept[0].stride } else { 0 };
        let row_stride = p.shape().reduced[0].stride;
        let extents = [p.rows() / p.inner(), p.length(), p.inner(), outer_stride as u64, row_stride as u64];
        let [initial, exclusive] = [initial_bits(p), u64::from(p.kind() != ScanKind::Inclusive)];
        Arg::Words(extents.into_iter().chain([steps, steps_of_block, initial, exclusive]).collect())
    }

    fn columns(&mut self) -> Result<()> {
        const SPINE: u32 = 128;
        let p = self.problem;
        let shape = ColumnShape::of(p);
        let steps = p.length().div_ceil(shape.step());
        let walks = shape.walks(p, self.caps);
        let (parts, steps_of_block) = if walks { (1, steps) } else { (steps, 1) };
        let parameters = format!(", {}, {}, {}, {}, {}", shape.across, shape.rows, shape.width, shape.block, p.reverse());
        let grid = shape.strips(p) * parts;
        if grid > i32::MAX as u64 {
            let why = format!("a grid has {} blocks at most, and this takes {grid}", i32::MAX);
            return Err(Error::NotClaimed { rung: self.rung.id(), why });
        }
        let shape_words = self.columns_shape(steps, steps_of_block);
        let mut fronts = Arg::U64(0);
        let beside = self.beside(0, 0)?;
        if !walks {
            let totals = steps * p.rows() * state_bytes(p);
            let first_front = totals.next_multiple_of(16);
            self.program.scratch_bytes = first_front + steps * p.rows() * carry_bytes(p);
            fronts = Arg::Scratch(first_front);
            let args = vec![self.input(), beside.clone(), Arg::Scratch(0), shape_words.clone()];
            self.launch("scan_column_totals", &parameters, grid, shape.block, args)?;
            let args = vec![Arg::Scratch(0), fronts.clone(), shape_words.clone()];
            self.launch("scan_column_spine", &format!(", {SPINE}"), p.rows().div_ceil(u64::from(SPINE)), SPINE, args)?;
        }
        let args = vec![self.input(), beside, Arg::Output { operand: 0 }, fronts, shape_words];
        self.launch("scan_columns", &parameters, grid, shape.block, args)
    }

    fn column_ahead(&mut self, ring_bytes: u32) -> Result<()> {
        let p = self.problem;
        let missing = |why: String| Err(Error::NotClaimed { rung: self.rung.id(), why });
        let size = p.dtype().size();
        let strides = p.shape().kept.iter().chain(&p.shape().reduced).map(|dim| dim.stride.unsigned_abs());
        if size < 4 && strides.filter(|stride| *stride != 1).chain([p.inner()]).any(|stride| !(stride * size).is_multiple_of(16))
        {
            return missing(format!("rows of {} are copied if they are multiples of 16 bytes apart", p.dtype()));
        }
        let shape = ColumnShape { width: ColumnShape::most(p), ..ColumnShape::of(p) };
        let (steps, strips) = (p.length().div_ceil(shape.step()), shape.strips(p));
        let tiles = steps * strips;
        if tiles > i32::MAX as u64 {
            return missing(format!("its tickets count {} steps at most, and this takes {tiles}", i32::MAX));
        }
        let columns = u64::from(shape.across * shape.width);
        let (state, carry) = (state_bytes(p), carry_bytes(p));
        // `ColumnStage` of the kernel, which asserts that this is what it takes.
        let tile = shape.step() * columns * size;
        let warps = u64::from(shape.block / 32);
        let stage = tile + (48 + columns * (carry + warps * state)).next_multiple_of(16);
        let stages = (u64::from(ring_bytes) / stage).min(12) as u32;
        let ahead = stages / 2;
        // Steps whose totals are added up from the front that is known for the first of them: more are read by every block,
        // fewer make the chain of those fronts longer, which tells where few strips follow it. All of a group's words are
        // under way at once, in registers.
        let group: u64 = match state / 4 {
            1 if strips * 4 <= u64::from(self.caps.multiprocessors) => 32,
            1 if columns <= 32 => 16,
            _ => 8,
        };
        let words = tiles * state / 4 + strips * steps.div_ceil(group) * carry / 4;
        self.program.control = ControlBlock { words: words * columns };
        let numbers = format!("{}, {}, {}, {warps}", shape.across, shape.rows, shape.width);
        let parameters = format!(", {numbers}, {stages}, {ahead}, {group}, {}", p.reverse());
        let args = vec![self.input(), Arg::Output { operand: 0 }, self.columns_shape(steps, 1), Arg::Control];
        let grid = tiles.min(u64::from(self.caps.multiprocessors));
        self.launch("scan_column_ahead", &parameters, grid, shape.block + 4 * 32, args)?;
        if let Some(Step::Launch(launch)) = self.program.steps.last_mut() {
            launch.shared_bytes = stages * stage as u32;
        }
        Ok(())
    }

    fn axes(&mut self) -> Result<()> {
        const BLOCK: u32 = 256;
        const ROWS: u32 = 4;
        let problem = self.problem;
        let shape = problem.shape();
        let (rows, length, inner) = (problem.rows(), problem.length(), problem.inner());
        let lanes = if length <= WARP_ROW { 32 } else { BLOCK };
        // In reverse, a row starts at its last element and every stride changes its sign.
        let sign = |stride: i64| if problem.reverse() { -stride } else { stride };
        let reach = |dim: &Dim| (dim.extent as i64 - 1) * dim.stride;
        let last: i64 = shape.reduced.iter().map(reach).sum();
        let (input_first, output_first) = if problem.reverse() {
            (shape.offset as i64 + last, (length as i64 - 1) * inner as i64)
        } else {
            (shape.offset as i64, 0)
        };
        let [initial, exclusive] = [initial_bits(problem), u64::from(problem.kind() != ScanKind::Inclusive)];
        let mut words = vec![rows, length, inner, input_first as u64, output_first as u64, sign(inner as i64) as u64];
        words.extend([initial, exclusive, shape.kept.len() as u64, shape.reduced.len() as u64]);
        let padded = |dims: &[Dim], value: &dyn Fn(&Dim) -> u64| -> Vec<u64> {
            (0..MAX_DIMS).map(|d| dims.get(d).map_or(1, value)).collect()
        };
        words.extend(padded(&shape.kept, &|d| d.extent));
        words.extend(padded(&shape.kept, &|d| d.stride as u64));
        words.extend(padded(&shape.reduced, &|d| d.extent));
        words.extend(padded(&shape.reduced, &|d| sign(d.stride) as u64));
        let grid = rows.div_ceil(u64::from(BLOCK / lanes)).min(u64::from(self.caps.multiprocessors) * 32);
        // Strides lead both arrays from their base pointers on.
        let input = |operand| Arg::Input { operand, bytes: 0 };
        let beside = if Beside::of(problem) == Beside::Coefficients { input(1) } else { Arg::U64(0) };
        let args = vec![input(0), beside, Arg::Output { operand: 0 }, Arg::Words(words)];
        self.launch("scan_axes", &format!(", {lanes}, {ROWS}"), grid, BLOCK, args)
    }
}

/// Turns a rung's numbers into launches.
pub(super) fn lower(
    rung: &'static ScanRung,
    schedule: &Schedule,
    problem: &ScanProblem,
    caps: &CudaCaps,
    tuning: Tuning,
) -> Result<Program> {
    let Body::Cuda { file, .. } = rung.body else {
        return Err(Error::NotClaimed { rung: rung.id(), why: format!("it runs on {}", DeviceKind::Cpu.name()) });
    };
    let mut low = Lowering { rung, problem, file, caps, op: operator_type(problem), program: Program::default() };
    low.program.operator = problem.user().and_then(|user| user.device().ok().cloned());
    if problem.output_len() == 0 {
        return Ok(low.program);
    }
    match *schedule {
        Schedule::Passes { kernel, per_thread } => low.passes(kernel, per_thread, tuning.block_size(256)?)?,
        Schedule::ThreePhase { block, held } => low.three_phase(tuning.block_size(block)?, low.rows(held))?,
        Schedule::LookBack { block, held, resident_threads } => {
            low.look_back(tuning.block_size(block)?, low.rows(held), resident_threads)?;
        }
        Schedule::LookAhead { warps, tile_bytes, rows, ring_bytes, group } => {
            tuning.block_size(0)?;
            // Coefficients share the bytes with the elements.
            let arrays = if Beside::of(problem) == Beside::Coefficients { 2 } else { 1 };
            let row_bytes = low.tile(32 * warps, 1) as u32 * problem.dtype().size() as u32 * arrays;
            low.look_ahead(warps, (tile_bytes / row_bytes).min(rows), ring_bytes, group)?;
        }
        Schedule::Axes => low.axes()?,
        Schedule::Registers => {
            tuning.block_size(0)?;
            low.registers()?;
        }
        Schedule::Columns => {
            tuning.block_size(0)?;
            low.columns()?;
        }
        Schedule::ColumnAhead { ring_bytes } => {
            tuning.block_size(0)?;
            low.column_ahead(ring_bytes)?;
        }
    }
    if low.program.scratch_bytes > 0 {
        low.program.scratch_bytes += crate::flow::SCRATCH_ALIGNMENT;
    }
    Ok(low.program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(spec: ScanSpec, dtype: DType) -> u64 {
        initial_bits(&ScanProblem::whole(spec, dtype, 4).unwrap())
    }

    #[test]
    fn initial_values_and_identities_as_state_bits() {
        assert_eq!(bits(ScanSpec::exclusive_from(Operator::Sum, 1.5f32), DType::F32), u64::from(1.5f32.to_bits()));
        let half = half::f16::from_f32(1.5);
        assert_eq!(bits(ScanSpec::exclusive_from(Operator::Sum, half), DType::F16), u64::from(1.5f32.to_bits()));
        assert_eq!(bits(ScanSpec::exclusive_from(Operator::Sum, -2i64), DType::I8), -2i64 as u64);
        // The kernels read the low 32 bits of a 32-bit state.
        assert_eq!(bits(ScanSpec::exclusive_from(Operator::Max, -2i8), DType::I8) as u32, -2i32 as u32);
        assert_eq!(bits(ScanSpec::inclusive(Operator::Max), DType::I8) as u32, -128i32 as u32);
        assert_eq!(bits(ScanSpec::inclusive(Operator::Min), DType::U8) as u32, 255);
        assert_eq!(bits(ScanSpec::inclusive(Operator::Min), DType::U32) as u32, u32::MAX);
        assert_eq!(bits(ScanSpec::inclusive(Operator::Max), DType::I64), i64::MIN as u64);
        assert_eq!(bits(ScanSpec::inclusive(Operator::Min), DType::U64), u64::MAX);
        assert_eq!(bits(ScanSpec::inclusive(Operator::Min), DType::Bool), 1);
        assert_eq!(bits(ScanSpec::inclusive(Operator::Max), DType::Bool), 0);
        assert_eq!(bits(ScanSpec::inclusive(Operator::Min), DType::F64), f64::INFINITY.to_bits());
        assert_eq!(bits(ScanSpec::inclusive(Operator::Prod), DType::U8), 1);
        assert_eq!(bits(ScanSpec::inclusive(Operator::LogSumExp), DType::F64), f64::NEG_INFINITY.to_bits());
        assert_eq!(bits(ScanSpec::exclusive_from(Operator::LogSumExp, half), DType::F16), u64::from(1.5f32.to_bits()));
    }
}
