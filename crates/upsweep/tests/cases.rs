//! Public fault reports of other libraries that a reduction can have, with the right answers: one test a class, on the
//! CPU and (ignored, and shown as ignored, where there is none) on a CUDA device. `repo#number` names the report.

#![cfg(feature = "cpu")]

use half::{bf16, f16};
use upsweep::Error;
use upsweep::device::cpu::Cpu;
use upsweep::ops::reduce::{self, ReduceDevice};
use upsweep::types::{Element, Layout, Operator};

/// A device that the cases can put host data on.
trait TestDevice: ReduceDevice {
    fn put<T: Element + Clone>(&self, data: &[T]) -> Box<Self::Memory<T>>;
}

impl TestDevice for Cpu {
    fn put<T: Element + Clone>(&self, data: &[T]) -> Box<[T]> {
        data.into()
    }
}

#[cfg(feature = "cuda")]
impl TestDevice for upsweep::device::cuda::Cuda {
    fn put<T: Element + Clone>(&self, data: &[T]) -> Box<Self::Memory<T>> {
        use upsweep::types::{DType, dispatch};
        let dtype: DType = T::DTYPE;
        // The upload wants the concrete type; each dtype is exactly one.
        dispatch!(dtype, U => {
            // SAFETY: T and U have the same DTYPE, hence are the same type.
            let same = unsafe { std::slice::from_raw_parts(data.as_ptr().cast::<U>(), data.len()) };
            let slice = self.upload::<U>(same).unwrap();
            // SAFETY: as above; the box keeps its allocation.
            unsafe { Box::from_raw(Box::into_raw(Box::new(slice)).cast()) }
        })
    }
}

fn whole<D: TestDevice, T: Element, R: Element>(device: &D, operator: Operator, data: &[T]) -> Result<R, Error> {
    let layout = Layout::contiguous(&[data.len() as u64]).unwrap();
    let reduced = reduce::reduce::<D, T, R>(device, operator, &device.put(data), Some(&layout), None)?;
    Ok(reduced.values[0])
}

fn along<D: TestDevice, T: Element, R: Element>(
    device: &D,
    operator: Operator,
    data: &[T],
    shape: &[u64],
    axis: i64,
) -> Result<Vec<R>, Error> {
    let layout = Layout::contiguous(shape).unwrap();
    Ok(reduce::reduce::<D, T, R>(device, operator, &device.put(data), Some(&layout), Some(&[axis]))?.values)
}

/// One test a class of fault, on both devices.
macro_rules! classes {
    ($($name:ident: |$device:ident| $body:block)*) => {
        $(fn $name<D: TestDevice>($device: &D) $body)*

        mod cpu {
            use super::*;
            $(#[test] fn $name() { super::$name(&Cpu::new()) })*
        }

        #[cfg(feature = "cuda")]
        mod cuda {
            $(#[test] #[ignore = "needs a CUDA device"] fn $name() {
                super::$name(&upsweep::device::cuda::Cuda::new(0).unwrap())
            })*
        }
    };
}

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

classes! {
    // cub#642, cub#662: a finite sentinel as the identity of a float extremum.
    extremum_of_infinities: |device| {
        for n in [1usize, 10, 1000, 100_000] {
            assert_eq!(whole::<_, f32, f32>(device, Operator::Min, &vec![INF; n]).unwrap(), INF);
            assert_eq!(whole::<_, f32, f32>(device, Operator::Max, &vec![-INF; n]).unwrap(), -INF);
            assert_eq!(whole::<_, f32, u64>(device, Operator::ArgMin, &vec![INF; n]).unwrap(), 0);
            assert_eq!(whole::<_, f32, u64>(device, Operator::ArgMax, &vec![-INF; n]).unwrap(), 0);
        }
    }
    // CNTK#2280: the smallest positive float as the seed.
    negative_values_only: |device| {
        assert_eq!(whole::<_, f32, u64>(device, Operator::ArgMax, &[-4.0f32, -5.0, -6.0]).unwrap(), 0);
        assert_eq!(whole::<_, f32, f32>(device, Operator::Max, &[-4.0f32, -5.0, -6.0]).unwrap(), -4.0);
        // CuArrays.jl#304: by magnitude.
        let falling: Vec<f32> = (1..=10).map(|i| -(i as f32)).collect();
        assert_eq!(whole::<_, f32, u64>(device, Operator::ArgMax, &falling).unwrap(), 0);
    }
    // candle#3199: integer extrema seeded from float infinities.
    integer_identities: |device| {
        let x = [-5i64, -3, -9];
        assert_eq!(whole::<_, i64, i64>(device, Operator::Max, &x).unwrap(), -3);
        assert_eq!(whole::<_, i64, i64>(device, Operator::Min, &x).unwrap(), -9);
        assert_eq!(whole::<_, i64, u64>(device, Operator::ArgMax, &x).unwrap(), 1);
        assert_eq!(whole::<_, i64, u64>(device, Operator::ArgMin, &x).unwrap(), 2);
        for extreme in [i64::MIN, i64::MAX] {
            for operator in [Operator::Max, Operator::Min] {
                assert_eq!(whole::<_, i64, i64>(device, operator, &[extreme]).unwrap(), extreme);
            }
            assert_eq!(whole::<_, i64, u64>(device, Operator::ArgMax, &[extreme]).unwrap(), 0);
        }
        for extreme in [0u8, 255] {
            for operator in [Operator::Max, Operator::Min] {
                assert_eq!(whole::<_, u8, u8>(device, operator, &[extreme]).unwrap(), extreme);
            }
        }
    }
    // cumo#219: a seed survives when no element compares; the answer depends on the order.
    extremum_of_nans: |device| {
        for operator in [Operator::Min, Operator::Max, Operator::NanMin, Operator::NanMax] {
            assert!(whole::<_, f32, f32>(device, operator, &[NAN, NAN]).unwrap().is_nan());
        }
        for x in [[3.0, 1.0, 7.0, NAN], [NAN, 3.0, 1.0, 7.0]] {
            assert!(whole::<_, f32, f32>(device, Operator::Max, &x).unwrap().is_nan());
            assert!(whole::<_, f32, f32>(device, Operator::Min, &x).unwrap().is_nan());
            assert_eq!(whole::<_, f32, f32>(device, Operator::NanMax, &x).unwrap(), 7.0);
            assert_eq!(whole::<_, f32, f32>(device, Operator::NanMin, &x).unwrap(), 1.0);
        }
    }
    // pytorch#28380, cupy#266: only a reduced extent of zero is empty.
    empty_extents: |device| {
        let nothing: [f32; 0] = [];
        assert!(along::<_, f32, f32>(device, Operator::Max, &nothing, &[0, 4], 1).unwrap().is_empty());
        assert!(along::<_, f32, u64>(device, Operator::ArgMax, &nothing, &[0, 1], 1).unwrap().is_empty());
        assert_eq!(along::<_, f32, f32>(device, Operator::Sum, &nothing, &[4, 0], 1).unwrap(), [0.0; 4]);
        assert_eq!(along::<_, f32, f32>(device, Operator::Sum, &nothing, &[0, 4], 0).unwrap(), [0.0; 4]);
        assert_eq!(along::<_, f32, f32>(device, Operator::Prod, &nothing, &[0, 4], 0).unwrap(), [1.0; 4]);
        assert_eq!(along::<_, f32, f32>(device, Operator::LogSumExp, &nothing, &[0, 2], 0).unwrap(), [-INF; 2]);
        assert!(along::<_, f32, f32>(device, Operator::Mean, &nothing, &[0, 2], 0).unwrap().iter().all(|x| x.is_nan()));
        assert!(matches!(along::<_, f32, f32>(device, Operator::Max, &nothing, &[4, 0], 1), Err(Error::EmptyInput { .. })));
        assert_eq!(whole::<_, f32, f32>(device, Operator::Sum, &nothing).unwrap(), 0.0);
        assert_eq!(whole::<_, bool, u64>(device, Operator::Sum, &[]).unwrap(), 0);
        assert!(matches!(whole::<_, f32, f32>(device, Operator::Min, &nothing), Err(Error::EmptyInput { .. })));
    }
    // cuda-samples#21, and rustc's -0.0 as the sum of nothing: compared by value.
    one_element: |device| {
        assert_eq!(whole::<_, f32, f32>(device, Operator::Sum, &[0.1f32]).unwrap(), 0.1);
        assert_eq!(whole::<_, f32, f32>(device, Operator::Sum, &[-0.0f32, -0.0]).unwrap(), 0.0);
        assert_eq!(whole::<_, f32, f32>(device, Operator::Mean, &[0.1f32]).unwrap(), 0.1);
        assert_eq!(whole::<_, f32, f32>(device, Operator::LogSumExp, &[0.1f32]).unwrap(), 0.1);
    }
    // burn#4814, arrayfire#860, FlyDSL#939: ordered comparisons lose a NaN.
    nan_in_extrema: |device| {
        assert!(whole::<_, f32, f32>(device, Operator::Max, &[1.0f32, NAN, 3.0]).unwrap().is_nan());
        assert!(whole::<_, f32, f32>(device, Operator::Min, &[1.0f32, NAN, 3.0]).unwrap().is_nan());
        assert_eq!(whole::<_, f32, u64>(device, Operator::ArgMax, &[1.0f32, NAN, 3.0]).unwrap(), 1);
        assert_eq!(whole::<_, f32, u64>(device, Operator::ArgMin, &[1.0f32, NAN, NAN]).unwrap(), 1);
        assert!(whole::<_, f32, f32>(device, Operator::Max, &[0.0f32, 0.1315, 0.7556, NAN, 0.5328]).unwrap().is_nan());
        assert_eq!(whole::<_, f32, f32>(device, Operator::NanMax, &[0.0f32, 0.1315, 0.7556, NAN, 0.5328]).unwrap(), 0.7556);
        // Wherever it stands and whatever N is.
        for n in [2usize, 33, 257, 1025, 70_001] {
            for place in [0, n / 2, n - 1] {
                let mut x: Vec<f32> = (0..n).map(|i| i as f32).collect();
                x[place] = NAN;
                for operator in [Operator::Max, Operator::Min, Operator::Sum, Operator::Prod, Operator::Mean, Operator::LogSumExp] {
                    assert!(whole::<_, f32, f32>(device, operator, &x).unwrap().is_nan(), "{operator} {n} {place}");
                }
                assert_eq!(whole::<_, f32, u64>(device, Operator::ArgMax, &x).unwrap(), place as u64);
                assert_eq!(whole::<_, f32, u64>(device, Operator::ArgMin, &x).unwrap(), place as u64);
            }
        }
    }
    // triton#9022, triton#10291.
    nan_beats_infinity: |device| {
        assert_eq!(whole::<_, f32, u64>(device, Operator::ArgMax, &[INF, NAN]).unwrap(), 1);
        assert_eq!(whole::<_, f32, u64>(device, Operator::ArgMax, &[NAN, INF]).unwrap(), 0);
        assert_eq!(whole::<_, f32, u64>(device, Operator::ArgMax, &[NAN, 6.0, 8.0]).unwrap(), 0);
    }
    // q27#14: zeros ordered by their sign bit.
    signed_zeros_tie: |device| {
        assert_eq!(whole::<_, f32, u64>(device, Operator::ArgMax, &[-0.0f32, 0.0]).unwrap(), 0);
        assert_eq!(whole::<_, f32, u64>(device, Operator::ArgMax, &[0.0f32, -0.0]).unwrap(), 0);
        assert_eq!(whole::<_, f32, u64>(device, Operator::ArgMin, &[0.0f32, -0.0]).unwrap(), 0);
    }
    // onnxruntime#28461, mlx#576: logsumexp of infinities.
    logsumexp_of_infinities: |device| {
        for n in [1usize, 2, 5, 33, 1025] {
            assert_eq!(whole::<_, f32, f32>(device, Operator::LogSumExp, &vec![-INF; n]).unwrap(), -INF);
        }
        let rows = along::<_, f32, f32>(device, Operator::LogSumExp, &[INF, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3], 1).unwrap();
        assert_eq!(rows[0], INF);
        assert!((rows[1] - 6.407_606).abs() < 1e-5);
        let mut late = vec![-INF; 512];
        late[256..].fill(1.0);
        assert!((whole::<_, f32, f32>(device, Operator::LogSumExp, &late).unwrap() - (1.0 + 256f32.ln())).abs() < 1e-5);
        // last#43: 65536 zeros in f16.
        let zeros = vec![f16::ZERO; 65_536];
        assert_eq!(whole::<_, f16, f16>(device, Operator::LogSumExp, &zeros).unwrap(), f16::from_f64(11.090_355));
    }
    // cub#129, [seed]: a second pass over one block only; FastNN#9 is its argmax.
    many_blocks: |device| {
        let n = (1 << 22) + 1;
        assert_eq!(whole::<_, u8, u64>(device, Operator::Sum, &vec![1u8; n]).unwrap(), n as u64);
        let mut x = vec![0.0f32; n];
        x[n - 1] = 1.0;
        assert_eq!(whole::<_, f32, u64>(device, Operator::ArgMax, &x).unwrap(), n as u64 - 1);
        assert_eq!(whole::<_, f32, f32>(device, Operator::Sum, &vec![1.0f32; 1 << 25]).unwrap(), (1 << 25) as f32);
    }
    // cunn#150, DeepSpeed#1239: grids beyond 65535.
    many_rows: |device| {
        for rows in [65_536u64, 70_000] {
            let sums = along::<_, f32, f32>(device, Operator::Sum, &vec![0.5f32; rows as usize * 2], &[rows, 2], 1).unwrap();
            assert!(sums.len() == rows as usize && sums.iter().all(|s| *s == 1.0));
        }
    }
    // FlashAttention#2611: coordinate times stride in 32 bits; the tensor itself is a small view.
    wide_strides: |device| {
        // A row stride of zero elements stands for any stride whose product with the row leaves 32 bits; the memory is small.
        let x: Vec<f32> = (0..4).map(|i| i as f32).collect();
        let layout = Layout::strided(&[3_000_000_000, 2], &[0, 1], 1).unwrap();
        assert!(reduce::ReduceProblem::new(Operator::Sum, upsweep::types::DType::F32, &layout, Some(&[1])).is_ok());
        let layout = Layout::strided(&[2, 3], &[-1, 1], 1).unwrap();
        let sums = reduce::reduce::<D, f32, f32>(device, Operator::Sum, &device.put(&x), Some(&layout), Some(&[1])).unwrap();
        assert_eq!(sums.values, [1.0 + 2.0 + 3.0, 3.0]);
    }
    // tilelang#2542, cuda-oxide#1310: trees over sizes that are no power of two.
    odd_sizes: |device| {
        for n in [17i32, 33, 45, 48, 96, 100, 1000, 1023] {
            let x: Vec<i32> = (1..=n).collect();
            assert_eq!(whole::<_, i32, i64>(device, Operator::Sum, &x).unwrap(), i64::from(n) * i64::from(n + 1) / 2);
        }
    }
    // cumo#224: partials narrowed to the element type.
    wide_integer_sums: |device| {
        assert_eq!(whole::<_, i32, i64>(device, Operator::Sum, &[1i32 << 30; 4]).unwrap(), 4_294_967_296);
        let x: Vec<i32> = (0..100_000).collect();
        assert_eq!(whole::<_, i32, i64>(device, Operator::Sum, &x).unwrap(), 4_999_950_000);
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(whole::<_, u8, u64>(device, Operator::Sum, &bytes).unwrap(), 32_640);
        assert_eq!(whole::<_, bool, u64>(device, Operator::Sum, &[true; 300]).unwrap(), 300);
        assert_eq!(whole::<_, i64, i64>(device, Operator::Sum, &[i64::MAX, 1]).unwrap(), i64::MIN);
        assert_eq!(whole::<_, i32, i32>(device, Operator::WrappingSum, &[i32::MAX, 1]).unwrap(), i32::MIN);
    }
    // arbor#2247: a shuffle through int loses fractions.
    fractions: |device| {
        assert_eq!(whole::<_, f32, f32>(device, Operator::Sum, &[0.5f32; 32]).unwrap(), 16.0);
        assert_eq!(whole::<_, f64, f64>(device, Operator::Sum, &[0.25f64; 1000]).unwrap(), 250.0);
    }
    // Learn-CUDA-Programming#15: the second pass reads the input again.
    second_pass_reads_partials: |device| {
        let x: Vec<f32> = (0..1 << 20).map(|i| if i < 4096 { 2.0 } else { 1.0 }).collect();
        assert_eq!(whole::<_, f32, f32>(device, Operator::Sum, &x).unwrap(), ((1 << 20) + 4096) as f32);
    }
    // pytorch#10370, #22853, tinygrad#8108, cupy#8784: ties.
    ties_go_to_the_lowest_index: |device| {
        let rows = [1.0f32, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
        assert_eq!(along::<_, f32, u64>(device, Operator::ArgMax, &rows, &[3, 4], 1).unwrap(), [0, 1, 0]);
        assert_eq!(along::<_, i32, u64>(device, Operator::ArgMax, &[2, 3, 0, 3, 3, 1, 3, 1, 3, 1], &[2, 5], 1).unwrap(), [1, 1]);
        for n in [2usize, 16, 1000, 100_000] {
            assert_eq!(whole::<_, i32, u64>(device, Operator::ArgMax, &vec![-3; n]).unwrap(), 0);
            assert_eq!(whole::<_, f32, u64>(device, Operator::ArgMin, &vec![2.0; n]).unwrap(), 0);
        }
        assert_eq!(whole::<_, f32, u64>(device, Operator::ArgMax, &[0.0f32, 1.0]).unwrap(), 1);
    }
    // pytorch#2391, burn#4770: f16 overflows inside.
    f16_accumulates_wide: |device| {
        let mut x = vec![f16::from_f32(32000.0); 4];
        x.extend([f16::from_f32(-32000.0); 4]);
        assert_eq!(whole::<_, f16, f16>(device, Operator::Sum, &x).unwrap(), f16::ZERO);
        assert_eq!(whole::<_, f16, f16>(device, Operator::Mean, &[f16::from_f32(60000.0); 2]).unwrap(), f16::from_f32(60000.0));
        assert_eq!(along::<_, f16, f16>(device, Operator::Mean, &[f16::from_f32(60000.0); 4], &[2, 2], 0).unwrap()[1], f16::from_f32(60000.0));
        assert_eq!(whole::<_, bf16, bf16>(device, Operator::Sum, &[bf16::ONE; 1000]).unwrap(), bf16::from_f32(1000.0));
    }
    // tvm#8540, pytorch#56325: vector loads at odd offsets; numbers must not change.
    odd_offsets: |device| {
        for n in 0..40u64 {
            for offset in 0..8u64 {
                let x: Vec<f16> = (0..offset + n + 1).map(|i| f16::from_f32(if i < offset || i == offset + n { f32::NAN } else { i as f32 })).collect();
                let layout = Layout::strided(&[n], &[1], offset).unwrap();
                let sum = reduce::reduce::<D, f16, f16>(device, Operator::Sum, &device.put(&x), Some(&layout), None).unwrap().values[0];
                let exact: u64 = (offset..offset + n).sum();
                assert_eq!(sum, f16::from_f32(exact as f32), "{n} at {offset}");
            }
        }
    }
    // Theano#1302: rows beyond a block's shared memory.
    long_rows: |device| {
        for columns in [1u64, 2, 1023, 1025, 12_288, 50_257, 131_072, (1 << 20) + 13] {
            let x = vec![1.0f32; 2 * columns as usize];
            assert_eq!(along::<_, f32, f32>(device, Operator::Sum, &x, &[2, columns], 1).unwrap(), [columns as f32; 2]);
        }
    }
    // numpy#14909: one f32 accumulator sticks at 2^24.
    ones_beyond_2_to_24: |device| {
        let n = (1usize << 24) + 10_000;
        assert_eq!(whole::<_, f32, f32>(device, Operator::Sum, &vec![1.0f32; n]).unwrap(), n as f32);
    }
    // thinking-machines, RL-Kernel#337: the same row in another batch.
    batch_invariance: |device| {
        for columns in [100u64, 5000, 200_000] {
            let row: Vec<f32> = (0..columns).map(|i| ((i * 7919) % 1000) as f32 * 0.001 - 0.3).collect();
            let bits = |rows: usize| {
                let x = row.repeat(rows);
                let sums = along::<_, f32, f32>(device, Operator::Sum, &x, &[rows as u64, columns], 1).unwrap();
                sums.iter().map(|s| s.to_bits()).collect::<std::collections::BTreeSet<_>>()
            };
            let alone = bits(1);
            assert_eq!(alone.len(), 1);
            for rows in [2, 3, 9] {
                assert_eq!(bits(rows), alone, "{columns} columns, {rows} rows");
            }
        }
    }
}
