//! THE list of softmax rungs. A rung is a kernel file (or a CPU function) and one entry here.

#[cfg(feature = "cpu")]
use super::HostBody;
use super::SoftmaxRung;
#[cfg(feature = "cpu")]
use super::cpu;
use super::oracle::ONLINE_LENGTH;
use super::plan::Schedule;
use crate::flow::{Body, Claims, Expect, Explain, Forms, KernelFile, Rung, TileKernel};
use crate::types::DType;

/// Every float dtype and layout.
const ANY: Claims = Claims { operators: &[], dtypes: &[], forms: Forms::Any, compute: (7, 5), max_length: u64::MAX };

/// Every float dtype; rows whose elements are neighbours.
const ROWS: Claims = Claims { forms: Forms::Rows, ..ANY };

/// What the teaching rungs claim. The length keeps what a thread adds one after the other, and how often it rescales,
/// within the bound.
const TEACHING: Claims = Claims { dtypes: &[DType::F32, DType::F64], max_length: ONLINE_LENGTH, ..ROWS };

/// Embeds a kernel file of this folder.
macro_rules! kernel_file {
    ($name:literal) => {
        KernelFile::cuda(concat!("ops/softmax/cuda/", $name), include_str!(concat!("cuda/", $name)))
    };
}

macro_rules! cuda {
    ($number:literal, $name:literal, $file:literal, $claims:expr, $schedule:expr, $expect:expr, $explain:expr) => {
        Rung {
            number: $number,
            name: $name,
            claims: $claims,
            deterministic: true,
            expect: $expect,
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
pub(super) static LADDER: &[SoftmaxRung] = &[
    #[cfg(feature = "cpu")]
    on_cpu!(
        "0",
        "three_pass",
        cpu::rung_three_pass,
        Explain {
            changed: "The stable definition, scalar and in f64: the row's maximum, the sum of exponentials relative to it, the outputs.",
            helps: "It is the starting point: no exponential exceeds 1, whatever the logits.",
            cost: "Three reads of a row (from a cache, if it fits) and one write; two exponentials of the mathematical library an element; one thread.",
            source: "P. Blanchard, D. Higham, N. Higham, Accurately Computing the Log-Sum-Exp and Softmax Functions (2021)",
        }
    ),
    #[cfg(feature = "cpu")]
    on_cpu!(
        "1",
        "online",
        cpu::rung_online,
        Explain {
            changed: "Maximum and sum in one pass: the sum is rescaled when the maximum grows; leaves of 16 elements merge pairwise.",
            helps: "One read less, and the state (max, sum) is mergeable: parts of a row can be done anywhere, in any order.",
            cost: "Two reads and one write; one exponential an element for the sum, one more where the maximum grows, one for the output.",
            source: "M. Milakov, N. Gimelshein, Online Normalizer Calculation for Softmax (2018)",
        }
    ),
    #[cfg(feature = "cpu")]
    on_cpu!(
        "2",
        "simd",
        cpu::rung_simd,
        Explain {
            changed: "All threads over rows, and vectors: maxima in lanes, an exponential by a polynomial (at most 0.86 ulp off in f32, 2 in f64), sums in lanes of fixed blocks; results stored past the caches.",
            helps: "An exponential costs a few vector instructions instead of a call; a row of usual length stays in the first caches between its passes, so that memory sees one read and one write.",
            cost: "One read and one write of memory up to 65536 columns, three reads beyond; one exponential an element (two beyond).",
            source: "Intel 64 and IA-32 Architectures Optimization Reference Manual, on non-temporal stores; J.-M. Muller, Elementary Functions (2016), on range reduction",
        }
    ),
    cuda!(
        "0",
        "unshifted",
        "00_unshifted.cu",
        TEACHING,
        Schedule::RowPerBlock { kernel: "softmax_unshifted" },
        Expect::Rejected("large_logits"),
        Explain {
            changed: "The formula as written: exp(x) over the sum of exp(x), one block a row.",
            helps: "It shows the fault that every other rung avoids: exp overflows from 88.7 in f32, and infinity over infinity is NaN. Right for small logits only; the gate must reject it.",
            cost: "Two reads and one write of every element; 1 barrier a row.",
            source: "I. Goodfellow, Y. Bengio, A. Courville, Deep Learning (2016), section 4.1",
        }
    ),
    cuda!(
        "1",
        "three_pass",
        "01_three_pass.cu",
        TEACHING,
        Schedule::RowPerBlock { kernel: "softmax_three_pass" },
        Expect::Pass,
        Explain {
            changed: "The row's maximum is found first and subtracted.",
            helps: "No exponential exceeds 1, so any logits are safe; one more read pays for it.",
            cost: "Three reads and one write of every element (short rows hit the first-level cache); 3 barriers a row; two exponentials an element.",
            source: "Mission document, part C 1",
        }
    ),
    cuda!(
        "2",
        "online",
        "02_online.cu",
        TEACHING,
        Schedule::RowPerBlock { kernel: "softmax_online" },
        Expect::Pass,
        Explain {
            changed: "Maximum and sum are found together: when the running maximum grows, the running sum is rescaled. Partial states of threads and warps merge by the same rule, guarded against empty ones.",
            helps: "One read of the row less.",
            cost: "Two reads and one write of every element; 3 barriers a row; one rescaling for every 8 elements a thread reads.",
            source: "M. Milakov, N. Gimelshein, Online Normalizer Calculation for Softmax (2018)",
        }
    ),
    cuda!(
        "3",
        "online_vector",
        "03_online_vector.cu",
        TEACHING,
        Schedule::RowPerBlock { kernel: "softmax_online_vector" },
        Expect::Pass,
        Explain {
            changed: "16 bytes a load and a store, two loads under way before they are used.",
            helps: "A quarter of the memory instructions, and more bytes in flight a thread.",
            cost: "As rung 2.",
            source: "J. Luitjens, Increase Performance with Vectorized Memory Access (2013)",
        }
    ),
    cuda!(
        "4",
        "registers",
        "04_registers.cu",
        ROWS,
        Schedule::Registers,
        Expect::Pass,
        Explain {
            changed: "The row is loaded once and stays in registers: a few threads hold a short row (several rows a warp), a warp a medium one, a block of up to 1024 threads a long one. Lines that are read leave the second-level cache last.",
            helps: "Memory sees one read and one write, the least there is. With the row at hand, the maximum and then the sum are two cheap reductions: no rescaling, one exponential an element.",
            cost: "One read and one write of every element; no barrier up to a warp a row, 2 barriers a row beyond; up to 32768 elements a row (16384 of f64).",
            source: "V. Volkov, Better Performance at Lower Occupancy (2010)",
        }
    ),
    cuda!(
        "5",
        "long_rows",
        "05_long_rows.cu",
        ANY,
        Schedule::LongRows { block: 256 },
        Expect::Pass,
        Explain {
            changed: "Several blocks a row: the states (max, sum) of chunks of fixed length, merged in a fixed order, and the chunks again for the outputs.",
            helps: "A few long rows fill the whole device, and no row is too long; the bits do not depend on how many blocks there are.",
            cost: "Two reads and one write of every element, one state a chunk; three launches (two for logsumexp).",
            source: "M. Milakov, N. Gimelshein (2018), section 3",
        }
    ),
    cuda!(
        "6",
        "axes",
        "06_axes.cu",
        // A longer row would keep its 32 threads busy for seconds; the planner gives long rows to long_rows.
        Claims { max_length: 1 << 24, ..ANY },
        Schedule::Axes,
        Expect::Pass,
        Explain {
            changed: "Any axis of any strides: a block takes 32 rows side by side, and neighbouring threads follow whichever stride is shorter.",
            helps: "Columns are read in whole lines of memory, as rows are. It answers every layout, for rows of up to 2^24 elements.",
            cost: "Three reads and one write of every element; compensated sums, so length does not spoil a row.",
            source: "Mission document, part C 1, turned by 90 degrees",
        }
    ),
    Rung {
        number: "7",
        name: "tiles",
        claims: Claims { dtypes: &[DType::F32], compute: (8, 0), max_length: 16384, ..ROWS },
        deterministic: true,
        expect: Expect::Pass,
        explain: Explain {
            changed: "Rust instead of CUDA C++: whole rows are one tile; maximum, sum and quotient are four operations on it. Compiled ahead of time, a cubin for each width and architecture.",
            helps: "The tile stays on chip between them, so memory sees one read and one write as in rung 4, without a word about threads.",
            cost: "One read and one write of every element; one launch; up to 16384 elements a row, padded to 64, 1024, 4096 or 16384.",
            source: "NVIDIA, CUDA Tile IR specification (2026)",
        },
        body: Body::Cuda { file: KernelFile { tiles: TILES, ..kernel_file!("07_tiles.rs") }, schedule: Schedule::Tiles },
    },
];

/// What is compiled of rung 7, narrowest first: rows and columns of a tile.
const TILES: &[TileKernel] = &[
    TileKernel { function: "softmax", extents: &[32, 64], worker_warps: 0 },
    TileKernel { function: "softmax", extents: &[4, 1024], worker_warps: 0 },
    TileKernel { function: "softmax", extents: &[1, 4096], worker_warps: 0 },
    TileKernel { function: "softmax", extents: &[1, 16384], worker_warps: 16 },
];
