//! What is known of every word of memory: who wrote it and who read it since, so that the next access can be judged.
//!
//! Two accesses of different threads, one of them a write, need something between them that orders them: within a block a
//! barrier, within a warp `__syncwarp`, between blocks a fence and an atomic operation on each side ([`super::order`]). Nothing
//! follows from the order in which the simulator runs the threads.

use super::order::Stamp;
use std::sync::atomic::{AtomicU32, Ordering};

/// A thread of a block at a moment of its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Barriers of the block so far; of shared memory also over all blocks that the worker ran.
    pub(crate) epoch: u32,
    /// The thread's number in its block.
    pub(crate) thread: u16,
    /// Times the thread's warp met in `__syncwarp`.
    pub(crate) meeting: u16,
}

impl Moment {
    /// Whether something of the same block orders this moment before a later access.
    #[inline]
    pub(crate) fn is_before(self, later: Moment) -> bool {
        self.epoch < later.epoch
            || self.thread == later.thread
            || (self.thread / 32 == later.thread / 32 && self.meeting < later.meeting)
    }
}

/// How a thread accesses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Load,
    Store,
    /// Reads and writes at once.
    Atomic,
    OrderedLoad,
    OrderedStore,
}

impl Access {
    #[inline]
    pub(crate) fn writes(self) -> bool {
        matches!(self, Access::Store | Access::Atomic | Access::OrderedStore)
    }

    #[inline]
    pub(crate) fn reads(self) -> bool {
        matches!(self, Access::Load | Access::Atomic | Access::OrderedLoad)
    }

    #[inline]
    pub(crate) fn is_ordered(self) -> bool {
        matches!(self, Access::Atomic | Access::OrderedLoad | Access::OrderedStore)
    }

    pub(crate) fn verb(self) -> &'static str {
        match self {
            Access::Load | Access::OrderedLoad => "reads",
            Access::Store | Access::OrderedStore => "writes",
            Access::Atomic => "updates",
        }
    }
}

/// What is wrong with an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Nothing has written what is read.
    Uninitialised,
    /// Another thread's access is not ordered against it.
    Race { other_place: u32, other: Moment, other_block: u32, other_writes: bool },
}

/// A word of shared memory.
#[derive(Clone, Copy, Default)]
struct SharedCell {
    writer: Moment,
    write_place: u32,
    /// The last reader, and another one of its warp since it last met.
    reader: Moment,
    read_place: u32,
    mate: u16,
    /// A reader of another warp.
    far: Moment,
    far_place: u32,
    write_was_atomic: bool,
}

/// The shared memory of the block that a worker runs: static variables, then dynamic memory.
pub(crate) struct SharedMemory {
    fixed: (u64, u64),
    dynamic: (u64, u64),
    cells: Box<[SharedCell]>,
    /// Bytes of a cell are `1 << shift`: words, until a kernel accesses parts of words.
    shift: u32,
}

impl SharedMemory {
    /// Over static variables and dynamic memory, each at an address and of so many bytes.
    pub(crate) fn new(fixed: (u64, u64), dynamic: (u64, u64)) -> SharedMemory {
        let cells = (fixed.1 + dynamic.1).div_ceil(4) as usize + 1;
        // SAFETY: a cell is plain numbers and a bool, for which zeros are valid. Fresh zeroed pages cost nothing until a
        // kernel touches them, and a library has the variables of many kernels.
        let cells = unsafe { Box::new_zeroed_slice(cells).assume_init() };
        SharedMemory { fixed, dynamic, cells, shift: 2 }
    }

    /// The offset of an address of shared memory.
    #[inline]
    pub(crate) fn offset(&self, address: u64, bytes: u64) -> Option<u64> {
        let within = |(start, length): (u64, u64)| {
            let offset = address.wrapping_sub(start);
            (offset < length && offset + bytes <= length).then_some(offset)
        };
        within(self.fixed).or_else(|| within(self.dynamic).map(|offset| self.fixed.1 + offset))
    }

    /// Judges an access and remembers it. `born` is the epoch in which the block began.
    #[inline]
    pub(crate) fn access(
        &mut self,
        offset: u64,
        bytes: u64,
        access: Access,
        now: Moment,
        place: u32,
        born: u32,
    ) -> Result<(), Wrong> {
        if self.shift != 0 && (bytes | offset) & 3 != 0 {
            self.refine();
        }
        let (first, last) = (offset >> self.shift, (offset + bytes - 1) >> self.shift);
        let mut wrong = Ok(());
        for cell in &mut self.cells[first as usize..=last as usize] {
            let found = cell.access(access, now, place, born);
            wrong = wrong.and(found);
        }
        wrong
    }

    #[cold]
    fn refine(&mut self) {
        self.cells = self.cells.iter().flat_map(|cell| [*cell; 4]).collect();
        self.shift = 0;
    }
}

impl SharedCell {
    #[inline]
    fn access(&mut self, access: Access, now: Moment, place: u32, born: u32) -> Result<(), Wrong> {
        let race = |other: Moment, other_place, other_writes| Wrong::Race { other_place, other, other_block: 0, other_writes };
        let mut wrong = Ok(());
        if access.reads() && self.writer.epoch < born {
            wrong = Err(Wrong::Uninitialised);
        } else if self.writer.epoch >= born && !self.writer.is_before(now) && !(self.write_was_atomic && access.is_ordered()) {
            wrong = Err(race(self.writer, self.write_place, true));
        }
        if access.writes() {
            if self.reader.epoch == now.epoch && wrong.is_ok() {
                let mate = Moment { thread: self.mate, ..self.reader };
                if self.far.epoch == now.epoch && !self.far.is_before(now) {
                    wrong = Err(race(self.far, self.far_place, false));
                } else if !self.reader.is_before(now) {
                    wrong = Err(race(self.reader, self.read_place, false));
                } else if !mate.is_before(now) {
                    wrong = Err(race(mate, self.read_place, false));
                }
            }
            self.writer = now;
            self.write_place = place;
            self.write_was_atomic = access.is_ordered();
        } else if self.reader.epoch != now.epoch {
            self.reader = now;
            self.read_place = place;
            self.mate = now.thread;
        } else if self.reader.thread / 32 == now.thread / 32 {
            if self.reader.meeting == now.meeting {
                if self.reader.thread != now.thread {
                    self.mate = now.thread;
                }
            } else {
                self.reader = now;
                self.read_place = place;
                self.mate = now.thread;
            }
        } else {
            // Two warps are remembered: one of them is not the writer's.
            self.far = now;
            self.far_place = place;
        }
        wrong
    }
}

/// A word of global memory in the launch `launch`; what a launch left is ordered before the next.
#[derive(Default)]
struct GlobalCell {
    launch: u32,
    writer: Moment,
    write_block: u32,
    write_place: u32,
    reader: Moment,
    read_block: u32,
    read_place: u32,
    far: Moment,
    far_block: u32,
    far_place: u32,
    written: bool,
    read: bool,
    far_read: bool,
    write_was_ordered: bool,
}

/// What a region of global memory holds when a program begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// The caller's, not to be written.
    Input,
    /// Something.
    Known,
    /// Nothing that may be read.
    Nothing,
}

/// An access of global memory by a thread.
#[derive(Clone, Copy)]
pub(crate) struct Accessed {
    pub(crate) access: Access,
    pub(crate) at: Stamp,
    /// Number of the launch.
    pub(crate) launch: u32,
    /// Where in the kernel.
    pub(crate) place: u32,
}

/// A range of global memory that a launch may use.
pub(crate) struct Region {
    pub(crate) name: String,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) contents: Contents,
    /// Bytes of an element, for messages.
    pub(crate) element: u64,
    pub(crate) is_output: bool,
    shift: u32,
    cells: Vec<Locked>,
    initialised: Vec<AtomicU32>,
}

/// A cell that blocks on other workers reach too.
#[derive(Default)]
struct Locked {
    taken: AtomicU32,
    cell: std::cell::UnsafeCell<GlobalCell>,
}

// SAFETY: the cell is reached only while `taken` is held.
unsafe impl Sync for Locked {}

impl Locked {
    #[inline]
    fn with<R>(&self, work: impl FnOnce(&mut GlobalCell) -> R) -> R {
        while self.taken.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::hint::spin_loop();
        }
        // SAFETY: the exchange above succeeded for this thread alone, and `work` returns before the release below.
        let result = work(unsafe { &mut *self.cell.get() });
        self.taken.store(0, Ordering::Release);
        result
    }
}

impl Region {
    /// `grain`: the bytes of the least access that is expected, 1, 2 or 4.
    pub(crate) fn new(name: String, start: u64, bytes: u64, contents: Contents, element: u64, grain: u64) -> Region {
        let shift = grain.clamp(1, 4).trailing_zeros();
        let count = match contents {
            Contents::Input => 0,
            _ => (bytes >> shift) as usize + 1,
        };
        let cells = std::iter::repeat_with(Locked::default).take(count).collect();
        let words = if contents == Contents::Nothing { count.div_ceil(32) } else { 0 };
        let initialised = std::iter::repeat_with(AtomicU32::default).take(words).collect();
        Region { name, start, bytes, contents, element, is_output: false, shift, cells, initialised }
    }

    #[inline]
    pub(crate) fn holds(&self, address: u64, bytes: u64) -> bool {
        let offset = address.wrapping_sub(self.start);
        offset < self.bytes && offset + bytes <= self.bytes
    }

    /// The first element that nothing has written, of a region that held nothing when the program began.
    pub(crate) fn first_unwritten(&self) -> Option<u64> {
        let cells = (self.bytes >> self.shift) as usize;
        let unwritten = |index: &usize| self.initialised[index / 32].load(Ordering::Relaxed) >> (index % 32) & 1 == 0;
        if self.contents != Contents::Nothing {
            return None;
        }
        (0..cells).find(unwritten).map(|index| ((index as u64) << self.shift) / self.element)
    }

    /// Judges an access and remembers it. `known` tells whether a moment of another block is known to the accessing thread.
    #[inline]
    pub(crate) fn access(
        &self,
        address: u64,
        bytes: u64,
        accessed: Accessed,
        known: impl Fn(Stamp) -> bool,
    ) -> Result<(), Wrong> {
        let access = accessed.access;
        if self.cells.is_empty() {
            return Ok(());
        }
        let offset = address - self.start;
        let (first, last) = ((offset >> self.shift) as usize, ((offset + bytes - 1) >> self.shift) as usize);
        let mut wrong = Ok(());
        for index in first..=last {
            if let Some(word) = self.initialised.get(index / 32) {
                let bit = 1 << (index % 32);
                if access.reads() && word.load(Ordering::Relaxed) & bit == 0 {
                    wrong = wrong.and(Err(Wrong::Uninitialised));
                }
                if access.writes() {
                    word.fetch_or(bit, Ordering::Relaxed);
                }
            }
            let found = self.cells[index].with(|cell| cell.access(accessed, &known));
            wrong = wrong.and(found);
        }
        wrong
    }
}

impl GlobalCell {
    #[inline]
    fn access(&mut self, accessed: Accessed, known: &impl Fn(Stamp) -> bool) -> Result<(), Wrong> {
        let Accessed { access, at, launch, place } = accessed;
        if self.launch != launch {
            *self = GlobalCell { launch, ..GlobalCell::default() };
        }
        let before = |block: u32, moment: Moment| {
            if block == at.block { moment.is_before(at.moment) } else { known(Stamp { block, moment }) }
        };
        let race = |other_block, other, other_place, other_writes| Wrong::Race { other_place, other, other_block, other_writes };
        let mut wrong = Ok(());
        if self.written {
            let both = self.write_was_ordered && access.is_ordered();
            // That an atomic operation of another block came before a plain store follows from the values that were
            // exchanged, which are not followed here.
            let by_value = self.write_was_ordered && access == Access::Store && self.write_block != at.block;
            if !both && !by_value && !before(self.write_block, self.writer) {
                wrong = Err(race(self.write_block, self.writer, self.write_place, true));
            }
        }
        if access.writes() {
            if self.far_read && wrong.is_ok() && !before(self.far_block, self.far) {
                wrong = Err(race(self.far_block, self.far, self.far_place, false));
            }
            if self.read && wrong.is_ok() && !before(self.read_block, self.reader) {
                wrong = Err(race(self.read_block, self.reader, self.read_place, false));
            }
            self.written = true;
            (self.writer, self.write_block, self.write_place) = (at.moment, at.block, place);
            self.write_was_ordered = access.is_ordered();
            if wrong.is_ok() {
                (self.read, self.far_read) = (false, false);
            }
        } else if access == Access::Load {
            let same_warp = self.read_block == at.block && self.reader.thread / 32 == at.moment.thread / 32;
            if self.read && !same_warp {
                // The two latest readers of different warps are remembered.
                (self.far_read, self.far, self.far_block, self.far_place) = (true, self.reader, self.read_block, self.read_place);
            }
            (self.read, self.reader, self.read_block, self.read_place) = (true, at.moment, at.block, place);
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(epoch: u32, thread: u16, meeting: u16) -> Moment {
        Moment { epoch, thread, meeting }
    }

    fn shared() -> SharedMemory {
        SharedMemory::new((1024, 256), (8192, 64))
    }

    fn race(result: Result<(), Wrong>) -> bool {
        matches!(result, Err(Wrong::Race { .. }))
    }

    #[test]
    fn shared_memory_is_static_then_dynamic() {
        let memory = shared();
        assert_eq!(memory.offset(1024, 4), Some(0));
        assert_eq!(memory.offset(1276, 4), Some(252));
        assert_eq!(memory.offset(1278, 4), None);
        assert_eq!(memory.offset(8192, 16), Some(256));
        assert_eq!(memory.offset(8256, 1), None);
    }

    #[test]
    fn a_barrier_orders_a_block_and_a_meeting_a_warp() {
        let mut memory = shared();
        let mut go = |access, now| memory.access(0, 4, access, now, 7, 5);
        assert_eq!(go(Access::Load, moment(5, 0, 0)), Err(Wrong::Uninitialised));
        assert_eq!(go(Access::Store, moment(6, 0, 0)), Ok(()));
        assert!(race(go(Access::Load, moment(6, 1, 0))), "the same warp, not met");
        assert_eq!(go(Access::Load, moment(6, 1, 1)), Ok(()));
        assert!(race(go(Access::Load, moment(6, 40, 1))), "another warp");
        assert_eq!(go(Access::Load, moment(7, 40, 0)), Ok(()));
        assert!(race(go(Access::Store, moment(7, 0, 0))), "read since");
        assert_eq!(go(Access::Store, moment(8, 0, 0)), Ok(()));
        assert_eq!(go(Access::Load, moment(8, 0, 0)), Ok(()), "its own");
    }

    #[test]
    fn readers_of_two_warps_and_of_one_are_remembered() {
        let mut memory = shared();
        for (readers, writer) in [([0, 33], 0), ([33, 0], 0), ([3, 4], 3), ([4, 3], 3)] {
            assert_eq!(memory.access(8, 4, Access::Store, moment(1, 9, 0), 7, 1), Ok(()));
            for reader in readers {
                assert_eq!(memory.access(8, 4, Access::Load, moment(2, reader, 0), 7, 1), Ok(()));
            }
            assert!(race(memory.access(8, 4, Access::Store, moment(2, writer, 0), 7, 1)), "{readers:?} {writer}");
            memory = shared();
        }
    }

    #[test]
    fn parts_of_a_word_are_kept_apart_and_atomics_together() {
        let mut memory = shared();
        assert_eq!(memory.access(0, 4, Access::Store, moment(1, 0, 0), 7, 1), Ok(()));
        assert_eq!(memory.access(4, 1, Access::Store, moment(1, 1, 0), 7, 1), Ok(()));
        assert_eq!(memory.access(5, 1, Access::Store, moment(1, 50, 0), 7, 1), Ok(()));
        assert!(race(memory.access(5, 1, Access::Load, moment(1, 1, 0), 7, 1)));
        assert!(race(memory.access(3, 1, Access::Load, moment(1, 1, 0), 7, 1)), "what was known stays known");
        assert_eq!(memory.access(8, 4, Access::Store, moment(1, 0, 0), 7, 1), Ok(()));
        assert_eq!(memory.access(8, 4, Access::Atomic, moment(2, 1, 0), 7, 1), Ok(()));
        assert_eq!(memory.access(8, 4, Access::Atomic, moment(2, 99, 0), 7, 1), Ok(()));
        assert!(race(memory.access(8, 4, Access::Load, moment(2, 1, 0), 7, 1)));
    }

    #[test]
    fn global_memory_between_blocks() {
        let region = Region::new("output".into(), 64, 64, Contents::Nothing, 4, 4);
        let at = |block, epoch, thread| Stamp { block, moment: moment(epoch, thread, 0) };
        let go = |access, at, launch| region.access(64, 4, Accessed { access, at, launch, place: 9 }, |_| false);
        assert_eq!(go(Access::Load, at(0, 0, 0), 1), Err(Wrong::Uninitialised));
        assert_eq!(go(Access::Store, at(0, 1, 0), 1), Ok(()));
        assert!(race(go(Access::Load, at(1, 0, 0), 1)));
        assert!(race(go(Access::OrderedLoad, at(1, 0, 0), 1)), "one side alone is not enough");
        assert_eq!(
            region.access(64, 4, Accessed { access: Access::Load, at: at(1, 0, 0), launch: 1, place: 9 }, |_| true),
            Ok(()),
            "what is known is ordered"
        );
        assert_eq!(go(Access::Load, at(1, 0, 0), 2), Ok(()), "launches are ordered");
        assert!(race(go(Access::Store, at(2, 0, 0), 2)));
        assert_eq!(go(Access::OrderedStore, at(0, 0, 0), 3), Ok(()));
        assert_eq!(go(Access::OrderedLoad, at(1, 0, 0), 3), Ok(()));
        assert!(region.holds(64, 64) && !region.holds(64, 65) && !region.holds(60, 4));
    }
}
