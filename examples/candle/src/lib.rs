//! Scans for [candle](candle_core): cumulative sums as a custom operation, with their gradient, and top-p sampling on top.
//!
//! candle's own `cumsum` multiplies by a triangular matrix, which takes time and memory quadratic in the axis
//! (huggingface/candle#2948). [`cumsum`] reads and writes every element once.
//!
//! The operation has a form for the CPU. A form for CUDA needs candle and upsweep to share one cudarc, and candle links it
//! dynamically where upsweep loads it at run time; the two cannot be built together.

use candle_core::{CpuStorage, CustomOp1, Error, Layout, Result, Shape, Tensor};
use upsweep::device::cpu::Cpu;
use upsweep::ops::scan::{self, ScanSpec};
use upsweep::types::{Element, Operator};

/// The cumulative sum along one dimension, from its first element on or, reversed, from its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CumulativeSum {
    /// The dimension.
    pub dim: usize,
    /// From the last element to the first.
    pub reverse: bool,
}

impl CumulativeSum {
    fn of<T: Element>(self, data: &[T], layout: &Layout) -> Result<Vec<T>> {
        let extents: Vec<u64> = layout.dims().iter().map(|extent| *extent as u64).collect();
        let strides: Vec<i64> = layout.stride().iter().map(|stride| *stride as i64).collect();
        let view = upsweep::types::Layout::strided(&extents, &strides, layout.start_offset() as u64).map_err(Error::wrap)?;
        let spec = ScanSpec::inclusive(Operator::Sum);
        let spec = if self.reverse { spec.reversed() } else { spec };
        let sums = scan::scan::<_, T, T>(&Cpu::new(), spec, data, Some(&view), Some(self.dim as i64)).map_err(Error::wrap)?;
        Ok(sums.values)
    }
}

impl CustomOp1 for CumulativeSum {
    fn name(&self) -> &'static str {
        "upsweep-cumsum"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let sums = match storage {
            CpuStorage::F32(data) => CpuStorage::F32(self.of(data, layout)?),
            CpuStorage::F64(data) => CpuStorage::F64(self.of(data, layout)?),
            CpuStorage::F16(data) => CpuStorage::F16(self.of(data, layout)?),
            CpuStorage::BF16(data) => CpuStorage::BF16(self.of(data, layout)?),
            CpuStorage::I64(data) => CpuStorage::I64(self.of(data, layout)?),
            // Sums of narrower integers have 64 bits, for which candle has no type of the same sign.
            other => {
                let dtype = candle_core::backend::BackendStorage::dtype(other);
                return Err(Error::UnsupportedDTypeForOp(dtype, self.name()).bt());
            }
        };
        Ok((sums, layout.shape().clone()))
    }

    // An element is part of every sum behind it, so its gradient is the sum of theirs: the scan the other way round.
    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        gradient.apply_op1(CumulativeSum { reverse: !self.reverse, ..*self }).map(Some)
    }
}

/// The cumulative sum of a tensor of any strides along a dimension: f32, f64, f16, bf16 (both with f32 sums) or i64.
///
/// # Errors
/// A dimension that the tensor does not have, another dtype, a tensor that is not on the CPU.
pub fn cumsum<D: candle_core::shape::Dim>(x: &Tensor, dim: D) -> Result<Tensor> {
    let dim = dim.to_index(x.shape(), "upsweep-cumsum")?;
    x.apply_op1(CumulativeSum { dim, reverse: false })
}

/// Draws one index a row by top-p sampling: of the most probable tokens as many as together reach `p`, in proportion to
/// their probabilities. `probabilities` has shape (rows, tokens); `uniform` has one number of [0, 1) a row. Returns
/// shape (rows), u32.
///
/// # Errors
/// A `p` outside (0, 1], shapes that do not fit.
pub fn sample_top_p(probabilities: &Tensor, p: f64, uniform: &Tensor) -> Result<Tensor> {
    if !(p > 0.0 && p <= 1.0) {
        candle_core::bail!("p is {p}; allowed are numbers above 0, up to 1");
    }
    let (rows, tokens) = probabilities.dims2()?;
    if uniform.dims1()? != rows {
        candle_core::bail!("uniform has shape {:?}; allowed is one number for each of the {rows} rows", uniform.shape());
    }
    let (sorted, indices) = probabilities.contiguous()?.sort_last_dim(false)?;
    let mass = cumsum(&sorted, 1)?;
    // A token is kept if those before it do not reach p; the first one always is.
    let before = (&mass - &sorted)?;
    let kept = before.lt(p)?.to_dtype(sorted.dtype())?;
    let kept_mass = cumsum(&(&sorted * &kept)?, 1)?;
    let threshold = kept_mass.narrow(1, tokens - 1, 1)?.broadcast_mul(&uniform.to_dtype(sorted.dtype())?.reshape((rows, 1))?)?;
    // The first token whose mass passes the threshold: as many masses do not.
    let below = kept_mass.broadcast_le(&threshold)?.to_dtype(candle_core::DType::F32)?.sum(1)?;
    let last_kept = (kept.to_dtype(candle_core::DType::F32)?.sum(1)? - 1.0)?;
    let position = below.minimum(&last_kept)?.to_dtype(candle_core::DType::U32)?;
    indices.gather(&position.reshape((rows, 1))?, 1)?.reshape(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device, Var};

    fn close(a: &Tensor, b: &Tensor, bound: f64) {
        let difference = (a.to_dtype(DType::F64).unwrap() - b.to_dtype(DType::F64).unwrap()).unwrap().abs().unwrap();
        let most: f64 = difference.flatten_all().unwrap().max(0).unwrap().to_scalar().unwrap();
        assert!(most <= bound, "{most} > {bound}");
    }

    #[test]
    fn equals_candles_own_along_every_dimension_and_in_every_layout() {
        let x = Tensor::randn(0f32, 1f32, (7, 33, 20), &Device::Cpu).unwrap();
        for dim in 0..3 {
            close(&cumsum(&x, dim).unwrap(), &x.cumsum(dim).unwrap(), 1e-4);
            let transposed = x.transpose(0, 2).unwrap();
            close(&cumsum(&transposed, dim).unwrap(), &transposed.contiguous().unwrap().cumsum(dim).unwrap(), 1e-4);
            let part = x.narrow(1, 5, 17).unwrap();
            close(&cumsum(&part, dim).unwrap(), &part.contiguous().unwrap().cumsum(dim).unwrap(), 1e-4);
        }
        let counts = Tensor::arange(0i64, 1000, &Device::Cpu).unwrap();
        let sums = cumsum(&counts, 0).unwrap().to_vec1::<i64>().unwrap();
        assert_eq!(sums[999], 999 * 1000 / 2);
        let half = x.to_dtype(DType::BF16).unwrap();
        assert_eq!(cumsum(&half, 1).unwrap().dtype(), DType::BF16);
    }

    #[test]
    fn a_long_axis_takes_no_quadratic_memory() {
        let n = 1 << 22;
        let sums = cumsum(&Tensor::ones(n, DType::F32, &Device::Cpu).unwrap(), 0).unwrap();
        assert_eq!(sums.narrow(0, n - 1, 1).unwrap().to_vec1::<f32>().unwrap(), [n as f32]);
    }

    #[test]
    fn the_gradient_is_the_scan_the_other_way_round() {
        let x = Var::new(&[[1f64, 2., 3.], [4., 5., 6.]], &Device::Cpu).unwrap();
        let weights = Tensor::new(&[[1f64, 10., 100.], [1., 2., 3.]], &Device::Cpu).unwrap();
        let loss = (cumsum(x.as_tensor(), 1).unwrap() * weights).unwrap().sum_all().unwrap();
        let gradient = loss.backward().unwrap().get(x.as_tensor()).unwrap().to_vec2::<f64>().unwrap();
        assert_eq!(gradient, [[111., 110., 100.], [6., 5., 3.]]);
    }

    #[test]
    fn wrong_input_is_an_error() {
        let x = Tensor::new(&[1u8, 2], &Device::Cpu).unwrap();
        assert!(cumsum(&x, 0).unwrap_err().to_string().contains("U8"));
        assert!(cumsum(&x, 1).is_err());
        let rows = Tensor::new(&[[0.5f32, 0.5]], &Device::Cpu).unwrap();
        let uniform = Tensor::new(&[0.5f32], &Device::Cpu).unwrap();
        assert!(sample_top_p(&rows, 0.0, &uniform).is_err() && sample_top_p(&rows, f64::NAN, &uniform).is_err());
        assert!(sample_top_p(&rows, 0.5, &Tensor::new(&[0.5f32, 0.5], &Device::Cpu).unwrap()).is_err());
    }

    #[test]
    fn top_p_draws_only_what_reaches_p_and_in_proportion() {
        let row = [0.05f32, 0.4, 0.15, 0.3, 0.1];
        let drawn = |p: f64, uniform: &[f32]| {
            let rows = Tensor::new(&row, &Device::Cpu).unwrap().reshape((1, 5)).unwrap().repeat((uniform.len(), 1)).unwrap();
            sample_top_p(&rows, p, &Tensor::new(uniform, &Device::Cpu).unwrap()).unwrap().to_vec1::<u32>().unwrap()
        };
        assert_eq!(drawn(0.3, &[0.0, 0.5, 0.999]), [1, 1, 1]);
        // 0.4 and 0.3 reach 0.7 together: shares of 4 and 3 sevenths.
        assert_eq!(drawn(0.69, &[0.0, 0.56, 0.58, 0.9999]), [1, 1, 3, 3]);
        let mut counts = [0usize; 5];
        let uniform: Vec<f32> = (0..10_000).map(|i| (i as f32 + 0.5) / 10_000.0).collect();
        drawn(1.0, &uniform).into_iter().for_each(|index| counts[index as usize] += 1);
        for (count, share) in counts.iter().zip(row) {
            assert!((*count as f32 - 10_000.0 * share).abs() <= 2.0, "{counts:?}");
        }
    }
}
