//! The bodies of the fuzz targets: plain functions over arbitrary bytes that must return. They also run as bounded
//! property tests (`tests/properties.rs`).

use crate::device::cpu_caps;
use crate::tensor::{Tensor, list_safetensors, read_npy, read_safetensors, write_npy};
use std::io::Cursor;
use upsweep::device::caps::{Caps, CudaCaps};
use upsweep::ops::reduce::{ReduceProblem, plan};
use upsweep::types::{Accuracy, DType, Layout, Operator};

/// Any bytes as an `.npy` file: a tensor that lies within its memory and survives a round trip, or a typed error.
pub fn npy(bytes: &[u8]) {
    let Ok(tensor) = read_npy(&mut Cursor::new(bytes)) else {
        return;
    };
    check(&tensor, bytes.len());
    let mut written = Vec::new();
    write_npy(&mut written, &tensor).expect("memory takes every byte");
    let back = read_npy(&mut Cursor::new(&written)).expect("what was written can be read");
    assert_eq!((back.dtype(), back.bytes()), (tensor.dtype(), tensor.bytes()));
}

/// Any bytes as a `.safetensors` file: every listed tensor is within its memory, or a typed error.
pub fn safetensors(bytes: &[u8]) {
    let mut reader = Cursor::new(bytes);
    if let Ok(tensor) = read_safetensors(&mut reader, None) {
        check(&tensor, bytes.len());
    }
    for (name, _, _) in list_safetensors(&mut reader).unwrap_or_default().iter().take(16) {
        if let Ok(tensor) = read_safetensors(&mut reader, Some(name)) {
            check(&tensor, bytes.len());
        }
    }
}

fn check(tensor: &Tensor, file_length: usize) {
    assert!(tensor.bytes().len() <= file_length, "a tensor is no larger than its file");
    assert_eq!(tensor.layout().required_len(), tensor.len() as u64);
    assert_eq!(tensor.host_slice().len(), tensor.len(), "every element is valid");
    // Any operator on any tensor: an answer or a typed error.
    for operator in Operator::all() {
        let _ = ReduceProblem::new(operator, tensor.dtype(), tensor.layout(), None);
    }
}

/// Any bytes as a problem: arbitrary shapes, strides, offset, axes, operator, dtype and accuracy.
///
/// Building and planning (for every known device) never panics, and no index of an accepted problem lies outside
/// `required_len`.
pub fn problem(bytes: &[u8]) {
    let mut source = Source(bytes);
    let rank = source.byte() as usize % 12;
    let shape: Vec<u64> = (0..rank).map(|_| source.extent()).collect();
    let strides: Vec<i64> = (0..rank).map(|_| source.stride()).collect();
    let contiguous = source.byte() % 2 == 0;
    let layout = if contiguous { Layout::contiguous(&shape) } else { Layout::strided(&shape, &strides, source.extent()) };
    let axes: Vec<i64> = (0..source.byte() % 5).map(|_| source.byte() as i8 as i64 % 13).collect();
    let axes = (source.byte() % 4 != 0).then_some(axes.as_slice());
    let operator = pick(Operator::all(), source.byte());
    let dtype = pick(DType::all(), source.byte());
    let accuracy = if source.byte() % 2 == 0 { Accuracy::Fast } else { Accuracy::Compensated };
    let Ok(layout) = layout else {
        return;
    };
    let Ok(problem) = ReduceProblem::new(operator, dtype, &layout, axes).and_then(|p| p.with_accuracy(accuracy)) else {
        return;
    };
    let shape = problem.shape();
    assert_eq!(shape.outputs as u128 * shape.length as u128, layout.len() as u128);
    let product = shape.output_shape.iter().try_fold(1u64, |n, e| n.checked_mul(*e));
    assert!(shape.output_shape.contains(&0) || product == Some(shape.outputs), "{shape:?}");
    if shape.outputs > 0 && shape.length > 0 {
        // Corners and a few inner positions; strides are linear, so extremes are at corners.
        for _ in 0..64 {
            let (output, position) = (source.within(shape.outputs), source.within(shape.length));
            assert!(shape.index(output, position) < problem.required_len(), "{problem:?}: output {output}, position {position}");
        }
    }
    let _ = problem.bytes();
    let _ = problem.check_operands((dtype, problem.required_len()), (problem.output_dtype(), shape.outputs));
    let devices = std::iter::once(Caps::Cpu(cpu_caps())).chain(CudaCaps::known().into_iter().map(Caps::Cuda));
    for caps in devices {
        if let Ok(plan) = plan(&problem, &caps) {
            let _ = plan.to_string();
        }
    }
}

fn pick<T>(mut all: impl ExactSizeIterator<Item = T>, choice: u8) -> T {
    let position = choice as usize % all.len();
    all.nth(position).expect("the position is within the table")
}

/// Bytes as numbers; zeros when they run out.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | self.byte() as u64)
    }

    /// Mostly small, now and then huge or at an edge.
    fn extent(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=199 => small as u64 % 9,
            200..=219 => 1 << (self.byte() % 64),
            220..=239 => self.word(),
            240..=249 => self.word() >> 33,
            _ => u64::MAX,
        }
    }

    fn stride(&mut self) -> i64 {
        match self.byte() {
            small @ 0..=199 => small as i64 % 19 - 9,
            200..=219 => self.word() as i64 >> 33,
            220..=239 => self.word() as i64,
            240..=247 => i64::MIN,
            _ => i64::MAX,
        }
    }

    /// A position below `end`, at either end half of the time.
    fn within(&mut self, end: u64) -> u64 {
        match self.byte() {
            0..=63 => 0,
            64..=127 => end - 1,
            _ => self.word() % end,
        }
    }
}
