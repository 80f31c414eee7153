//! The CUDA device on a real GPU. Ignored (and shown as ignored) where there is none; run with `--include-ignored` on
//! a machine with a device.
#![cfg(feature = "cuda")]

use upsweep::Error;
use upsweep::device::caps::Caps;
use upsweep::device::cuda::{Cuda, Prepared};
use upsweep::flow::{DeviceMut, DeviceRef, Plan, Rung, Tuning};
use upsweep::ops::reduce::{self, Reduce, ReduceDeviceOperands, ReduceProblem};
use upsweep::types::{DType, Layout, Operator};

fn data(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32 - 0.25).collect()
}

fn prepared(cuda: &Cuda, rung: &str, operator: Operator, n: u64) -> Prepared<Reduce> {
    let problem = ReduceProblem::whole(operator, DType::F32, n).unwrap();
    let caps = Caps::Cuda(cuda.caps().clone());
    let rung = Rung::<Reduce>::find(caps.kind(), rung).unwrap();
    let plan = Plan::with_rung(&problem, &caps, rung, Tuning::default(), "a test".into()).unwrap();
    cuda.prepare(&plan).unwrap()
}

#[test]
fn without_a_driver_the_error_names_the_next_step() {
    match Cuda::new(0) {
        Ok(_) => {}
        Err(Error::Unavailable { next_step, .. }) => assert!(!next_step.is_empty()),
        Err(other) => panic!("{other}"),
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn the_one_line_calls_answer_as_the_cpu_does() {
    let cuda = Cuda::new(0).unwrap();
    let host = data(100_003);
    let x = cuda.upload(&host).unwrap();
    let exact: f64 = host.iter().map(|v| f64::from(*v)).sum();
    assert!((f64::from(reduce::sum(&cuda, &x).unwrap()) - exact).abs() <= 1e-6 * host.len() as f64);
    let largest = host.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    assert_eq!(reduce::max(&cuda, &x).unwrap(), largest);
    assert_eq!(reduce::argmax(&cuda, &x).unwrap(), host.iter().position(|v| *v == largest).unwrap() as u64);
    let layout = Layout::contiguous(&[7, 14_286]).unwrap();
    let rows = reduce::reduce::<_, f32, f32>(&cuda, Operator::Max, &x, Some(&layout), Some(&[1])).unwrap();
    assert_eq!(rows.shape, [7]);
    for (row, value) in rows.values.iter().enumerate() {
        let expected = host[row * 14_286..][..14_286].iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(*value, expected);
    }
    let empty = cuda.upload::<f32>(&[]).unwrap();
    let nothing = Layout::contiguous(&[0]).unwrap();
    assert_eq!(reduce::reduce::<_, f32, f32>(&cuda, Operator::Sum, &empty, Some(&nothing), None).unwrap().values, [0.0]);
    assert!(matches!(
        reduce::reduce::<_, f32, f32>(&cuda, Operator::Max, &empty, Some(&nothing), None),
        Err(Error::EmptyInput { .. })
    ));
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_graph_replays_with_changed_inputs_and_drops_in_any_order() {
    for rung in ["published_words", "bulk_copy", "last_block", "multi_pass", "atomic"] {
        for order in 0..2 {
            let cuda = Cuda::new(0).unwrap();
            // SAFETY: this context's slices are used on one stream at a time, and every use is waited for below.
            unsafe { cuda.context().disable_event_tracking() };
            let n = 300_007;
            let stream = cuda.context().new_stream().unwrap();
            let mut plan = prepared(&cuda, rung, Operator::Sum, n);
            let mut input = stream.clone_htod(&data(n as usize)).unwrap();
            let mut output = stream.clone_htod(&[f32::NAN]).unwrap();
            let scratch = stream.alloc_zeros::<u8>(plan.scratch_bytes().max(1) as usize).unwrap();
            let scratch_at = DeviceRef::of::<u8, _>(&scratch, &stream);
            // SAFETY: operands and scratch live until the graph's last replay was waited for.
            let graph = unsafe {
                cuda.capture(&stream, |capture| {
                    let operands = ReduceDeviceOperands {
                        input: DeviceRef::of::<f32, _>(&input, &stream),
                        output: DeviceMut::of::<f32, _>(&mut output, &stream),
                    };
                    capture.enqueue(&mut plan, operands, (scratch_at.address(), scratch_at.len()))
                })
            }
            .unwrap();
            if order == 0 {
                drop(plan);
                plan = prepared(&cuda, rung, Operator::Sum, n);
            }
            for replay in 0..3u32 {
                let host: Vec<f32> = data(n as usize).iter().map(|v| v * (replay + 1) as f32).collect();
                stream.memcpy_htod(&host, &mut input).unwrap();
                graph.replay().unwrap();
                graph.wait().unwrap();
                let got = stream.clone_dtoh(&output).unwrap()[0];
                stream.synchronize().unwrap();
                let exact: f64 = host.iter().map(|v| f64::from(*v)).sum();
                assert!((f64::from(got) - exact).abs() <= 1e-6 * exact.abs().max(n as f64), "{rung}: {got} {exact}");
            }
            if order == 0 {
                drop(input);
                drop(output);
                drop(graph);
                drop(plan);
            } else {
                drop(graph);
                drop(plan);
                drop(scratch);
                drop(output);
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn the_bits_do_not_depend_on_address_stream_or_run() {
    let cuda = Cuda::new(0).unwrap();
    for n in [1usize, 40, 1000, 65_537, 3_000_001] {
        for rung in ["published_words", "bulk_copy", "last_block", "loads_in_flight"] {
            let mut bits = std::collections::BTreeSet::new();
            for offset in 0..8usize {
                let mut host = vec![f32::NAN; offset];
                host.extend(data(n));
                host.push(f32::NAN);
                let problem = ReduceProblem::new(
                    Operator::Sum,
                    DType::F32,
                    &Layout::strided(&[n as u64], &[1], offset as u64).unwrap(),
                    None,
                )
                .unwrap();
                let x = cuda.upload(&host).unwrap();
                for _ in 0..3 {
                    let got = reduce::reduce_with_rung::<_, f32, f32>(&cuda, &problem, rung, Tuning::default(), &x).unwrap();
                    bits.insert(got.values[0].to_bits());
                }
            }
            assert_eq!(bits.len(), 1, "{rung} at {n}");
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn clones_serve_several_streams_beside_each_other() {
    let cuda = Cuda::new(0).unwrap();
    let n = 5_000_011u64;
    let x = cuda.upload(&data(n as usize)).unwrap();
    let first = prepared(&cuda, "published_words", Operator::Sum, n);
    let mut plans: Vec<_> = (0..4).map(|_| first.try_clone().unwrap()).collect();
    let streams: Vec<_> = (0..4).map(|_| cuda.context().new_stream().unwrap()).collect();
    let mut outputs: Vec<_> = (0..4).map(|_| cuda.upload(&[f32::NAN]).unwrap()).collect();
    cuda.stream().synchronize().unwrap();
    for _ in 0..50 {
        for ((plan, stream), output) in plans.iter_mut().zip(&streams).zip(&mut outputs) {
            let operands = ReduceDeviceOperands {
                input: DeviceRef::of::<f32, _>(&x, stream),
                output: DeviceMut::of::<f32, _>(output, stream),
            };
            // SAFETY: everything outlives the synchronisation below; each output belongs to one stream.
            unsafe { plan.enqueue(stream, operands, (0, 0)) }.unwrap();
        }
    }
    streams.iter().for_each(|s| s.synchronize().unwrap());
    plans.iter().for_each(|p| p.check().unwrap());
    let bits: std::collections::BTreeSet<u32> = outputs.iter().map(|o| cuda.download(o).unwrap()[0].to_bits()).collect();
    assert_eq!(bits.len(), 1);
}

#[test]
#[ignore = "needs a CUDA device"]
fn wrong_operands_are_refused_before_any_launch() {
    let cuda = Cuda::new(0).unwrap();
    let stream = cuda.stream().clone();
    let mut plan = prepared(&cuda, "multi_pass", Operator::Sum, 100_000);
    assert!(plan.scratch_bytes() > 0);
    let x = cuda.upload(&data(100_000)).unwrap();
    let short = cuda.upload(&data(99_999)).unwrap();
    let wide = cuda.upload(&[0.0f64; 100_000]).unwrap();
    let mut y = cuda.upload(&[7.0f32]).unwrap();
    let input = |which: u32| match which {
        0 => DeviceRef::of::<f32, _>(&x, &stream),
        1 => DeviceRef::of::<f32, _>(&short, &stream),
        _ => DeviceRef::of::<f64, _>(&wide, &stream),
    };
    for (which, scratch) in [(0, 0), (1, 1 << 20), (2, 1 << 20)] {
        let operands = ReduceDeviceOperands { input: input(which), output: DeviceMut::of::<f32, _>(&mut y, &stream) };
        // SAFETY: refused before anything is enqueued.
        let refused = unsafe { plan.enqueue(&stream, operands, (0, scratch)) };
        assert!(matches!(refused, Err(Error::LengthMismatch { .. } | Error::DTypeMismatch { .. })), "{refused:?}");
    }
    assert_eq!(cuda.download(&y).unwrap(), [7.0]);
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_kernel_cache_entry_that_was_damaged_is_rebuilt() {
    let cuda = Cuda::new(0).unwrap();
    let Some(folder) = cuda.cache().folder().map(std::path::Path::to_path_buf) else { return };
    drop(prepared(&cuda, "non_divergent", Operator::Sum, 1 << 20));
    let mut damaged = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
        std::fs::write(&path, bytes).unwrap();
        damaged += 1;
    }
    assert!(damaged > 0);
    // A new device object has no modules in memory and must go through the damaged folder.
    let again = Cuda::new(0).unwrap();
    let x = again.upload(&data(1 << 20)).unwrap();
    let problem = ReduceProblem::whole(Operator::Sum, DType::F32, 1 << 20).unwrap();
    let got = reduce::reduce_with_rung::<_, f32, f32>(&again, &problem, "non_divergent", Tuning::default(), &x).unwrap();
    let exact: f64 = data(1 << 20).iter().map(|v| f64::from(*v)).sum();
    assert!((f64::from(got.values[0]) - exact).abs() <= 1.0);
}
