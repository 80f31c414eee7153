//! What a run has shown: counts by line, and faults in words.

use crate::engine::faults::{FaultKind, Memory, Raw, Thread};
use crate::engine::memory::Region;
use crate::engine::requests::{Count, Kind};
use crate::library::{Library, Place};
use std::collections::BTreeMap;
use std::fmt;

/// What a program's launches did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// In the order in which they ran; those after a launch that was given up are missing.
    pub launches: Vec<LaunchReport>,
}

/// What one launch did.
#[derive(Clone, Debug)]
pub struct LaunchReport {
    /// The kernel, as its launch names it.
    pub kernel: String,
    /// The kernel file.
    pub file: String,
    /// Blocks of the grid.
    pub grid: u32,
    /// Threads of a block.
    pub block: u32,
    /// Counts of each kind at each place.
    pub counts: BTreeMap<(Place, Kind), Count>,
    /// Faults, by place.
    pub faults: Vec<Fault>,
}

/// A fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// What kind.
    pub kind: FaultKind,
    /// Where.
    pub place: Place,
    /// The first thread that met it.
    pub thread: Thread,
    /// What the thread did.
    pub what: String,
    /// The other party: where, which thread, and what it did.
    pub other: Option<(Place, Thread, &'static str)>,
    /// How often.
    pub count: u64,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { kind, place, thread, what, other, count } = self;
        write!(f, "{place}: {}: thread {} of block {} {what}", kind.name(), thread.thread, thread.block)?;
        if let Some((other_place, other, verb)) = other {
            let block = if other.block == thread.block { String::new() } else { format!(" of block {}", other.block) };
            let at = if other_place == place { "at the same line".to_string() } else { format!("at {other_place}") };
            write!(f, "; thread {}{block} {verb} {at}", other.thread)?;
            if matches!(kind, FaultKind::SharedRace | FaultKind::GlobalRace) {
                f.write_str(", and nothing orders the two")?;
            }
        }
        if *count > 1 {
            write!(f, " ({count} times)")?;
        }
        Ok(())
    }
}

impl Report {
    /// Every fault of every launch.
    pub fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.launches.iter().flat_map(|launch| &launch.faults)
    }

    /// Counts of a kind over all launches.
    pub fn total(&self, kind: Kind) -> Count {
        self.launches.iter().fold(Count::default(), |mut sum, launch| {
            sum.add(&launch.total(kind));
            sum
        })
    }
}

impl LaunchReport {
    /// Threads of the whole grid.
    pub fn threads(&self) -> u64 {
        u64::from(self.grid) * u64::from(self.block)
    }

    /// Counts of a kind over all places.
    pub fn total(&self, kind: Kind) -> Count {
        let mut sum = Count::default();
        self.counts.iter().filter(|((_, at), _)| *at == kind).for_each(|(_, count)| sum.add(count));
        sum
    }

    /// How often each thread, on average, takes part in what is counted as a kind.
    pub fn per_thread(&self, kind: Kind) -> f64 {
        self.total(kind).lanes as f64 / self.threads().max(1) as f64
    }
}

/// Puts a fault into words; `None` for one that only the compiler's copies of a line made.
pub(crate) fn in_words(raw: &Raw, library: &Library, regions: &[Region]) -> Option<Fault> {
    let place = library.place(raw.place);
    let other = raw.other.map(|party| (library.place(party.place), party.thread, party.verb));
    if raw.kind == FaultKind::BarrierDivergence && other.as_ref().is_some_and(|(other, ..)| *other == place) {
        return None;
    }
    let bytes = raw.bytes;
    let width = if bytes == 1 { "1 byte".to_string() } else { format!("{bytes} bytes") };
    let what = match raw.memory {
        Memory::None => raw.verb.to_string(),
        Memory::Lanes(lanes) => match raw.kind {
            FaultKind::AbsentLane if raw.verb == "asks" => {
                format!("asks lane {lanes}, which takes no part: the value is undefined")
            }
            _ => format!("{} {lanes:#010x}", raw.verb),
        },
        Memory::Shared(offset) => match library.variable(offset) {
            Some((name, within)) => format!("{} {width} at byte {within} of `{name}`", raw.verb),
            None => format!("{} {width} at byte {offset} of shared memory", raw.verb),
        },
        Memory::Global(region, offset) => {
            let Region { name, element, .. } = &regions[region];
            let store = if raw.kind == FaultKind::OutOfBounds { ", which is not to be written" } else { "" };
            format!("{} {width} of the {name}, from element {} on{store}", raw.verb, offset / element)
        }
        Memory::Beyond(Some(region), offset) => {
            let Region { name, element, bytes, .. } = &regions[region];
            format!("{} {width} at element {} of the {name}, which has {}", raw.verb, offset / element, bytes / element)
        }
        Memory::Beyond(None, address) => format!("{} {width} at {address:#x}, which belongs to no buffer", raw.verb),
    };
    Some(Fault { kind: raw.kind, place, thread: raw.thread, what, other, count: raw.count })
}
