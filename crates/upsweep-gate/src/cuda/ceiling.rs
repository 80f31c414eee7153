//! The ceilings of a device at a number of bytes: the best of a few plain reads or copies, verified word for word.

use super::buffer::Buffer;
use super::timer::Timer;
use super::{GRAPH_BELOW, GRAPH_CALLS};
use crate::error::{GateError, Result};
use crate::record::{Ceiling, Traffic};
use crate::statistics::Spread;
use crate::target::TimingRequest;
use upsweep::device::cuda::Cuda;
use upsweep::flow::{
    Arg, Body, Claims, DeviceMut, DeviceRef, Expect, Explain, Forms, KernelFile, KernelSpec, Launch, Plan, Program, Step,
};
use upsweep::ops::reduce::{Reduce, ReduceDeviceOperands, ReducePlan, ReduceProblem, ReduceRung, Schedule};
use upsweep::types::{DType, Operator};

const FILE: KernelFile = KernelFile::cuda("upsweep-gate/src/cuda/ceiling.cu", include_str!("ceiling.cu"));

/// One of the kernels that compete.
#[derive(Clone, Copy)]
struct Shape {
    /// Threads of a block.
    block: u32,
    /// 16-byte loads in flight a thread.
    packs: u32,
    /// The lines that are read leave the cache last.
    evict_last: bool,
}

/// The kernels that compete.
fn shapes(traffic: Traffic) -> [Shape; 4] {
    let shape = |block, packs, evict_last| Shape { block, packs, evict_last };
    match traffic {
        Traffic::Read => [(1024, 4), (512, 8), (512, 4), (256, 8)].map(|(block, packs)| shape(block, packs, false)),
        Traffic::Copy => [(128, false), (256, false), (128, true), (256, true)].map(|(block, last)| shape(block, 1, last)),
    }
}

static RUNG: ReduceRung = ReduceRung {
    number: "0",
    name: "ceiling",
    claims: Claims {
        operators: &[Operator::WrappingSum],
        dtypes: &[DType::U32],
        forms: Forms::Whole,
        compute: (7, 5),
        max_length: u64::MAX,
    },
    deterministic: true,
    expect: Expect::Pass,
    explain: Explain {
        changed: "Only the reads of a reduction.",
        helps: "It says what the device can read at this size, now.",
        cost: "One read of every word.",
        source: "Our own measurements.",
    },
    body: Body::Cuda { file: FILE, schedule: Schedule::Axes },
};

fn plan(traffic: Traffic, words: u64, Shape { block, packs, evict_last }: Shape) -> Result<ReducePlan> {
    let grid = words.div_ceil(u64::from(block * packs) * 4) as u32;
    let (kernel, target, scratch_bytes) = match traffic {
        Traffic::Read => (format!("ceiling_tiles<{block}, {packs}>"), Arg::Scratch(0), u64::from(grid) * 4),
        Traffic::Copy => (format!("ceiling_copy<{block}, {packs}, {evict_last}>"), Arg::Output { operand: 0 }, 0),
    };
    let launch = Launch {
        kernel: KernelSpec { file: FILE, expression: format!("upsweep::{kernel}") },
        grid,
        block,
        shared_bytes: 0,
        args: vec![Arg::Input { operand: 0, bytes: 0 }, Arg::U64(words), target],
    };
    let program = Program { steps: vec![Step::Launch(launch)], scratch_bytes, ..Program::default() };
    let problem = ReduceProblem::whole(Operator::WrappingSum, DType::U32, words)?;
    Ok(Plan::<Reduce> { problem, rung: &RUNG, why: "a ceiling".into(), program: Some(program) })
}

/// The plans of every shape that is tried.
pub(super) fn plans() -> Result<Vec<ReducePlan>> {
    let all = [Traffic::Read, Traffic::Copy].into_iter().flat_map(|traffic| shapes(traffic).map(|shape| (traffic, shape)));
    all.map(|(traffic, shape)| plan(traffic, 1 << 20, shape)).collect()
}

pub(super) fn measure(
    cuda: &Cuda,
    timer: &Timer,
    request: &TimingRequest,
    traffic: Traffic,
    words: u64,
    addresses: &[u64],
) -> Result<Ceiling> {
    let output = Buffer::new(cuda, if traffic == Traffic::Copy { words * 4 } else { 4 })?;
    let mut best: Option<Ceiling> = None;
    let expected = match traffic {
        Traffic::Read => word_sum(cuda, addresses[0], words)?,
        Traffic::Copy => 0,
    };
    for shape in shapes(traffic) {
        let Shape { block, packs, evict_last } = shape;
        let plan = plan(traffic, words, shape)?;
        let mut prepared = cuda.prepare(&plan)?;
        let scratch = Buffer::new(cuda, plan.scratch_bytes())?;
        scratch.fill(0xff)?;
        output.fill(0xff)?;
        let stream = timer.stream().clone();
        let mut call = |address: u64| {
            // SAFETY: the pool holds `words` words at the address, and so does the output of a copy; the buffers outlive
            // the calls, which are waited for.
            unsafe {
                let operands = ReduceDeviceOperands {
                    input: DeviceRef::from_raw(address, words, DType::U32)?,
                    output: DeviceMut::from_raw(output.address(), 1, DType::U32)?,
                };
                prepared.enqueue(&stream, operands, (scratch.address(), plan.scratch_bytes()))
            }
        };
        call(addresses[0])?;
        timer.wait()?;
        let right = match traffic {
            Traffic::Read => {
                let mut partials = vec![0u8; plan.scratch_bytes() as usize];
                scratch.read(&mut partials)?;
                let word = |w: &[u8]| u32::from_le_bytes([w[0], w[1], w[2], w[3]]);
                partials.chunks_exact(4).fold(0u32, |sum, w| sum.wrapping_add(word(w))) == expected
            }
            Traffic::Copy => words_at(cuda, output.address(), words)? == words_at(cuda, addresses[0], words)?,
        };
        if !right {
            return Err(GateError::Measurement(format!(
                "the {} kernel {block} x {packs} met other words than the input's",
                traffic.name()
            )));
        }
        let seconds = if words < GRAPH_BELOW {
            timer.graph(cuda, request, GRAPH_CALLS, addresses, &mut call)?
        } else {
            timer.events(request, addresses, &mut call)?
        };
        let spread = Spread::of(&seconds)?;
        if best.as_ref().is_none_or(|b| spread.median < b.seconds) {
            let bytes = words * if traffic == Traffic::Copy { 8 } else { 4 };
            best = Some(Ceiling {
                name: format!(
                    "{}, one-shot blocks of {block} threads, {packs} x 16 B in flight{}",
                    traffic.name(),
                    if evict_last { ", read lines leave the cache last" } else { "" }
                ),
                traffic,
                bytes,
                seconds: spread.median,
                seconds_min: spread.min,
                bytes_per_second: bytes as f64 / spread.median,
            });
        }
    }
    best.ok_or_else(|| GateError::Measurement("no ceiling kernel ran".into()))
}

/// The words at an address.
fn words_at(cuda: &Cuda, address: u64, words: u64) -> Result<Vec<u8>> {
    cuda.context().bind_to_thread().map_err(super::buffer::failed("cuCtxSetCurrent", String::new()))?;
    let mut bytes = vec![0u8; words as usize * 4];
    // SAFETY: that many words are at the address; the call returns after the copy.
    unsafe { cudarc::driver::result::memcpy_dtoh_sync(&mut bytes, address) }
        .map_err(super::buffer::failed("cuMemcpyDtoH", format!("{words} words")))?;
    Ok(bytes)
}

/// The sum of the words as the host adds them.
fn word_sum(cuda: &Cuda, address: u64, words: u64) -> Result<u32> {
    use rayon::prelude::*;
    let bytes = words_at(cuda, address, words)?;
    let word = |w: &[u8]| u32::from_le_bytes([w[0], w[1], w[2], w[3]]);
    let sum = |chunk: &[u8]| chunk.chunks_exact(4).fold(0u32, |sum, w| sum.wrapping_add(word(w)));
    Ok(bytes.par_chunks(1 << 20).map(sum).reduce(|| 0, u32::wrapping_add))
}
