//! Shapes with 64-bit strides, and the set of axes an operation works along.

use crate::error::{Error, Result};

/// The most dimensions a kernel walks, after adjacent ones were merged.
pub const MAX_DIMS: usize = 8;

/// The most elements of a problem and of the memory it reaches, strides of zero included: byte counts and byte offsets
/// of every dtype then fit 64 bits.
pub const MAX_ELEMENTS: u64 = 1 << 58;

/// One dimension: extent in elements, stride in elements (may be zero or negative).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// Number of positions.
    pub extent: u64,
    /// Distance between neighbours, in elements.
    pub stride: i64,
}

/// Where the elements of an array lie: shape, strides and offset, all in elements of the array's dtype.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    dims: Vec<Dim>,
    offset: u64,
}

impl Layout {
    /// C order (last axis contiguous), offset 0.
    ///
    /// # Errors
    /// [`Error::InvalidLayout`] if the number of elements does not fit 63 bits.
    pub fn contiguous(shape: &[u64]) -> Result<Layout> {
        let mut strides = vec![0i64; shape.len()];
        let mut step: u64 = 1;
        for (axis, &extent) in shape.iter().enumerate().rev() {
            strides[axis] = step as i64;
            step = step.checked_mul(extent.max(1)).filter(|s| *s <= i64::MAX as u64).ok_or_else(|| too_large(shape))?;
        }
        Layout::strided(shape, &strides, 0)
    }

    /// Any strides (elements, may be zero or negative) and an offset (elements) of the first element from the base pointer.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] if shape and strides differ in rank; [`Error::InvalidLayout`] if an element lies before
    /// the base pointer, or an index does not fit 63 bits.
    pub fn strided(shape: &[u64], strides: &[i64], offset: u64) -> Result<Layout> {
        if shape.len() != strides.len() {
            return Err(Error::LengthMismatch {
                argument: "strides",
                got: strides.len() as u64,
                expected: shape.len() as u64,
                unit: "axes",
            });
        }
        let dims: Vec<Dim> = shape.iter().zip(strides).map(|(&extent, &stride)| Dim { extent, stride }).collect();
        let layout = Layout { dims, offset };
        layout.elements().ok_or_else(|| too_large(shape))?;
        layout.bounds()?;
        Ok(layout)
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[Dim] {
        &self.dims
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> Vec<u64> {
        self.dims.iter().map(|d| d.extent).collect()
    }

    /// Offset of the first element from the base pointer, in elements.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Number of elements (1 for a scalar, rank 0).
    fn elements(&self) -> Option<u64> {
        let product = self.dims.iter().try_fold(1u64, |n, d| n.checked_mul(d.extent));
        match product {
            Some(n) if n <= i64::MAX as u64 => Some(n),
            // A zero extent after an overflowing prefix is still an empty array.
            _ if self.dims.iter().any(|d| d.extent == 0) => Some(0),
            _ => None,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.elements().unwrap_or(0)
    }

    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many elements from the base pointer the memory must hold: one past the highest index that is read.
    pub fn required_len(&self) -> u64 {
        self.bounds().map(|(_, end)| end).unwrap_or(u64::MAX)
    }

    /// Lowest index and one past the highest.
    fn bounds(&self) -> Result<(u64, u64)> {
        if self.is_empty() {
            return Ok((self.offset, self.offset));
        }
        let (mut low, mut high) = (self.offset as i128, self.offset as i128);
        for d in &self.dims {
            let reach = (d.extent as i128 - 1) * d.stride as i128;
            if reach < 0 {
                low += reach;
            } else {
                high += reach;
            }
        }
        if low < 0 {
            return Err(Error::InvalidLayout {
                argument: "layout",
                problem: format!(
                    "offset {} with these strides reaches index {low}, before the base pointer; the lowest allowed index is 0",
                    self.offset
                ),
            });
        }
        if high >= i64::MAX as i128 {
            return Err(Error::InvalidLayout {
                argument: "layout",
                problem: format!("the highest index is {high}; indices must fit 63 bits"),
            });
        }
        Ok((low as u64, high as u64 + 1))
    }
}

fn too_large(shape: &[u64]) -> Error {
    Error::InvalidLayout { argument: "shape", problem: format!("the number of elements of {shape:?} does not fit 63 bits") }
}

/// A reduction's geometry in normal form: kept and reduced dimensions apart, extents of 1 dropped, neighbours that can
/// be walked as one merged. Output element `o` (C order over the kept axes) reduces `length` elements, numbered in C
/// order over the reduced axes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReduceShape {
    /// Kept dimensions, outermost first.
    pub kept: Vec<Dim>,
    /// Reduced dimensions, outermost first.
    pub reduced: Vec<Dim>,
    /// Offset of the first element, in elements.
    pub offset: u64,
    /// Number of outputs.
    pub outputs: u64,
    /// Number of elements reduced into each output.
    pub length: u64,
    /// The caller reduces every axis: one output, and the whole-array kernels apply.
    pub whole: bool,
    /// Extents of the kept axes, as the caller sees them.
    pub output_shape: Vec<u64>,
}

impl ReduceShape {
    /// Splits a layout by a set of axes; negative axes count from the end; no axes at all (`None`) means every axis.
    ///
    /// # Errors
    /// [`Error::InvalidAxis`] for an axis outside the rank or named twice; [`Error::InvalidLayout`] for more than
    /// [`MAX_DIMS`] dimensions on one side after merging, or more than [`MAX_ELEMENTS`] outputs or elements.
    pub fn new(layout: &Layout, axes: Option<&[i64]>) -> Result<ReduceShape> {
        let rank = layout.rank();
        let mut is_reduced = vec![axes.is_none(); rank];
        for &axis in axes.unwrap_or(&[]) {
            let position = if axis < 0 { axis + rank as i64 } else { axis };
            let slot = usize::try_from(position).ok().and_then(|p| is_reduced.get_mut(p));
            match slot {
                Some(slot) if !*slot => *slot = true,
                _ => return Err(Error::InvalidAxis { axis, rank }),
            }
        }
        let side = |wanted: bool| -> Vec<Dim> {
            layout.dims().iter().zip(&is_reduced).filter(|(_, r)| **r == wanted).map(|(d, _)| *d).collect()
        };
        let (kept_all, reduced_all) = (side(false), side(true));
        if layout.required_len() > MAX_ELEMENTS {
            return Err(Error::InvalidLayout {
                argument: "layout",
                problem: format!("it reaches index {}; at most {MAX_ELEMENTS} elements are allowed", layout.required_len()),
            });
        }
        // The layout's own product may be zero by one axis while the others' is beyond 64 bits.
        let count = |dims: &[Dim]| -> Option<u64> {
            if dims.iter().any(|d| d.extent == 0) {
                return Some(0);
            }
            dims.iter().try_fold(1u64, |n, d| n.checked_mul(d.extent)).filter(|n| *n <= MAX_ELEMENTS)
        };
        let (outputs, length) = match (count(&kept_all), count(&reduced_all)) {
            (Some(outputs), Some(length)) if outputs as u128 * length as u128 <= MAX_ELEMENTS as u128 => (outputs, length),
            _ => {
                return Err(Error::InvalidLayout {
                    argument: "layout",
                    problem: format!("the outputs or the elements reduced of {:?} are more than {MAX_ELEMENTS}", layout.shape()),
                });
            }
        };
        let shape = ReduceShape {
            outputs,
            length,
            output_shape: kept_all.iter().map(|d| d.extent).collect(),
            kept: merge(&kept_all),
            reduced: merge(&reduced_all),
            offset: layout.offset(),
            whole: is_reduced.iter().all(|r| *r),
        };
        for dims in [&shape.kept, &shape.reduced] {
            if dims.len() > MAX_DIMS {
                return Err(Error::InvalidLayout {
                    argument: "layout",
                    problem: format!("{} separate dimensions remain after merging; {MAX_DIMS} are allowed", dims.len()),
                });
            }
        }
        Ok(shape)
    }

    /// True if the reduced elements of each output are neighbours in memory.
    pub fn rows_are_contiguous(&self) -> bool {
        match self.reduced.as_slice() {
            [] => true,
            [only] => only.stride == 1,
            _ => false,
        }
    }

    /// Index (in elements from the base pointer) of element `position` of output `output`.
    pub fn index(&self, output: u64, position: u64) -> u64 {
        (self.offset as i64 + walk(&self.kept, output) + walk(&self.reduced, position)) as u64
    }
}

/// Offset of the `flat`-th position (C order) of some dimensions.
fn walk(dims: &[Dim], mut flat: u64) -> i64 {
    let mut offset = 0i64;
    for d in dims.iter().rev() {
        offset += (flat % d.extent) as i64 * d.stride;
        flat /= d.extent;
    }
    offset
}

/// Drops extents of 1 and merges neighbours that one stride can walk. Empty arrays keep a single empty dimension.
fn merge(dims: &[Dim]) -> Vec<Dim> {
    if dims.iter().any(|d| d.extent == 0) {
        return vec![Dim { extent: 0, stride: 1 }];
    }
    let mut merged: Vec<Dim> = Vec::with_capacity(dims.len());
    for &d in dims.iter().filter(|d| d.extent != 1) {
        match merged.last_mut() {
            Some(outer) if d.stride.checked_mul(d.extent as i64) == Some(outer.stride) => {
                *outer = Dim { extent: outer.extent * d.extent, stride: d.stride };
            }
            _ => merged.push(d),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_arrays_merge_to_one_row() {
        let layout = Layout::contiguous(&[2, 3, 4]).unwrap();
        let shape = ReduceShape::new(&layout, None).unwrap();
        assert_eq!(shape.reduced, vec![Dim { extent: 24, stride: 1 }]);
        assert!(shape.whole && shape.rows_are_contiguous());
        assert_eq!((shape.outputs, shape.length), (1, 24));
    }

    #[test]
    fn a_middle_axis_keeps_two_outer_dimensions() {
        let layout = Layout::contiguous(&[2, 3, 4]).unwrap();
        let shape = ReduceShape::new(&layout, Some(&[-2])).unwrap();
        assert_eq!(shape.kept, vec![Dim { extent: 2, stride: 12 }, Dim { extent: 4, stride: 1 }]);
        assert_eq!(shape.reduced, vec![Dim { extent: 3, stride: 4 }]);
        assert_eq!(shape.output_shape, vec![2, 4]);
        assert_eq!(shape.index(5, 2), 12 + 1 + 8);
        assert!(!shape.whole);
    }

    #[test]
    fn wrong_axes_and_layouts_are_typed_errors() {
        let layout = Layout::contiguous(&[2, 3]).unwrap();
        assert_eq!(ReduceShape::new(&layout, Some(&[2])), Err(Error::InvalidAxis { axis: 2, rank: 2 }));
        assert_eq!(ReduceShape::new(&layout, Some(&[0, -2])), Err(Error::InvalidAxis { axis: -2, rank: 2 }));
        assert!(matches!(Layout::contiguous(&[u64::MAX, 2]), Err(Error::InvalidLayout { .. })));
        assert!(matches!(Layout::strided(&[4], &[-1], 2), Err(Error::InvalidLayout { .. })));
        assert!(matches!(Layout::strided(&[4], &[1, 1], 0), Err(Error::LengthMismatch { .. })));
        assert_eq!(Layout::strided(&[4], &[-1], 3).unwrap().required_len(), 4);
    }

    #[test]
    fn a_huge_stride_in_a_small_view_does_not_wrap() {
        let layout = Layout::strided(&[225_304, 2], &[9728, 1], 0).unwrap();
        assert_eq!(layout.required_len(), 225_303 * 9728 + 2);
    }

    #[test]
    fn empty_extents() {
        let layout = Layout::contiguous(&[0, 4]).unwrap();
        let along = ReduceShape::new(&layout, Some(&[1])).unwrap();
        assert_eq!((along.outputs, along.length), (0, 4));
        let across = ReduceShape::new(&layout, Some(&[0])).unwrap();
        assert_eq!((across.outputs, across.length), (4, 0));
        let scalar = ReduceShape::new(&Layout::contiguous(&[]).unwrap(), None).unwrap();
        assert_eq!((scalar.outputs, scalar.length), (1, 1));
    }

    #[test]
    fn counts_beyond_64_bits_of_bytes_are_refused() {
        let outputs = Layout::strided(&[1 << 40, 1 << 40, 0], &[0, 0, 0], 0).unwrap();
        assert!(matches!(ReduceShape::new(&outputs, Some(&[2])), Err(Error::InvalidLayout { .. })));
        let broadcast = Layout::strided(&[1 << 62], &[0], 0).unwrap();
        assert!(matches!(ReduceShape::new(&broadcast, None), Err(Error::InvalidLayout { .. })));
        let far = Layout::strided(&[2], &[1], 1 << 62).unwrap();
        assert!(matches!(ReduceShape::new(&far, None), Err(Error::InvalidLayout { .. })));
        let largest = Layout::strided(&[MAX_ELEMENTS], &[0], 0).unwrap();
        assert_eq!(ReduceShape::new(&largest, None).unwrap().length, MAX_ELEMENTS);
    }
}
