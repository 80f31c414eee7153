//! THE list of scan rungs. A rung is a kernel file (or a CPU function) and one entry here.

#[cfg(feature = "cpu")]
use super::HostBody;
use super::ScanRung;
#[cfg(feature = "cpu")]
use super::cpu;
use super::plan::{Held, Schedule};
use crate::flow::{Body, Claims, Expect, Explain, Forms, KernelFile, Rung};
use crate::types::{DType, Operator};

/// What the teaching rungs claim: inclusive and forward (the planner's `claim` says so), where outputs are states.
const TEACHING: Claims = Claims {
    operators: &[Operator::Sum, Operator::Max],
    dtypes: &[DType::F32, DType::F64, DType::I32],
    forms: Forms::Whole,
    compute: (7, 5),
    max_length: u64::MAX,
};

/// Every operator and dtype, the whole of a contiguous array.
const WHOLE: Claims = Claims { operators: &[], dtypes: &[], forms: Forms::Whole, compute: (7, 5), max_length: u64::MAX };

/// Every operator and dtype, rows whose elements are neighbours.
const ROWS: Claims = Claims { forms: Forms::Rows, ..WHOLE };

/// Every operator and dtype, columns that are neighbours.
const COLUMNS: Claims = Claims { forms: Forms::Columns, ..WHOLE };

/// Every operator, dtype and layout.
const ANY: Claims = Claims { forms: Forms::Any, ..WHOLE };

/// Embeds a kernel file of this folder.
macro_rules! kernel_file {
    ($name:literal) => {
        KernelFile::cuda(concat!("ops/scan/cuda/", $name), include_str!(concat!("cuda/", $name)))
    };
}

/// A CUDA rung that is expected to pass.
macro_rules! cuda {
    ($number:literal, $name:literal, $file:literal, $claims:expr, deterministic: $deterministic:literal, $schedule:expr, $explain:expr) => {
        Rung {
            number: $number,
            name: $name,
            claims: $claims,
            deterministic: $deterministic,
            expect: Expect::Pass,
            explain: $explain,
            body: Body::Cuda { file: kernel_file!($file), schedule: $schedule },
        }
    };
}

#[cfg(feature = "cpu")]
macro_rules! on_cpu {
    ($number:literal, $name:literal, $function:path, $explain:expr) => {
        Rung {
            number: $number,
            name: $name,
            claims: ANY,
            deterministic: true,
            expect: Expect::Pass,
            explain: $explain,
            body: Body::Cpu($function as HostBody),
        }
    };
}

/// The ladder: CPU rungs, then CUDA rungs, each in the order it is climbed.
pub(super) static LADDER: &[ScanRung] = &[
    #[cfg(feature = "cpu")]
    on_cpu!(
        "0",
        "sequential",
        cpu::rung_sequential,
        Explain {
            changed: "The definition: one loop that carries the state of all elements so far. Float sums run in f64 (f64 ones in double-double), because a single f32 stops growing at 2^24. Linear recurrences run in f64, a fused multiplication and addition a step. Segments restart the state.",
            helps: "It is the starting point: every combination waits for the one before.",
            cost: "One read and one write of every element; n dependent combinations.",
            source: "G. Blelloch, Prefix Sums and Their Applications (1990), section 1.1",
        }
    ),
    #[cfg(feature = "cpu")]
    on_cpu!(
        "1",
        "three_phase",
        cpu::rung_three_phase,
        Explain {
            changed: "Chunks of 65536 elements: a thread takes a chunk, adds it up, waits for the carry in front, passes the carry on, and scans the chunk in groups of 64 while the cache still holds it. Large outputs are stored past the caches.",
            helps: "All threads work, memory is read once, and only one addition a chunk waits for the chunk before; in a group of sums, three vector steps replace eight dependent additions. The chain of carries has a fixed order, so the bits do not depend on the number of threads. A chunk of a linear recurrence is walked in eight strips side by side, whose carries come from their products and totals; in segments, a chunk with a head in it passes its carry on at once.",
            cost: "One read from memory, one from the cache, one write of every element; one carry a chunk.",
            source: "G. Blelloch (1990), section 1.2.1, on blocks; S. Yan, G. Long and Y. Zhang, StreamScan (2013), on passing carries along",
        }
    ),
    cuda!(
        "0",
        "hillis_steele",
        "00_hillis_steele.cu",
        TEACHING,
        deterministic: true,
        Schedule::Passes { kernel: "scan_hillis_steele", per_thread: 1 },
        Explain {
            changed: "The first parallel form: in log2(BLOCK) steps every thread adds the state at twice the distance to its left. Blocks are joined by scanning their totals with the same kernel and adding the carries.",
            helps: "It is the starting point: few steps, but each is a barrier, and n log2(BLOCK) combinations where n suffice.",
            cost: "Two reads and two writes of n items in all, the totals on top; log2(BLOCK) + 1 barriers.",
            source: "D. Hillis and G. Steele, Data Parallel Algorithms (1986); M. Harris, GPU Gems 3 (2007), 39.2.1",
        }
    ),
    cuda!(
        "1",
        "blelloch",
        "01_blelloch.cu",
        TEACHING,
        deterministic: true,
        Schedule::Passes { kernel: "scan_blelloch", per_thread: 2 },
        Explain {
            changed: "Up a tree with sums, down it with prefixes: two combinations an element, whatever the block. Two elements a thread.",
            helps: "The work is that of the sequential scan; but half the threads idle from the first step on, steps are twice as many, and strides of powers of two meet in one bank.",
            cost: "As rung 0; 2 * log2(2 * BLOCK) + 1 barriers; up to 32-way bank conflicts.",
            source: "G. Blelloch, Prefix Sums and Their Applications (1990), section 1.2; M. Harris, GPU Gems 3 (2007), 39.2.2",
        }
    ),
    cuda!(
        "2",
        "blelloch_padded",
        "02_blelloch_padded.cu",
        TEACHING,
        deterministic: true,
        Schedule::Passes { kernel: "scan_blelloch_padded", per_thread: 2 },
        Explain {
            changed: "One unused place after every 32 states.",
            helps: "Threads of a warp touch different banks at almost every step of the tree.",
            cost: "As rung 1, with a thirty-second more shared memory and few conflicts.",
            source: "M. Harris, GPU Gems 3 (2007), 39.2.3",
        }
    ),
    cuda!(
        "3",
        "warp_shuffle",
        "03_warp_shuffle.cu",
        TEACHING,
        deterministic: true,
        Schedule::Passes { kernel: "scan_warp_shuffle", per_thread: 1 },
        Explain {
            changed: "Warps scan in registers with shuffles; one more warp scan joins the totals of the warps.",
            helps: "Two barriers instead of one a step, no bank conflicts: extra combinations are cheaper than barriers.",
            cost: "As rung 0; 2 barriers, 10 shuffles.",
            source: "M. Harris and M. Garland, Optimizing Parallel Prefix Operations for the Fermi Architecture (2011)",
        }
    ),
    cuda!(
        "4",
        "three_phase",
        "04_three_phase.cu",
        WHOLE,
        deterministic: true,
        Schedule::ThreePhase { block: 512, held: Held { narrow: 24, wide: 12 } },
        Explain {
            changed: "Reduce first, then scan: totals of large tiles, a scan of the totals by one block, then each tile is read again and scanned with its carry in hand. Loads and stores of up to 16 bytes, six rows of a warp at once.",
            helps: "Three passes over memory instead of four, no partial results written, and several loads in flight a thread. The order of combinations is fixed.",
            cost: "Two reads and one write of n items; three launches.",
            source: "Y. Dotsenko et al., Fast Scan Algorithms on Graphics Processors (2008); D. Merrill and A. Grimshaw, Parallel Scan for Stream Architectures (2009)",
        }
    ),
    cuda!(
        "5",
        "look_back",
        "05_look_back.cu",
        WHOLE,
        deterministic: false,
        Schedule::LookBack { block: 512, held: Held { narrow: 40, wide: 16 }, resident_threads: 1024 },
        Explain {
            changed: "One pass: a tile publishes its total at once, then adds up what the tiles before it have published, back to the first that knows its whole prefix. A thread holds forty 4-byte states (sixteen of 8 bytes).",
            helps: "Two passes over memory, the least there is, and no tile waits for the whole chain before it; large tiles keep enough bytes under way meanwhile. Which prefixes a tile meets depends on timing, so float sums and products may differ in their last bits between runs; every exact operator gives the same bits.",
            cost: "One read and one write of n items; one atomic, two tagged writes and a few tagged reads a tile; one launch.",
            source: "D. Merrill and M. Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back (2016)",
        }
    ),
    cuda!(
        "6",
        "axes",
        "06_axes.cu",
        ANY,
        deterministic: true,
        Schedule::Axes,
        Explain {
            changed: "Any axis of any strides: a warp or a block walks along each row and carries its state.",
            helps: "It answers every layout, and a row's bits depend on its values and length alone.",
            cost: "One read and one write of every element; one launch.",
            source: "CUB, DeviceSegmentedScan, for one group a segment",
        }
    ),
    cuda!(
        "7",
        "look_ahead",
        "07_look_ahead.cu",
        Claims { compute: (9, 0), max_length: 1 << 40, ..ROWS },
        deterministic: true,
        Schedule::LookAhead { warps: 16, tile_bytes: 32 << 10, rows: 8, ring_bytes: 192 << 10, group: 128 },
        Explain {
            changed: "One block a multiprocessor. The copy engine keeps a ring of tiles full; a tile's total is published some tiles before the tile is scanned; two warps of their own add up the totals in front, one of them whole groups of 128 tiles from left to right. Lines that are read leave the second-level cache last. Of an input between addresses of 16 bytes, whole groups are fetched and shifted when they are read; of an output, neighbouring lanes put their results together.",
            helps: "Bytes under way cost no registers, and by the time a tile is scanned the totals in front of it have long been published: nobody waits. Every block adds the same totals in the same order, whatever the timing, the addresses and the number of blocks: float sums have the same bits in every run.",
            cost: "One read and one write of n items; one atomic and one tagged write a tile; each block reads every tile's word once; one launch.",
            source: "D. Merrill and M. Garland (2016), on tickets and tagged words; PTX ISA, cp.async.bulk and mbarrier",
        }
    ),
    cuda!(
        "8",
        "rows",
        "08_rows.cu",
        ROWS,
        deterministic: true,
        Schedule::Registers,
        Explain {
            changed: "A row stays in registers: as many threads as it takes with four to sixteen states each, a few of a warp, or a block of up to 512; loads and stores of up to 16 bytes.",
            helps: "One read, one write, at most one barrier, and as many rows under way as a multiprocessor has threads for: rows run at the speed of a copy, and a short array takes one block.",
            cost: "One read and one write of every element; one launch.",
            source: "M. Harris and M. Garland (2011), on warps; V. Volkov, Better Performance at Lower Occupancy (2010)",
        }
    ),
    cuda!(
        "9",
        "columns",
        "09_columns.cu",
        COLUMNS,
        deterministic: true,
        Schedule::Columns,
        Explain {
            changed: "Threads side by side take neighbouring columns, sixteen bytes each, and a few rows; a block combines what stands above each other by shuffles and one barrier, and walks down its strip. Of long columns that are few, the totals of all steps come first, then a walk down the totals, then the steps with their fronts.",
            helps: "Memory is read and written in whole sectors, where rung 6 follows each column by itself. A step is of one length whatever the number of columns, so a column's bits do not depend on its neighbours.",
            cost: "One read and one write of every element and one launch; two reads and three launches for few long columns.",
            source: "Y. Dotsenko et al., Fast Scan Algorithms on Graphics Processors (2008), on matrices of elements a block",
        }
    ),
    cuda!(
        "10",
        "column_ahead",
        "10_column_ahead.cu",
        Claims { compute: (9, 0), max_length: 1 << 40, ..COLUMNS },
        deterministic: true,
        Schedule::ColumnAhead { ring_bytes: 220 << 10 },
        Explain {
            changed: "The steps of rung 9 as the tiles of rung 7: one block a multiprocessor, steps fetched into a ring of shared memory by asynchronous copies, their totals published some steps before they are needed. A warp adds up, column by column, the totals in front: from what stands in front of sixteen steps on, which the last of each sixteen tells the next.",
            helps: "A few long columns are read once instead of twice, by all multiprocessors, and neighbouring strips are under way together, which memory likes better than blocks that walk down. The order of combinations is that of rung 9, to the bit, at any address.",
            cost: "One read and one write of every element; one tagged write and eight tagged reads a column and step; one launch.",
            source: "D. Merrill and M. Garland (2016), on tickets and tagged words; PTX ISA, cp.async and mbarrier",
        }
    ),
];
