//! Second inputs of scans: coefficients of recurrences, and keys and offsets of segments.

use crate::error::Result;
use crate::families::{Special, fill, hash};
use crate::target::Input;
use rayon::prelude::*;
use upsweep::ops::scan::{ScanProblem, Segments};
use upsweep::types::{DType, Element, Operator, dispatch};

/// What coefficients do to the states of a recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coefficients {
    /// 1/2 to 1, of both signs: states forget.
    Fading,
    /// 1 or -1: states keep all that came, and no product rounds.
    Units,
    /// 1 to 2: states grow, for short rows.
    Growing,
    /// Every eighth is 0, the others are near 1: states begin anew.
    WithZeros,
    /// As fading, with a special value in the middle.
    With(Special),
}

impl Coefficients {
    pub(super) const ALL: [Coefficients; 6] = [
        Coefficients::Fading,
        Coefficients::Units,
        Coefficients::Growing,
        Coefficients::WithZeros,
        Coefficients::With(Special::Nan),
        Coefficients::With(Special::Infinity),
    ];

    /// The longest row whose states stay within f32.
    pub(super) fn longest(self) -> u64 {
        if self == Coefficients::Growing { 65 } else { u64::MAX }
    }

    fn name(self) -> &'static str {
        match self {
            Coefficients::Fading => "fading",
            Coefficients::Units => "unit",
            Coefficients::Growing => "growing",
            Coefficients::WithZeros => "zero and other",
            Coefficients::With(Special::Nan) => "fading and NaN",
            Coefficients::With(_) => "fading and infinite",
        }
    }

    fn value(self, seed: u64, position: u64, middle: u64) -> f64 {
        let h = hash(seed, position);
        let unit = (h >> 40) as f64 / 2f64.powi(24);
        let sign = if h & 1 == 0 { 1.0 } else { -1.0 };
        match self {
            Coefficients::With(special) if position == middle => match special {
                Special::Nan => f64::NAN,
                Special::Infinity => f64::INFINITY,
                Special::NegativeInfinity => f64::NEG_INFINITY,
            },
            Coefficients::Fading | Coefficients::With(_) => sign * (0.5 + unit / 2.0),
            Coefficients::Units => sign,
            Coefficients::Growing => sign * (1.0 + unit),
            Coefficients::WithZeros if (h >> 1).is_multiple_of(8) => 0.0,
            Coefficients::WithZeros => sign * (0.9 + unit / 8.0),
        }
    }
}

/// How long segments are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// One segment.
    One,
    /// Segments of one element.
    Single,
    /// Segments of 1 to 9 elements.
    Short,
    /// Segments of a few thousand elements, which cross the edges of blocks and chunks.
    Long,
    /// Heads at multiples of 1024, just before and just behind.
    AtEdges,
}

impl Runs {
    pub(super) const ALL: [Runs; 5] = [Runs::One, Runs::Single, Runs::Short, Runs::Long, Runs::AtEdges];

    fn name(self) -> &'static str {
        match self {
            Runs::One => "one segment",
            Runs::Single => "segments of 1",
            Runs::Short => "segments of 1 to 9",
            Runs::Long => "segments of thousands",
            Runs::AtEdges => "segments round edges",
        }
    }

    /// The first element of each segment: the same for every seed, because their number is a part of the problem.
    pub(super) fn heads(self, length: u64) -> Vec<u64> {
        let next = |head: u64| match self {
            Runs::One => length,
            Runs::Single => head + 1,
            Runs::Short => head + 1 + hash(7, head) % 9,
            Runs::Long => head + 1 + hash(7, head) % 5000,
            // 1023, 1024, 1025, 2047, ...
            Runs::AtEdges if head % 1024 == 1023 || (head > 0 && head.is_multiple_of(1024)) => head + 1,
            Runs::AtEdges => head / 1024 * 1024 + 1023,
        };
        std::iter::successors((length > 0).then_some(0), |head| Some(next(*head)).filter(|head| *head < length)).collect()
    }

    /// The offsets of these segments, with empty ones at both ends and in between.
    fn offsets(self, length: u64) -> Vec<u64> {
        let mut offsets = vec![0];
        for (number, head) in self.heads(length).into_iter().enumerate() {
            offsets.extend(std::iter::repeat_n(head, if number % 5 == 0 { 2 } else { 1 }));
        }
        offsets.extend([length, length]);
        offsets
    }
}

/// What a case's second input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Second {
    /// None.
    Nothing,
    /// Coefficients of a recurrence.
    Coefficients(Coefficients),
    /// Keys of a dtype.
    Keys(DType, Runs),
    /// Offsets.
    Offsets(Runs),
}

impl Second {
    /// In words, for reports.
    pub(super) fn name(self) -> String {
        match self {
            Second::Nothing => String::new(),
            Second::Coefficients(coefficients) => format!(", {} coefficients", coefficients.name()),
            Second::Keys(dtype, runs) => format!(", {} by {dtype} keys", runs.name()),
            Second::Offsets(runs) => format!(", {} by offsets", runs.name()),
        }
    }

    /// How long the segments are, if there are any.
    pub(super) fn runs(self) -> Option<Runs> {
        match self {
            Second::Keys(_, runs) | Second::Offsets(runs) => Some(runs),
            Second::Nothing | Second::Coefficients(_) => None,
        }
    }

    /// How a scan of so many elements is cut.
    pub(super) fn segments(self, length: u64) -> Segments {
        match self {
            Second::Keys(dtype, _) => Segments::Keys(dtype),
            Second::Offsets(runs) => Segments::Offsets { count: runs.offsets(length).len() as u64 - 1 },
            Second::Nothing | Second::Coefficients(_) => Segments::Rows,
        }
    }

    /// The input of a problem.
    pub(super) fn make(self, problem: &ScanProblem, seed: u64, shift: u64) -> Result<Option<Input>> {
        Ok(match self {
            Second::Nothing => None,
            Second::Coefficients(coefficients) => Some(coefficients_of(problem, coefficients, seed, shift)?),
            Second::Keys(dtype, runs) => Some(keys_of(problem, dtype, &runs.heads(problem.length()), seed, shift)?),
            Second::Offsets(runs) => Some(offsets_of(&runs.offsets(problem.length()), shift)?),
        })
    }
}

/// What a problem of which nothing else is known is verified and timed on.
pub(super) fn usual(problem: &ScanProblem, seed: u64, shift: u64) -> Result<Option<Input>> {
    match problem.segments() {
        Segments::Rows if problem.operator() == Operator::LinearRecurrence => {
            Second::Coefficients(Coefficients::Fading).make(problem, seed, shift)
        }
        Segments::Rows => Ok(None),
        Segments::Keys(dtype) => Second::Keys(dtype, Runs::Long).make(problem, seed, shift),
        Segments::Offsets { count } => {
            // A cut somewhere in each of as many equal parts, so that they rise: segments of 1 element to twice the mean.
            let (length, part) = (problem.length(), (problem.length() / count.max(1)).max(1));
            let inner = |cut: u64| {
                let first = (u128::from(cut) * u128::from(length) / u128::from(count)) as u64;
                (first + hash(seed, cut) % part).min(length)
            };
            let inner: Vec<u64> = (1..count.max(1)).into_par_iter().map(inner).collect();
            let offsets: Vec<u64> = std::iter::once(0).chain(inner).chain((count > 0).then_some(length)).collect();
            Ok(Some(offsets_of(&offsets, shift)?))
        }
    }
}

fn coefficients_of(problem: &ScanProblem, coefficients: Coefficients, seed: u64, shift: u64) -> Result<Input> {
    let shape = problem.shape();
    let mut input = Input::new(problem.dtype(), problem.required_len(), shift);
    let seed = hash(seed, 0xc0ef);
    dispatch!(problem.dtype(), T => {
        fill(shape, input.typed_mut::<T>()?, |row, position| {
            T::from_f64(coefficients.value(hash(seed, row), position, shape.length / 2))
        });
    });
    Ok(input)
}

fn keys_of(problem: &ScanProblem, dtype: DType, heads: &[u64], seed: u64, shift: u64) -> Result<Input> {
    let shape = problem.shape();
    let mut input = Input::new(dtype, problem.required_len(), shift);
    // Another key than that of the segment before, in every dtype; keys come again, and need not grow.
    let first = i128::from(hash(seed, 0x4e15));
    let keys: Vec<i128> = (0..heads.len() as u64)
        .scan(first, |key, number| {
            *key += 1 + i128::from(hash(seed, number) % 3);
            Some(*key)
        })
        .collect();
    dispatch!(dtype, K => {
        fill(shape, input.typed_mut::<K>()?, |_, position| {
            K::from_i128(keys[heads.partition_point(|head| *head <= position) - 1])
        });
    });
    Ok(input)
}

fn offsets_of(offsets: &[u64], shift: u64) -> Result<Input> {
    let mut input = Input::new(DType::U64, offsets.len() as u64, shift);
    input.typed_mut::<u64>()?.copy_from_slice(offsets);
    Ok(input)
}

/// Puts a special value at the first or the last element of every seventh segment.
pub(super) fn spoil_ends(problem: &ScanProblem, input: &mut Input, runs: Runs, value: f64, last: bool) -> Result<()> {
    let shape = problem.shape();
    let heads = runs.heads(problem.length());
    dispatch!(problem.dtype(), T => {
        let data = input.typed_mut::<T>()?;
        for number in (0..heads.len()).step_by(7) {
            let end = heads.get(number + 1).copied().unwrap_or(problem.length());
            let position = if last { end - 1 } else { heads[number] };
            data[shape.index(0, position) as usize] = T::from_f64(value);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use upsweep::ops::scan::ScanSpec;

    #[test]
    fn runs_cover_every_element_once() {
        for runs in Runs::ALL {
            for length in [0, 1, 2, 1023, 1024, 1025, 5000] {
                let heads = runs.heads(length);
                assert!(heads.is_sorted_by(|a, b| a < b) && heads.first().is_none_or(|head| *head == 0), "{runs:?} {length}");
                let offsets = runs.offsets(length);
                assert!(offsets.is_sorted() && offsets[0] == 0 && offsets[offsets.len() - 1] == length);
            }
        }
        assert_eq!(Runs::AtEdges.heads(2049), [0, 1023, 1024, 1025, 2047, 2048]);
    }

    #[test]
    fn usual_second_inputs_fit_their_problems() {
        let sum = ScanSpec::inclusive(Operator::Sum);
        for spec in [ScanSpec::inclusive(Operator::LinearRecurrence), sum.by_key(DType::I8), sum.by_offsets(7), sum.by_offsets(1)]
        {
            for length in [1, 2, 1000] {
                let problem = ScanProblem::whole(spec, DType::F32, length).unwrap();
                let made = usual(&problem, 3, 1).unwrap().unwrap();
                let wanted = problem.second_input().unwrap();
                assert_eq!((made.dtype(), made.len()), (wanted.dtype, wanted.len), "{problem}");
            }
        }
        let problem = ScanProblem::whole(sum.by_key(DType::U8), DType::F32, 3000).unwrap();
        let keys = Second::Keys(DType::U8, Runs::Short).make(&problem, 1, 0).unwrap().unwrap();
        let keys = keys.slice().typed::<u8>().unwrap();
        assert_eq!(1 + keys.windows(2).filter(|pair| pair[0] != pair[1]).count(), Runs::Short.heads(3000).len());
        assert_eq!(usual(&ScanProblem::whole(sum, DType::F32, 10).unwrap(), 1, 0).unwrap().map(|i| i.len()), None);
    }
}
