//! Pairwise covering: few rows in which every two values of two axes meet at least once.
//!
//! Most faults need two things to come together (a dtype and a size, an operator and a special value), rarely more, so
//! a covering of pairs finds nearly what the whole product finds, in a thousandth of the rows. The method is greedy:
//! each row starts from a pair that is still missing and takes, axis by axis, the value that meets most missing pairs.

use std::fmt;

/// Axes of the covering: how many values each has, and which pairs cannot stand in one row.
pub struct Axes<'a> {
    /// Values of each axis.
    pub sizes: &'a [usize],
    /// Whether a value of one axis may stand beside a value of another; asked with the lower axis first.
    pub allowed: &'a dyn Fn((usize, usize), (usize, usize)) -> bool,
}

impl fmt::Debug for Axes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Axes {:?}", self.sizes)
    }
}

/// The rows, and the pairs that no row can hold although the pair itself is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Covering {
    /// A value for each axis.
    pub rows: Vec<Vec<usize>>,
    /// Allowed pairs for which some other axis has no value left.
    pub impossible: Vec<((usize, usize), (usize, usize))>,
}

struct Missing {
    sizes: Vec<usize>,
    /// First value of each axis in a numbering of all values.
    starts: Vec<usize>,
    total: usize,
    pairs: Vec<bool>,
}

impl Missing {
    fn slot(&self, a: (usize, usize), b: (usize, usize)) -> usize {
        let (low, high) = if a.0 < b.0 { (a, b) } else { (b, a) };
        (self.starts[low.0] + low.1) * self.total + self.starts[high.0] + high.1
    }

    /// Missing pairs that a value would meet in a partial row.
    fn gain(&self, row: &[Option<usize>], candidate: (usize, usize)) -> usize {
        let set = row.iter().enumerate().filter_map(|(axis, value)| value.map(|v| (axis, v)));
        set.filter(|other| other.0 != candidate.0 && self.pairs[self.slot(*other, candidate)]).count()
    }
}

impl Axes<'_> {
    fn fits(&self, row: &[Option<usize>], candidate: (usize, usize)) -> bool {
        let set = row.iter().enumerate().filter_map(|(axis, value)| value.map(|v| (axis, v)));
        set.filter(|other| other.0 != candidate.0)
            .all(|other| if other.0 < candidate.0 { (self.allowed)(other, candidate) } else { (self.allowed)(candidate, other) })
    }

    /// Completes a partial row, best gain first, going back where an axis has no value left.
    fn complete(&self, missing: &Missing, row: &mut Vec<Option<usize>>, turn: usize) -> bool {
        // The axis with the fewest values that fit: dead ends show early.
        let open = (0..row.len()).filter(|axis| row[*axis].is_none());
        let choices = open.map(|axis| (axis, (0..self.sizes[axis]).filter(|v| self.fits(row, (axis, *v))).collect::<Vec<_>>()));
        let Some((axis, mut values)) = choices.min_by_key(|(_, values)| values.len()) else {
            return true;
        };
        // Turning the start of the list spreads ties over the values instead of favouring the first.
        let count = self.sizes[axis];
        values.sort_by_key(|v| (std::cmp::Reverse(missing.gain(row, (axis, *v))), (v + count - turn % count) % count));
        for value in values {
            row[axis] = Some(value);
            if self.complete(missing, row, turn) {
                return true;
            }
        }
        row[axis] = None;
        false
    }

    /// Builds the covering. The same axes give the same rows.
    pub fn cover(&self) -> Covering {
        let mut starts = vec![];
        let mut total = 0;
        for size in self.sizes {
            starts.push(total);
            total += size;
        }
        let mut missing = Missing { sizes: self.sizes.to_vec(), starts, total, pairs: vec![false; total * total] };
        let mut order = vec![];
        for first in 0..missing.sizes.len() {
            for second in first + 1..missing.sizes.len() {
                for a in 0..missing.sizes[first] {
                    for b in 0..missing.sizes[second] {
                        if (self.allowed)((first, a), (second, b)) {
                            order.push(((first, a), (second, b)));
                        }
                    }
                }
            }
        }
        for &(a, b) in &order {
            let slot = missing.slot(a, b);
            missing.pairs[slot] = true;
        }
        let mut covering = Covering::default();
        for (a, b) in order {
            let slot = missing.slot(a, b);
            if !missing.pairs[slot] {
                continue;
            }
            let mut row = vec![None; missing.sizes.len()];
            (row[a.0], row[b.0]) = (Some(a.1), Some(b.1));
            if !self.complete(&missing, &mut row, covering.rows.len()) {
                missing.pairs[slot] = false;
                covering.impossible.push((a, b));
                continue;
            }
            let row: Vec<usize> = row.into_iter().flatten().collect();
            for first in 0..row.len() {
                for second in first + 1..row.len() {
                    let slot = missing.slot((first, row[first]), (second, row[second]));
                    missing.pairs[slot] = false;
                }
            }
            covering.rows.push(row);
        }
        covering
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sizes: &[usize], allowed: &dyn Fn((usize, usize), (usize, usize)) -> bool) -> Covering {
        let covering = Axes { sizes, allowed }.cover();
        for row in &covering.rows {
            for first in 0..row.len() {
                for second in first + 1..row.len() {
                    assert!(allowed((first, row[first]), (second, row[second])), "{row:?}");
                }
            }
        }
        for first in 0..sizes.len() {
            for second in first + 1..sizes.len() {
                for a in 0..sizes[first] {
                    for b in 0..sizes[second] {
                        let pair = ((first, a), (second, b));
                        let met = covering.rows.iter().any(|row| row[first] == a && row[second] == b);
                        let excused = !allowed(pair.0, pair.1) || covering.impossible.contains(&pair);
                        assert!(met != excused, "{pair:?} met {met}, excused {excused}");
                    }
                }
            }
        }
        covering
    }

    #[test]
    fn every_pair_is_covered_in_few_rows() {
        let covering = check(&[12, 11, 20, 8, 5], &|_, _| true);
        // At least the two largest axes' product; greedy coverings stay near it.
        assert!((240..400).contains(&covering.rows.len()), "{}", covering.rows.len());
        assert!(covering.impossible.is_empty());
    }

    #[test]
    fn forbidden_pairs_never_meet_and_the_others_do() {
        let covering = check(&[4, 5, 6], &|a, b| !(a.0 == 0 && b.0 == 1 && a.1 + b.1 == 3));
        assert!(covering.impossible.is_empty());
    }

    #[test]
    fn impossible_pairs_are_named() {
        // Axis 2 has one value, which forbids value 0 of axis 0.
        let covering = check(&[2, 2, 1], &|a, b| !(a == (0, 0) && b.0 == 2));
        assert_eq!(covering.impossible, vec![((0, 0), (1, 0)), ((0, 0), (1, 1))]);
    }
}
