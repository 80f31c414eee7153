//! The same bits, however often, whatever else runs, and however many blocks there are: scans on a real GPU. Ignored (and shown
//! as ignored) where there is none; run with `--include-ignored` on a machine with a device.
#![cfg(feature = "cuda")]

#[path = "support/edges.rs"]
#[allow(dead_code)]
mod edges;
#[path = "support/repeats.rs"]
mod repeats;

use cudarc::driver::CudaSlice;
use edges::{claimed, signature};
use repeats::{Beside, Repeated, whole_and_reduced};
use upsweep::device::caps::{Caps, DeviceKind};
use upsweep::device::cuda::Cuda;
use upsweep::flow::{DeviceMut, DeviceRef, Op};
use upsweep::ops::reduce::{self, ReduceDeviceOperands, ReduceProblem};
use upsweep::ops::scan::{self, Scan, ScanProblem, ScanSpec};
use upsweep::types::{DType, Layout, Operator};

/// Floats of both signs and many sizes, so that another order of additions shows: a period of a million and three elements,
/// again and again.
fn floats(cuda: &Cuda, dtype: DType, n: usize) -> CudaSlice<u8> {
    const PERIOD: usize = 1_000_003;
    let size = dtype.size() as usize;
    let value = |i: usize| {
        let mixed = (i as u32).wrapping_mul(2_654_435_761);
        (f64::from(mixed >> 8) / f64::from(1u32 << 24) - 0.25) * 2f64.powi((mixed % 16) as i32)
    };
    let period: Vec<u8> = (0..PERIOD.min(n))
        .flat_map(|i| match dtype {
            DType::F64 => value(i).to_ne_bytes().to_vec(),
            _ => (value(i) as f32).to_ne_bytes().to_vec(),
        })
        .collect();
    let mut memory = cuda.stream().alloc_zeros::<u8>(n * size).unwrap();
    for start in (0..n * size).step_by(period.len()) {
        let end = (start + period.len()).min(n * size);
        cuda.stream().memcpy_htod(&period[..end - start], &mut memory.slice_mut(start..end)).unwrap();
    }
    cuda.stream().synchronize().unwrap();
    memory
}

fn sums(dtype: DType, n: u64) -> ScanProblem {
    ScanProblem::whole(ScanSpec::inclusive(Operator::Sum), dtype, n).unwrap()
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_thousand_scans_have_the_same_bits_alone_beside_others_and_on_few_multiprocessors() {
    const N: u64 = 524_288;
    let cuda = Cuda::new(0).unwrap();
    for dtype in [DType::F32, DType::F64] {
        let input = floats(&cuda, dtype, N as usize);
        let mut first: Option<Vec<u8>> = None;
        let plans = whole_and_reduced(&cuda).map(|caps| scan::plan(&sums(dtype, N), &caps).unwrap());
        assert_ne!(signature(&plans[0]), signature(&plans[1]), "fewer multiprocessors change nothing");
        for plan in plans {
            assert!(plan.rung.deterministic && (cuda.caps().compute < (9, 0) || plan.rung.name == "look_ahead"), "{plan}");
            for mut beside in [Beside::nothing(), Beside::a_busy_stream(&cuda)] {
                let mut scans = Repeated::new(&cuda, cuda.stream(), &plan, &input);
                for call in 0..1000 {
                    beside.keep_busy(2);
                    scans.enqueue();
                    let bytes = scans.bytes();
                    let first = first.get_or_insert_with(|| bytes.clone());
                    assert!(*first == bytes, "call {call} of {plan}");
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_hundred_large_scans_have_the_same_bits_alone_beside_others_and_on_few_multiprocessors() {
    const N: u64 = 1 << 28;
    const CALLS: usize = 100;
    let cuda = Cuda::new(0).unwrap();
    let (stream, all) = (cuda.stream().clone(), Caps::Cuda(cuda.caps().clone()));
    for (dtype, bits) in [(DType::F32, DType::U32), (DType::F64, DType::U64)] {
        let input = floats(&cuda, dtype, N as usize);
        // The results' bits as integers, whose sum is exact: a different bit anywhere is a different sum, unless others make
        // up for it.
        let checksum = ReduceProblem::whole(Operator::Sum, bits, N).unwrap();
        let (mut first_sum, mut first_bytes): (Option<u64>, Option<Vec<u8>>) = (None, None);
        for caps in whole_and_reduced(&cuda) {
            let plan = scan::plan(&sums(dtype, N), &caps).unwrap();
            let mut adds = cuda.prepare(&reduce::plan(&checksum, &all).unwrap()).unwrap();
            let scratch = stream.alloc_zeros::<u8>(adds.scratch_bytes().max(1) as usize).unwrap();
            let scratch_at = DeviceRef::of::<u8, _>(&scratch, &stream);
            for mut beside in [Beside::nothing(), Beside::a_busy_stream(&cuda)] {
                let mut scans = Repeated::new(&cuda, &stream, &plan, &input);
                let mut totals = stream.alloc_zeros::<u64>(CALLS).unwrap();
                let totals_at = DeviceMut::of::<u64, _>(&mut totals, &stream).address();
                for call in 0..CALLS as u64 {
                    beside.keep_busy(12);
                    scans.enqueue();
                    // SAFETY: the results are there in the stream's order, the totals hold so many words, and all of it outlives
                    // the wait below.
                    unsafe {
                        let input = DeviceRef::from_raw(scans.output_at(), N, bits).unwrap();
                        let output = DeviceMut::from_raw(totals_at + 8 * call, 1, DType::U64).unwrap();
                        let operands = ReduceDeviceOperands { input, output };
                        adds.enqueue(&stream, operands, (scratch_at.address(), scratch_at.len())).unwrap();
                    }
                }
                let bytes = scans.bytes();
                adds.check().unwrap();
                for (call, sum) in cuda.download(&totals).unwrap().into_iter().enumerate() {
                    assert_eq!(*first_sum.get_or_insert(sum), sum, "call {call} of {plan}");
                }
                let first_bytes = first_bytes.get_or_insert_with(|| bytes.clone());
                assert!(*first_bytes == bytes, "the last call of {plan}");
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn rows_and_columns_have_the_same_bits_alone_beside_others_and_on_few_multiprocessors() {
    const CALLS: usize = 25;
    let cuda = Cuda::new(0).unwrap();
    // Rows in registers, rows of tiles; columns enough for a walk and too few for one, and of odd numbers.
    let shapes: [([u64; 2], i64); 6] =
        [([1000, 333], 1), ([300, 4096], 1), ([7, 100_003], 1), ([700, 2048], 0), ([9000, 36], 0), ([2001, 333], 0)];
    let mut seen = std::collections::BTreeSet::new();
    for dtype in [DType::F32, DType::F64] {
        let input = floats(&cuda, dtype, shapes.iter().map(|(shape, _)| shape[0] * shape[1]).max().unwrap() as usize);
        for (shape, axis) in shapes {
            let layout = Layout::contiguous(&shape).unwrap();
            let problem = ScanProblem::new(ScanSpec::inclusive(Operator::Sum), dtype, &layout, Some(axis)).unwrap();
            for rung in Scan::ladder().iter().filter(|rung| rung.device() == DeviceKind::Cuda && rung.deterministic) {
                let mut first: Option<Vec<u8>> = None;
                for caps in whole_and_reduced(&cuda) {
                    let Some(plan) = claimed(&problem, &caps, rung) else { continue };
                    seen.insert(rung.name);
                    for mut beside in [Beside::nothing(), Beside::a_busy_stream(&cuda)] {
                        let mut scans = Repeated::new(&cuda, cuda.stream(), &plan, &input);
                        for call in 0..CALLS {
                            beside.keep_busy(2);
                            scans.enqueue();
                            let bytes = scans.bytes();
                            let first = first.get_or_insert_with(|| bytes.clone());
                            assert!(*first == bytes, "call {call} of {plan}");
                        }
                    }
                }
            }
        }
    }
    let wanted = ["rows", "columns", "axes"].into_iter().chain((cuda.caps().compute >= (9, 0)).then_some("column_ahead"));
    let missing: Vec<_> = wanted.filter(|name| !seen.contains(name)).collect();
    assert!(missing.is_empty(), "no problem was for {missing:?}");
}
