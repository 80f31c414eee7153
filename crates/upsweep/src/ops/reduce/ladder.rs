//! THE list of reduction rungs. A rung is a kernel file (or a CPU function) and one entry here.

#[cfg(feature = "cpu")]
use super::HostBody;
use super::ReduceRung;
#[cfg(feature = "cpu")]
use super::cpu;
use super::plan::Schedule;
use crate::flow::{Body, Claims, Expect, Explain, Forms, KernelFile, Rung, TileKernel};
use crate::types::{DType, Operator};

/// What the teaching rungs of the document claim.
const TEACHING: Claims = Claims {
    operators: &[Operator::Sum, Operator::Max],
    dtypes: &[DType::F32, DType::F64, DType::I32],
    forms: Forms::Whole,
    compute: (7, 5),
    max_length: u64::MAX,
};

/// Every operator and dtype, the whole of a contiguous array.
const WHOLE: Claims = Claims { operators: &[], dtypes: &[], forms: Forms::Whole, compute: (7, 5), max_length: u64::MAX };

/// Every operator, dtype and layout.
const ANY: Claims = Claims { forms: Forms::Any, ..WHOLE };

/// Embeds a kernel file of this folder.
macro_rules! kernel_file {
    ($name:literal) => {
        KernelFile::cuda(concat!("ops/reduce/cuda/", $name), include_str!(concat!("cuda/", $name)))
    };
}

/// A CUDA rung that is deterministic and expected to pass, as all but 5b are.
macro_rules! cuda {
    ($number:literal, $name:literal, $file:literal, $claims:expr, $schedule:expr, $explain:expr) => {
        Rung {
            number: $number,
            name: $name,
            claims: $claims,
            deterministic: true,
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
pub(super) static LADDER: &[ReduceRung] = &[
    #[cfg(feature = "cpu")]
    on_cpu!(
        "0",
        "sequential",
        cpu::rung_sequential,
        Explain {
            changed: "The definition: one loop, one accumulator. Float sums run in double-double, because a single f32 accumulator stops growing at 2^24.",
            helps: "It is the starting point: every addition waits for the one before.",
            cost: "One read of every element; n dependent combines.",
            source: "N. Higham, The Accuracy of Floating Point Summation (1993), on recursive summation",
        }
    ),
    #[cfg(feature = "cpu")]
    on_cpu!(
        "1",
        "pairwise",
        cpu::rung_pairwise,
        Explain {
            changed: "Halves are reduced apart and combined, down to leaves of 16 elements.",
            helps: "The error of a float sum grows with log2(n) instead of n, so the plain accumulator type suffices.",
            cost: "One read of every element; n combines in a tree over leaves of 16.",
            source: "N. Higham, The Accuracy of Floating Point Summation (1993), on pairwise summation",
        }
    ),
    #[cfg(feature = "cpu")]
    on_cpu!(
        "2",
        "accumulators",
        cpu::rung_accumulators,
        Explain {
            changed: "Independent accumulators in the inner loop, one a lane (64 for 4-byte states, 32 for 8-byte ones), over four streams of a fixed chunk of 65536 elements, read by turns.",
            helps: "Additions no longer wait for each other: they overlap in the pipeline and fill the vector registers; a core has more cache lines under way from four places than from one.",
            cost: "One read of every element; one core's bandwidth.",
            source: "Intel 64 and IA-32 Architectures Optimization Reference Manual, on breaking dependence chains",
        }
    ),
    #[cfg(feature = "cpu")]
    on_cpu!(
        "3",
        "threads",
        cpu::rung_threads,
        Explain {
            changed: "The chunks are reduced by all threads; their states are combined by a fixed tree.",
            helps: "One core cannot fill the memory bus; the fixed chunks keep the bits independent of the number of threads.",
            cost: "One read of every element; one state per 65536 elements.",
            source: "G. Blelloch, Prefix Sums and Their Applications (1990), on blocked reduction",
        }
    ),
    cuda!(
        "0",
        "divergent",
        "00_divergent.cu",
        TEACHING,
        Schedule::Passes { kernel: "reduce_divergent", per_thread: 1 },
        Explain {
            changed: "The first parallel form: a tree in shared memory with interleaved addressing.",
            helps: "It is the starting point: at stride s only threads with tid % 2s == 0 work, so warps diverge and most lanes idle.",
            cost: "Reads n items, writes n / BLOCK states a pass; log2(BLOCK) + 1 barriers.",
            source: "M. Harris, Optimizing Parallel Reduction in CUDA (2007), kernel 1",
        }
    ),
    cuda!(
        "1",
        "non_divergent",
        "01_non_divergent.cu",
        TEACHING,
        Schedule::Passes { kernel: "reduce_non_divergent", per_thread: 1 },
        Explain {
            changed: "The same additions, but thread t handles the pair at 2*s*t: neighbouring threads work.",
            helps: "Whole warps work or idle and the modulo is gone; the strided addresses now fall into the same shared-memory banks.",
            cost: "As rung 0; up to 32-way bank conflicts.",
            source: "M. Harris, Optimizing Parallel Reduction in CUDA (2007), kernel 2",
        }
    ),
    cuda!(
        "2",
        "sequential",
        "02_sequential.cu",
        TEACHING,
        Schedule::Passes { kernel: "reduce_sequential", per_thread: 1 },
        Explain {
            changed: "The stride halves instead of doubling; thread t < s adds element t + s.",
            helps: "Neighbouring threads touch neighbouring banks: no conflict.",
            cost: "As rung 0, without conflicts.",
            source: "M. Harris, Optimizing Parallel Reduction in CUDA (2007), kernel 3",
        }
    ),
    cuda!(
        "3",
        "first_add_on_load",
        "03_first_add_on_load.cu",
        TEACHING,
        Schedule::Passes { kernel: "reduce_first_add_on_load", per_thread: 2 },
        Explain {
            changed: "Half the blocks: each thread loads two elements and adds them before the tree.",
            helps: "No thread is there only to load, and two loads are in flight a thread.",
            cost: "Reads n items, writes n / (2 * BLOCK) states a pass.",
            source: "M. Harris, Optimizing Parallel Reduction in CUDA (2007), kernel 4",
        }
    ),
    cuda!(
        "4",
        "warp_shuffle",
        "04_warp_shuffle.cu",
        TEACHING,
        Schedule::Passes { kernel: "reduce_warp_shuffle", per_thread: 2 },
        Explain {
            changed: "The last 64 states are added by one warp with shuffles.",
            helps: "Five steps need neither shared memory nor a barrier.",
            cost: "As rung 3, with 5 barriers less.",
            source: "M. Harris (2007), kernel 5; J. Luitjens, Faster Parallel Reductions on Kepler (2014)",
        }
    ),
    cuda!(
        "5a",
        "multi_pass",
        "04_warp_shuffle.cu",
        TEACHING,
        Schedule::Passes { kernel: "reduce_warp_shuffle", per_thread: 2 },
        Explain {
            changed: "The kernel of rung 4 again and again on its own partial states, until one value is left. (One second launch is not enough: it would read 512 of the 524288 partials of 2^28 elements at block 256.)",
            helps: "It makes the reduction whole, for any n, with a fixed order of additions.",
            cost: "Each pass reads 1 / (2 * BLOCK) of the pass before: 0.2 % more bytes, three more launches at 2^28.",
            source: "Mission document, stage 5 (a)",
        }
    ),
    Rung {
        number: "5b",
        name: "atomic",
        claims: Claims { dtypes: &[DType::F32, DType::I32], ..TEACHING },
        deterministic: false,
        expect: Expect::Pass,
        explain: Explain {
            changed: "Instead of more passes every block adds its state into one accumulator with an atomic; the accumulator is set to the identity in every call.",
            helps: "No second pass over partials; but all blocks queue at one address, and the order of float additions is not fixed. The accumulator of f32 sums is f64: in f32 the gate measured an error of 1 % at 2^28 elements around 1000.",
            cost: "Reads n items; n / (2 * BLOCK) atomics on one address; three launches.",
            source: "Mission document, stage 5 (b)",
        },
        body: Body::Cuda { file: kernel_file!("05_atomic.cu"), schedule: Schedule::Atomic },
    },
    cuda!(
        "6",
        "vector_loads",
        "06_vector_loads.cu",
        WHOLE,
        Schedule::TwoPass { packs: 1, blocks_per_multiprocessor: 8 },
        Explain {
            changed: "16 bytes a load, and a fixed grid of resident blocks that strides over the input.",
            helps: "A quarter of the load instructions, no new block every 2 KiB, one barrier a block instead of one a tile.",
            cost: "Reads n items, writes one state a block; two launches.",
            source: "J. Luitjens, Increase Performance with Vectorized Memory Access (2013); M. Harris (2007), kernel 7",
        }
    ),
    cuda!(
        "7",
        "loads_in_flight",
        "06_vector_loads.cu",
        WHOLE,
        Schedule::TwoPass { packs: 4, blocks_per_multiprocessor: 4 },
        Explain {
            changed: "Four 16-byte loads a thread are issued before the first is used.",
            helps: "Bandwidth is bytes in flight over latency (Little's law): more bytes in flight a thread, fewer threads needed.",
            cost: "As rung 6; 64 bytes in flight a thread.",
            source: "V. Volkov, Better Performance at Lower Occupancy (2010)",
        }
    ),
    cuda!(
        "8",
        "last_block",
        "08_last_block.cu",
        WHOLE,
        Schedule::LastBlock { packs: 4, blocks_per_multiprocessor: 4 },
        Explain {
            changed: "One launch: the block that arrives last at a counter adds the partial states.",
            helps: "The second launch and the drain between the two are gone; the partials are added in block order, so the bits are fixed.",
            cost: "Reads n items; one atomic and one fence a block; one launch.",
            source: "CUDA samples, threadFenceReduction",
        }
    ),
    cuda!(
        "9",
        "published_words",
        "09_published_words.cu",
        WHOLE,
        Schedule::Published { packs: 8, block: 512 },
        Explain {
            changed: "No counter and no fence: each state travels in 64-bit words that carry the call's tag, and the last block waits for them.",
            helps: "One memory hop instead of three (store and fence, atomic, load) between the last element and the result.",
            cost: "Reads n items; one tagged store and load a block; one launch.",
            source: "The tagged status word of D. Merrill and M. Garland, Decoupled Look-back (2016), section 4",
        }
    ),
    cuda!(
        "10",
        "bulk_copy",
        "10_bulk_copy.cu",
        Claims { compute: (9, 0), ..WHOLE },
        Schedule::Bulk { consumers: 256, stages: 3, stage_bytes: 64 << 10 },
        Explain {
            changed: "The copy engine fills a ring of three 64 KiB stages in shared memory; one thread asks, eight warps add.",
            helps: "192 KiB in flight a multiprocessor without a register, and the blocks end together because the rest is dealt evenly.",
            cost: "Reads n items; two hand-overs a stage; one launch.",
            source: "PTX ISA, cp.async.bulk and mbarrier",
        }
    ),
    cuda!(
        "11",
        "axes",
        "11_axes.cu",
        ANY,
        Schedule::Axes,
        Explain {
            changed: "Any set of axes of any strides: a warp or a block for each row, long rows cut into chunks of 65536.",
            helps: "It answers every layout, and a row's bits depend on its values and length alone.",
            cost: "One read of every element; one state a chunk where rows are long; one or two launches.",
            source: "CUB, DeviceSegmentedReduce, for one group a segment",
        }
    ),
    Rung {
        number: "12",
        name: "tiles",
        claims: Claims { operators: &[Operator::Sum], dtypes: &[DType::F32], compute: (8, 0), ..WHOLE },
        deterministic: true,
        expect: Expect::Pass,
        explain: Explain {
            changed: "Rust instead of CUDA C++: the kernel adds whole tiles, and its compiler chooses threads, copies and the tree. Compiled ahead of time, a cubin for each architecture.",
            helps: "Not a thread, a barrier or a shared array in the source. The elements before and behind addresses of 16 bytes are added apart, so that the compiler may move whole tiles with the copy engine where there is one. It costs reach: no other dtype or operator without another cubin, and no device that none was made for.",
            cost: "Reads n items, writes one partial sum a block; two launches, three beyond 2^30 items.",
            source: "NVIDIA, CUDA Tile IR specification (2026)",
        },
        body: Body::Cuda {
            file: KernelFile { tiles: TILES, ..kernel_file!("12_tiles.rs") },
            schedule: Schedule::Tiles { blocks_per_multiprocessor: 4, tiles_of_block: 16 },
        },
    },
    cuda!(
        "13",
        "in_order",
        "13_in_order.cu",
        Claims { operators: &[Operator::Sum, Operator::User], ..WHOLE },
        Schedule::InOrder { packs: 4, blocks_per_multiprocessor: 4 },
        Explain {
            changed: "Neighbours stay neighbours: a warp takes one contiguous part of the input, a lane one pack of each 512 bytes, and every combination has the earlier elements on the left.",
            helps: "Operators need to be associative only: those of the caller's own that do not commute are reduced by it. The price are five shuffles a load, where lanes that take turns need five in all.",
            cost: "Reads n items, writes one state a block; two launches.",
            source: "G. Blelloch, Prefix Sums and Their Applications (1990), section 1.2.1",
        }
    ),
];

/// What is compiled of rung 12.
const TILES: &[TileKernel] = &[TileKernel { function: "sum", extents: &[8192], worker_warps: 0 }];
