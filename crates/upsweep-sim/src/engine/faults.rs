//! Faults as the engine meets them: places are offsets into the library, words come later.

use std::collections::HashMap;

/// The kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FaultKind {
    /// Accesses of shared memory that no barrier and no `__syncwarp` orders.
    SharedRace,
    /// Accesses of global memory, of one block or of two, that nothing orders.
    GlobalRace,
    /// An access outside of every buffer and of shared memory, or a store to an input.
    OutOfBounds,
    /// An address that is no multiple of the access's size.
    Misaligned,
    /// A read of shared memory, of an output or of scratch that nothing has written.
    Uninitialised,
    /// An element of an output that no launch has written.
    Unwritten,
    /// Threads of a block that wait at different barriers.
    BarrierDivergence,
    /// Threads that wait at a barrier which others of their block never reach: they have ended.
    EarlyReturn,
    /// A shuffle from a lane that takes no part, or by a lane that its mask leaves out.
    AbsentLane,
    /// Lanes that wait for each other.
    Deadlock,
    /// A wait for something that nobody is left to write.
    EndlessSpin,
}

impl FaultKind {
    /// Every kind.
    pub const ALL: [FaultKind; 11] = [
        FaultKind::SharedRace,
        FaultKind::GlobalRace,
        FaultKind::OutOfBounds,
        FaultKind::Misaligned,
        FaultKind::Uninitialised,
        FaultKind::Unwritten,
        FaultKind::BarrierDivergence,
        FaultKind::EarlyReturn,
        FaultKind::AbsentLane,
        FaultKind::Deadlock,
        FaultKind::EndlessSpin,
    ];

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::SharedRace => "race in shared memory",
            FaultKind::GlobalRace => "race in global memory",
            FaultKind::OutOfBounds => "access out of bounds",
            FaultKind::Misaligned => "misaligned access",
            FaultKind::Uninitialised => "read of uninitialised memory",
            FaultKind::Unwritten => "output that nothing wrote",
            FaultKind::BarrierDivergence => "barrier divergence",
            FaultKind::EarlyReturn => "early return before a barrier",
            FaultKind::AbsentLane => "shuffle from an absent lane",
            FaultKind::Deadlock => "deadlock of a warp",
            FaultKind::EndlessSpin => "endless spin",
        }
    }
}

/// A thread of the grid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Its block.
    pub block: u32,
    /// Its number in the block.
    pub thread: u32,
}

/// The other side of a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Party {
    pub(crate) place: u32,
    pub(crate) thread: Thread,
    pub(crate) verb: &'static str,
}

/// The first of the faults of one kind at one place.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    pub(crate) kind: FaultKind,
    pub(crate) place: u32,
    pub(crate) thread: Thread,
    pub(crate) verb: &'static str,
    pub(crate) bytes: u32,
    pub(crate) memory: Memory,
    pub(crate) other: Option<Party>,
    pub(crate) count: u64,
}

/// Where an access went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    None,
    /// Bytes from the start of the block's shared memory.
    Shared(u64),
    /// A region and bytes from its start.
    Global(usize, u64),
    /// Nowhere that is known; bytes from the end of the region or of the shared memory before it.
    Beyond(Option<usize>, u64),
    /// The lane that was asked, or the mask that was waited for.
    Lanes(u32),
}

/// Faults by kind and places.
#[derive(Default)]
pub(crate) struct Faults {
    pub(crate) found: HashMap<(FaultKind, u32, u32), Raw>,
}

/// Distinct faults that are kept; a kernel that is wrong everywhere needs no longer list.
const KEPT: usize = 64;

impl Faults {
    #[cold]
    pub(crate) fn note(&mut self, raw: Raw) {
        let key = (raw.kind, raw.place, raw.other.map_or(0, |other| other.place));
        let room = self.found.len() < KEPT;
        match self.found.get_mut(&key) {
            Some(known) => known.count += raw.count,
            None if room => {
                self.found.insert(key, raw);
            }
            None => {}
        }
    }

    pub(crate) fn take_over(&mut self, other: Faults) {
        for raw in other.found.into_values() {
            self.note(raw);
        }
    }
}
