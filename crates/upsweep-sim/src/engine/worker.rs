//! A worker: the block that a thread of the host runs, and what its threads do.

use super::faults::{FaultKind, Faults, Memory, Party, Raw, Thread};
use super::memory::{Access, Accessed, Contents, Moment, Region, SharedMemory, Wrong};
use super::order::{Knowledge, Published, Stamp};
use super::requests::{Kind, LANES, LoopEnds, Loops, Requests, Tally};
use corosensei::Yielder;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A kernel's entry: it takes the words of the launch.
pub(crate) type Entry = unsafe extern "C" fn(*const u64);

/// What all workers of a launch share.
pub(crate) struct Launched<'a> {
    pub(crate) entry: Entry,
    pub(crate) words: &'a [u64],
    pub(crate) grid: u32,
    pub(crate) block: u32,
    pub(crate) shared_bytes: u32,
    /// Where the library was loaded.
    pub(crate) image: (u64, u64),
    pub(crate) regions: &'a [Region],
    /// Number of the launch, so that what the last one left is known as such.
    pub(crate) number: u32,
    pub(crate) published: Published,
    pub(crate) next_block: AtomicU32,
    pub(crate) aborted: AtomicBool,
    pub(crate) workers: AtomicU32,
    pub(crate) writes: AtomicU64,
}

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Go,
    /// It waits until the scheduler makes it ready.
    Wait,
    /// It waits for room, then enters its access ([`Worker::enter_again`]).
    Retry,
    /// It does not go on.
    Never,
}

/// An access on its way into the requests of its warp.
#[derive(Clone, Copy)]
pub(crate) struct Entered {
    place: u32,
    iteration: u32,
    kind: Kind,
    bytes: u8,
    address: u64,
    polls: bool,
}

/// Basic blocks that a thread may enter without an access or a meeting.
const STEPS: u64 = 1 << 27;

/// Ordered loads of a thread that has written nothing since, from which on the others have their turn between two of them.
const LOADS_IN_A_ROW: u32 = 32;

/// Plain loads of the same address at the same place in a row, from which on the same holds.
const SAME_LOADS: u32 = 1024;

/// `MATCH_ANY` and so on: the numbers of `upsweep_sim::Operation`.
pub(crate) mod operation {
    pub(crate) const SHUFFLE_FROM: u32 = 0;
    pub(crate) const SHUFFLE_UP: u32 = 1;
    pub(crate) const SHUFFLE_DOWN: u32 = 2;
    pub(crate) const SHUFFLE_XOR: u32 = 3;
    pub(crate) const BALLOT: u32 = 4;
    pub(crate) const ANY: u32 = 5;
    pub(crate) const ALL: u32 = 6;
    pub(crate) const MATCH_ANY: u32 = 7;
    pub(crate) const REDUCE_MAX: u32 = 8;
    pub(crate) const REDUCE_MIN: u32 = 9;
    pub(crate) const REDUCE_ADD: u32 = 10;
    pub(crate) const REDUCE_AND: u32 = 11;
    pub(crate) const REDUCE_OR: u32 = 12;
    pub(crate) const REDUCE_XOR: u32 = 13;
    pub(crate) const SYNC: u32 = 14;
}

/// A lane of a warp.
#[derive(Clone, Copy)]
pub(crate) struct Lane {
    pub(crate) loops: Loops,
    pub(crate) meeting: u16,
    /// Of the collective operation it waits in.
    pub(crate) operation: u32,
    pub(crate) mask: u32,
    pub(crate) value: u64,
    pub(crate) argument: u32,
    pub(crate) width: u32,
    /// Where it waits.
    pub(crate) place: u32,
    /// The barrier's number and its threads; 0 means the whole block.
    pub(crate) barrier: (u32, u32),
    ordered_loads: u32,
    same_load: (u32, u64, u32),
    /// The access that waits for room.
    entered: Option<Entered>,
}

impl Lane {
    pub(crate) const NEW: Lane = Lane {
        loops: Loops::NONE,
        meeting: 0,
        operation: 0,
        mask: 0,
        value: 0,
        argument: 0,
        width: 0,
        place: 0,
        barrier: (0, 0),
        ordered_loads: 0,
        same_load: (0, 0, 0),
        entered: None,
    };
}

/// A warp: sets of lanes by what they wait for, and its open requests.
pub(crate) struct Warp {
    pub(crate) live: u32,
    pub(crate) ready: u32,
    /// Wait for room in the requests.
    pub(crate) full: u32,
    pub(crate) collective: u32,
    pub(crate) barrier: u32,
    pub(crate) polling: u32,
    pub(crate) lane: [Lane; LANES],
    pub(crate) requests: Requests,
}

/// The state behind the pointer that a kernel's callbacks reach.
pub(crate) struct Worker {
    launched: *const Launched<'static>,
    pub(crate) block: u32,
    pub(crate) threads: u32,
    /// The running thread, and its warp and lane.
    pub(crate) thread: u32,
    running: (usize, usize),
    stack: (u64, u64),
    pub(crate) stacks: Vec<(u64, u64)>,
    pub(crate) yielders: Vec<*const Yielder<(), ()>>,
    pub(crate) warps: Vec<Warp>,
    pub(crate) shared: SharedMemory,
    dynamic: u64,
    image: (u64, u64),
    /// Barriers so far, of all blocks that this worker ran.
    pub(crate) epoch: u32,
    born: u32,
    pub(crate) knowledge: Knowledge,
    last_region: usize,
    pub(crate) tally: Tally,
    ends: LoopEnds,
    steps: u64,
    time: u64,
    pub(crate) wrote: bool,
    pub(crate) faults: Faults,
}

impl Worker {
    /// A worker of a launch, whose static shared memory and dynamic shared memory are at these addresses.
    ///
    /// # Safety
    /// `launched` must outlive the worker.
    pub(crate) unsafe fn new(launched: &Launched<'_>, fixed: (u64, u64), dynamic: (u64, u64)) -> Worker {
        let threads = launched.block;
        let warp = || Warp {
            live: 0,
            ready: 0,
            full: 0,
            collective: 0,
            barrier: 0,
            polling: 0,
            lane: [Lane::NEW; LANES],
            requests: Requests::new(),
        };
        Worker {
            launched: std::ptr::from_ref(launched).cast(),
            block: 0,
            threads,
            thread: 0,
            running: (0, 0),
            stack: (0, 0),
            stacks: vec![(0, 0); threads as usize],
            yielders: vec![std::ptr::null(); threads as usize],
            warps: std::iter::repeat_with(warp).take(threads.div_ceil(LANES as u32) as usize).collect(),
            shared: SharedMemory::new(fixed, dynamic),
            dynamic: dynamic.0,
            image: launched.image,
            epoch: 0,
            born: 0,
            knowledge: Knowledge::default(),
            last_region: 0,
            tally: Tally::new(),
            ends: LoopEnds::new(),
            steps: 0,
            time: 0,
            wrote: false,
            faults: Faults::default(),
        }
    }

    pub(crate) fn launched<'l>(&self) -> &'l Launched<'static> {
        // SAFETY: the contract of `new`: the launch outlives the worker, and what borrows it here does not leave the worker.
        unsafe { &*self.launched }
    }

    pub(crate) fn begin_block(&mut self, block: u32) {
        self.block = block;
        self.epoch += 1;
        self.born = self.epoch;
        self.knowledge.begin();
        for (first, warp) in (0..self.threads).step_by(LANES).zip(&mut self.warps) {
            let count = (self.threads - first).min(LANES as u32);
            warp.live = if count == 32 { u32::MAX } else { (1 << count) - 1 };
            warp.ready = warp.live;
            (warp.full, warp.collective, warp.barrier, warp.polling) = (0, 0, 0, 0);
            warp.lane = [Lane::NEW; LANES];
        }
    }

    /// Makes a thread the running one.
    pub(crate) fn turn_to(&mut self, thread: u32) {
        self.thread = thread;
        self.running = (thread as usize / LANES, thread as usize % LANES);
        self.stack = self.stacks[thread as usize];
        self.steps = 0;
    }

    pub(crate) fn yielder(&self) -> *const Yielder<(), ()> {
        self.yielders[self.thread as usize]
    }

    #[inline]
    fn at(&self) -> (usize, usize) {
        self.running
    }

    #[inline]
    fn place(&self, site: u64) -> u32 {
        site.wrapping_sub(self.image.0) as u32
    }

    pub(crate) fn who(&self, thread: u32) -> Thread {
        Thread { block: self.block, thread }
    }

    fn now(&self) -> Moment {
        let (warp, lane) = self.at();
        Moment { epoch: self.epoch, thread: self.thread as u16, meeting: self.warps[warp].lane[lane].meeting }
    }

    /// The running thread has returned from the kernel.
    pub(crate) fn exit(&mut self) {
        let (warp, lane) = self.at();
        let warp = &mut self.warps[warp];
        warp.live &= !(1 << lane);
        warp.ready &= !(1 << lane);
        self.wrote = true;
    }

    fn abort(&mut self) -> Next {
        self.launched().aborted.store(true, Ordering::Relaxed);
        let (warp, lane) = self.at();
        self.warps[warp].ready &= !(1 << lane);
        Next::Never
    }

    #[inline]
    pub(crate) fn access(&mut self, address: u64, bytes: u32, kind: u32, site: u64) -> Next {
        if address.wrapping_sub(self.stack.0) < self.stack.1 {
            return Next::Go;
        }
        let length = u64::from(bytes);
        let in_shared = self.shared.offset(address, length);
        let access = match kind {
            0 => Access::Load,
            1 => Access::Store,
            2 => Access::Atomic,
            3 => Access::OrderedLoad,
            4 => Access::OrderedStore,
            // To global memory a volatile access is a relaxed one (PTX ISA, ld.volatile). In shared memory it orders nothing
            // that a barrier would, and what relies on it is the fault of code from before Volta.
            5 if in_shared.is_none() => Access::OrderedLoad,
            6 if in_shared.is_none() => Access::OrderedStore,
            5 => Access::Load,
            _ => Access::Store,
        };
        let place = self.place(site);
        let now = self.now();
        let kind = if let Some(offset) = in_shared {
            if let Err(wrong) = self.shared.access(offset, length, access, now, place, self.born) {
                self.wrong(wrong, FaultKind::SharedRace, access, bytes, place, Memory::Shared(offset));
            }
            match access {
                Access::Load | Access::OrderedLoad => Kind::SharedLoad,
                Access::Store | Access::OrderedStore => Kind::SharedStore,
                Access::Atomic => Kind::SharedAtomic,
            }
        } else {
            let launched = self.launched();
            let mut region = self.last_region;
            if !launched.regions.get(region).is_some_and(|known| known.holds(address, length)) {
                match launched.regions.iter().position(|known| known.holds(address, length)) {
                    Some(found) => region = found,
                    None => return self.elsewhere(access, address, bytes, place),
                }
                self.last_region = region;
            }
            let target = &launched.regions[region];
            let memory = Memory::Global(region, address - target.start);
            if target.contents == Contents::Input && access.writes() {
                self.fault(FaultKind::OutOfBounds, access, bytes, place, memory, None);
                return self.abort();
            }
            let at = Stamp { block: self.block, moment: now };
            if access.is_ordered() {
                let (reads, writes) = (access.reads(), access.writes());
                self.knowledge.atomic(&launched.published, address, now.thread, reads, writes);
            }
            let knowledge = &self.knowledge;
            let accessed = Accessed { access, at, launch: launched.number, place };
            let judged = target.access(address, length, accessed, |stamp| knowledge.has(now, stamp));
            if let Err(wrong) = judged {
                self.wrong(wrong, FaultKind::GlobalRace, access, bytes, place, memory);
            }
            match access {
                Access::Load => Kind::GlobalLoad,
                Access::Store => Kind::GlobalStore,
                _ => Kind::GlobalAtomic,
            }
        };
        if bytes.is_power_of_two() && !address.is_multiple_of(length) {
            self.fault(FaultKind::Misaligned, access, bytes, place, Memory::None, None);
        }
        self.steps = 0;
        let (warp, lane) = self.at();
        let lane = &mut self.warps[warp].lane[lane];
        let polls = if access.writes() {
            lane.ordered_loads = 0;
            self.wrote = true;
            false
        } else if access.is_ordered() {
            lane.ordered_loads += 1;
            lane.ordered_loads > LOADS_IN_A_ROW
        } else if (lane.same_load.0, lane.same_load.1) == (place, address) {
            lane.same_load.2 += 1;
            lane.same_load.2 > SAME_LOADS
        } else {
            lane.same_load = (place, address, 0);
            false
        };
        let iteration = lane.loops.iteration;
        self.enter(Entered { place, iteration, kind, bytes: bytes as u8, address, polls })
    }

    /// Enters an access into the requests of its warp.
    #[inline]
    fn enter(&mut self, entry: Entered) -> Next {
        let (warp, lane) = self.at();
        let warp = &mut self.warps[warp];
        let Entered { place, iteration, kind, bytes, address, polls } = entry;
        if !warp.requests.join(place, iteration, kind, bytes, lane, address) {
            warp.full |= 1 << lane;
            warp.ready &= !(1 << lane);
            warp.lane[lane].entered = Some(entry);
            return Next::Retry;
        }
        if polls {
            warp.lane[lane].place = place;
            warp.polling |= 1 << lane;
            warp.ready &= !(1 << lane);
            return Next::Wait;
        }
        Next::Go
    }

    /// Enters the access that waited for room.
    #[cold]
    pub(crate) fn enter_again(&mut self) -> Next {
        let (warp, lane) = self.at();
        self.warps[warp].lane[lane].entered.take().map_or(Next::Go, |entry| self.enter(entry))
    }

    /// An access that is neither of shared memory nor of a buffer.
    #[cold]
    fn elsewhere(&mut self, access: Access, address: u64, bytes: u32, place: u32) -> Next {
        // Constants of the kernel lie in its library.
        if access == Access::Load && address.wrapping_sub(self.image.0) < self.image.1 {
            return Next::Go;
        }
        let regions = &self.launched().regions;
        let after = |region: &Region| address.wrapping_sub(region.start);
        let nearest = (0..regions.len()).min_by_key(|&index| after(&regions[index]));
        let memory = match nearest {
            Some(index) if after(&regions[index]) < 1 << 40 => Memory::Beyond(Some(index), after(&regions[index])),
            _ => Memory::Beyond(None, address),
        };
        self.fault(FaultKind::OutOfBounds, access, bytes, place, memory, None);
        self.abort()
    }

    #[cold]
    fn wrong(&mut self, wrong: Wrong, race: FaultKind, access: Access, bytes: u32, place: u32, memory: Memory) {
        match wrong {
            Wrong::Uninitialised => self.fault(FaultKind::Uninitialised, access, bytes, place, memory, None),
            Wrong::Race { other_place, other, other_block, other_writes } => {
                let block = if race == FaultKind::SharedRace { self.block } else { other_block };
                let thread = Thread { block, thread: u32::from(other.thread) };
                let verb = if other_writes { "writes" } else { "reads" };
                self.fault(race, access, bytes, place, memory, Some(Party { place: other_place, thread, verb }));
            }
        }
    }

    #[cold]
    fn fault(&mut self, kind: FaultKind, access: Access, bytes: u32, place: u32, memory: Memory, other: Option<Party>) {
        let thread = self.who(self.thread);
        self.faults.note(Raw { kind, place, thread, verb: access.verb(), bytes, memory, other, count: 1 });
    }

    #[inline]
    pub(crate) fn basic_block(&mut self, site: u64) -> Next {
        let place = self.place(site);
        let (warp, lane) = self.at();
        self.warps[warp].lane[lane].loops.enter(place, &mut self.ends);
        self.steps += 1;
        if self.steps > STEPS { self.loops_forever(place) } else { Next::Go }
    }

    #[cold]
    fn loops_forever(&mut self, place: u32) -> Next {
        let thread = self.who(self.thread);
        let (kind, memory) = (FaultKind::EndlessSpin, Memory::None);
        self.faults.note(Raw { kind, place, thread, verb: "loops", bytes: 0, memory, other: None, count: 1 });
        self.abort()
    }

    pub(crate) fn barrier(&mut self, number: u32, threads: u32, site: u64) -> Next {
        let place = self.place(site);
        let (warp, lane) = self.at();
        let warp = &mut self.warps[warp];
        warp.lane[lane].place = place;
        warp.lane[lane].barrier = (number, threads);
        warp.lane[lane].ordered_loads = 0;
        warp.barrier |= 1 << lane;
        warp.ready &= !(1 << lane);
        Next::Wait
    }

    pub(crate) fn collective(&mut self, operation: u32, mask: u32, value: u64, argument: u32, width: u32, site: u64) -> Next {
        let place = self.place(site);
        let (warp, lane) = self.at();
        if mask >> lane & 1 == 0 {
            let thread = self.who(self.thread);
            let (kind, memory) = (FaultKind::AbsentLane, Memory::Lanes(mask));
            self.faults.note(Raw {
                kind,
                place,
                thread,
                verb: "is left out by its mask",
                bytes: 0,
                memory,
                other: None,
                count: 1,
            });
            return self.abort();
        }
        let warp = &mut self.warps[warp];
        let state = &mut warp.lane[lane];
        (state.operation, state.mask, state.value, state.argument, state.width) = (operation, mask, value, argument, width);
        state.place = place;
        warp.collective |= 1 << lane;
        warp.ready &= !(1 << lane);
        Next::Wait
    }

    /// What the running lane's collective operation gave it.
    pub(crate) fn result(&self) -> u64 {
        let (warp, lane) = self.at();
        self.warps[warp].lane[lane].value
    }

    pub(crate) fn fence(&mut self, site: u64) {
        let (place, now) = (self.place(site), self.now());
        self.knowledge.fence(self.block, now);
        let (warp, lane) = self.at();
        let warp = &mut self.warps[warp];
        let iteration = warp.lane[lane].loops.iteration;
        // A fence that finds no room is not counted: it has no cost in memory.
        let _ = warp.requests.join(place, iteration, Kind::Fence, 0, lane, 0);
    }

    /// A clock that runs fast, so that a kernel which waits by it does not wait long.
    pub(crate) fn clock(&mut self) -> u64 {
        self.time += 1 << 16;
        self.time
    }

    #[inline]
    pub(crate) fn coordinate(&self, which: u32) -> u32 {
        match which {
            0 => self.thread,
            1 => self.block,
            4 => self.threads,
            _ => self.launched().grid,
        }
    }

    pub(crate) fn dynamic_shared(&mut self) -> *mut c_void {
        self.dynamic as *mut c_void
    }
}
