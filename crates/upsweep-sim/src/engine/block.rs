//! The scheduler of a block: whose turn it is, when a warp's operation and a barrier are complete, and when nobody can go on.

use super::abi::Attached;
use super::faults::{FaultKind, Memory, Party, Raw};
use super::requests::{Kind, LANES};
use super::worker::{Entry, Launched, Warp, Worker, operation};
use corosensei::stack::{DefaultStack, Stack, StackPointer};
use corosensei::{Coroutine, Yielder};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes of a thread's stack. Only pages that are touched cost memory.
const STACK_BYTES: usize = 128 << 10;

/// Turns of polling without any progress in the launch, after which nobody is believed to be left who could bring it.
const IDLE_TURNS: u32 = 256;

/// As long, where blocks run on other workers too.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// Stacks of launches that ended, for those to come.
static STACKS: Mutex<Vec<DefaultStack>> = Mutex::new(Vec::new());

/// A stack that begins some cache lines below its page. With all of them at the same place of a page, a block's threads would
/// share a few sets of the caches, and every switch between two would miss them.
struct Shifted {
    stack: DefaultStack,
    shift: usize,
}

// SAFETY: a part of a valid stack, from its limit up to a multiple of 16 below its base, is a valid stack.
unsafe impl Stack for Shifted {
    fn base(&self) -> StackPointer {
        StackPointer::new(self.stack.base().get() - self.shift).unwrap_or(self.stack.base())
    }

    fn limit(&self) -> StackPointer {
        self.stack.limit()
    }
}

/// By how much neighbouring threads' stacks are shifted, in bytes, and after how many it begins again.
const SHIFT: usize = 5 * 64;
const SHIFTS: usize = 128;

type Fibre = Coroutine<(), (), (), Shifted>;

/// The threads of a worker's blocks, each a coroutine that runs one block's thread after another's.
struct Fibres {
    fibres: Vec<Fibre>,
}

impl Fibres {
    /// # Safety
    /// `worker` must outlive the fibres, and must be this host thread's.
    unsafe fn new(worker: *mut Worker, threads: u32, entry: Entry, words: *const u64) -> std::io::Result<Fibres> {
        // No more than it takes: what is spare is the other workers' too, and mappings are limited.
        let mut spare = {
            let mut stacks = STACKS.lock().unwrap_or_else(|error| error.into_inner());
            let rest = stacks.len().saturating_sub(threads as usize);
            stacks.split_off(rest)
        };
        let mut fibres = Fibres { fibres: Vec::with_capacity(threads as usize) };
        for thread in 0..threads as usize {
            let stack = spare.pop().map_or_else(|| DefaultStack::new(STACK_BYTES), Ok)?;
            let stack = Shifted { stack, shift: thread % SHIFTS * SHIFT };
            let (top, bottom) = (stack.base().get() as u64, stack.limit().get() as u64);
            let body = move |yielder: &Yielder<(), ()>, ()| {
                // SAFETY: the worker outlives its fibres; nobody else borrows it while a fibre runs.
                unsafe { (&mut *worker).yielders[thread] = std::ptr::from_ref(yielder) };
                loop {
                    // SAFETY: the library is loaded, and the words are those of the launch.
                    unsafe { entry(words) };
                    // SAFETY: as above.
                    unsafe { (&mut *worker).exit() };
                    yielder.suspend(());
                }
            };
            // SAFETY: as above.
            unsafe { (&mut *worker).stacks[thread] = (bottom, top - bottom) };
            fibres.fibres.push(Coroutine::with_stack(stack, body));
        }
        Ok(fibres)
    }
}

impl Drop for Fibres {
    fn drop(&mut self) {
        let mut stacks = STACKS.lock().unwrap_or_else(|error| error.into_inner());
        for mut fibre in self.fibres.drain(..) {
            // SAFETY: what a fibre has on its stack is a kernel's frames, of plain data, and callbacks that own nothing while
            // they wait; nothing of it has to be dropped.
            unsafe { fibre.force_reset() };
            stacks.push(fibre.into_stack().stack);
        }
    }
}

/// Runs blocks of a launch, one after the other, until none is left.
///
/// # Safety
/// `worker` must be one of the launch, and the kernel's library must stay loaded.
pub(crate) unsafe fn run_blocks(worker: &mut Worker, launched: &Launched<'_>) -> std::io::Result<()> {
    let pointer: *mut Worker = worker;
    let _attached = Attached::new(pointer);
    // SAFETY: the worker is the caller's and outlives this call.
    let mut fibres = unsafe { Fibres::new(pointer, launched.block, launched.entry, launched.words.as_ptr()) }?;
    while !launched.aborted.load(Ordering::Relaxed) {
        let block = launched.next_block.fetch_add(1, Ordering::Relaxed);
        if block >= launched.grid {
            break;
        }
        // SAFETY: no fibre runs now, and each call below borrows the worker for itself.
        unsafe { (*pointer).begin_block(block) };
        // SAFETY: as above.
        unsafe { run_block(pointer, &mut fibres.fibres, launched) };
        launched.writes.fetch_add(1, Ordering::Relaxed);
    }
    launched.workers.fetch_sub(1, Ordering::Relaxed);
    Ok(())
}

/// # Safety
/// `worker` is live and no fibre runs.
unsafe fn run_block(worker: *mut Worker, fibres: &mut [Fibre], launched: &Launched<'_>) {
    let mut idle = Idle::default();
    loop {
        // SAFETY: the fibres only run inside `run_warp`, which holds no reference meanwhile.
        let warps = unsafe { (&*worker).warps.len() };
        for index in 0..warps {
            // SAFETY: as above.
            unsafe { run_warp(worker, index, fibres) };
        }
        // SAFETY: no fibre runs.
        let worker = unsafe { &mut *worker };
        if launched.aborted.load(Ordering::Relaxed) {
            return;
        }
        if worker.release_barriers() {
            continue;
        }
        if worker.warps.iter().any(|warp| warp.polling != 0) {
            if !worker.poll(launched, &mut idle) {
                return;
            }
            continue;
        }
        if worker.warps.iter().all(|warp| warp.live == 0) {
            return;
        }
        worker.deadlock();
        return;
    }
}

/// Runs the lanes of a warp until each of them waits for somebody else.
///
/// # Safety
/// As [`run_block`].
unsafe fn run_warp(worker: *mut Worker, index: usize, fibres: &mut [Fibre]) {
    loop {
        loop {
            let lane = {
                // SAFETY: no fibre runs here; the reference ends before one does.
                let worker = unsafe { &mut *worker };
                let ready = worker.warps[index].ready;
                if worker.launched().aborted.load(Ordering::Relaxed) {
                    return;
                }
                if ready == 0 {
                    break;
                }
                let thread = (index * LANES) as u32 + ready.trailing_zeros();
                worker.turn_to(thread);
                thread as usize
            };
            fibres[lane].resume(());
        }
        // SAFETY: no fibre runs.
        let worker = unsafe { &mut *worker };
        let warp = &mut worker.warps[index];
        warp.requests.close(&mut worker.tally);
        if warp.full != 0 {
            (warp.ready, warp.full) = (warp.full, 0);
        } else if warp.collective == 0 || !worker.resolve(index) {
            return;
        }
    }
}

/// How long a block has only polled.
#[derive(Default)]
struct Idle {
    turns: u32,
    writes: u64,
    since: Option<Instant>,
}

fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
}

impl Worker {
    /// Completes the collective operations of a warp whose lanes are all there; false if there is none.
    fn resolve(&mut self, index: usize) -> bool {
        let mut done = false;
        let mut todo = self.warps[index].collective;
        while todo != 0 {
            let first = todo.trailing_zeros() as usize;
            let warp = &self.warps[index];
            let (mask, what) = (warp.lane[first].mask, warp.lane[first].operation);
            let same = |lane: &usize| warp.lane[*lane].mask == mask && warp.lane[*lane].operation == what;
            let group: u32 = lanes_of(mask & warp.collective).filter(same).map(|lane| 1 << lane).sum();
            todo &= !(group | 1 << first);
            // Lanes that have ended are not waited for.
            if group == mask & warp.live {
                self.complete(index, group, what);
                done = true;
            }
        }
        done
    }

    fn complete(&mut self, index: usize, group: u32, what: u32) {
        let before: [super::worker::Lane; LANES] = self.warps[index].lane;
        let first = group.trailing_zeros() as usize;
        let kind = match what {
            operation::SHUFFLE_FROM | operation::SHUFFLE_UP | operation::SHUFFLE_DOWN | operation::SHUFFLE_XOR => Kind::Shuffle,
            operation::SYNC => Kind::WarpSync,
            _ => Kind::Vote,
        };
        let count = self.tally.at(before[first].place, kind);
        count.requests += 1;
        count.lanes += u64::from(group.count_ones());
        let values = || lanes_of(group).map(|lane| before[lane].value as u32);
        let ballot: u32 = lanes_of(group).filter(|&lane| before[lane].value != 0).map(|lane| 1 << lane).sum();
        let met = lanes_of(group).map(|lane| before[lane].meeting).max().unwrap_or(0).saturating_add(1);
        let of_all: u64 = match what {
            operation::BALLOT => ballot.into(),
            operation::ANY => u64::from(ballot != 0),
            operation::ALL => u64::from(ballot == group),
            operation::REDUCE_MAX => values().max().unwrap_or(0).into(),
            operation::REDUCE_MIN => values().min().unwrap_or(0).into(),
            operation::REDUCE_ADD => values().fold(0u32, u32::wrapping_add).into(),
            operation::REDUCE_AND => values().fold(u32::MAX, |a, b| a & b).into(),
            operation::REDUCE_OR => values().fold(0, |a, b| a | b).into(),
            operation::REDUCE_XOR => values().fold(0, |a, b| a ^ b).into(),
            _ => 0,
        };
        for lane in lanes_of(group) {
            let asks = before[lane];
            let value = if kind == Kind::Shuffle {
                let from = source(what, lane, asks.argument as usize, asks.width as usize);
                if group >> from & 1 == 0 {
                    self.faults.note(Raw {
                        kind: FaultKind::AbsentLane,
                        place: asks.place,
                        thread: self.who((index * LANES + lane) as u32),
                        verb: "asks",
                        bytes: 0,
                        memory: Memory::Lanes(from as u32),
                        other: None,
                        count: 1,
                    });
                    // The value is undefined: something that no test takes for right.
                    0xdead_beef_dead_beef
                } else {
                    before[from].value
                }
            } else if what == operation::MATCH_ANY {
                lanes_of(group).filter(|&other| before[other].value == asks.value).map(|other| 1u64 << other).sum()
            } else {
                of_all
            };
            let state = &mut self.warps[index].lane[lane];
            state.value = value;
            if what == operation::SYNC {
                state.meeting = met;
            }
        }
        let warp = &mut self.warps[index];
        warp.collective &= !group;
        warp.ready |= group;
    }

    /// Lets those go on whose barrier is complete; false if none is.
    fn release_barriers(&mut self) -> bool {
        let mut released = self.release_parts();
        let waits = |warp: &Warp| warp.barrier;
        let (live, waiting): (u32, u32) = self
            .warps
            .iter()
            .map(|warp| {
                (warp.live.count_ones(), lanes_of(waits(warp)).filter(|&lane| warp.lane[lane].barrier.1 == 0).count() as u32)
            })
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        if waiting == 0 || waiting < live {
            return released;
        }
        self.judge_barrier(live);
        for index in 0..self.warps.len() {
            self.count_barrier(index, self.warps[index].barrier);
            let warp = &mut self.warps[index];
            warp.ready |= warp.barrier;
            warp.barrier = 0;
            warp.lane.iter_mut().for_each(|lane| lane.meeting = 0);
        }
        self.knowledge.barrier();
        self.epoch += 1;
        released = true;
        released
    }

    /// Barriers of a stated number of threads. They order no more than their threads, by a meeting of each warp.
    fn release_parts(&mut self) -> bool {
        let asked = self.warps.iter().flat_map(|warp| lanes_of(warp.barrier).map(|lane| warp.lane[lane].barrier));
        let Some(asked) = asked.filter(|(_, threads)| *threads != 0).min() else { return false };
        let part = |warp: &Warp| -> u32 {
            lanes_of(warp.barrier).filter(|&lane| warp.lane[lane].barrier == asked).map(|lane| 1 << lane).sum()
        };
        let arrived: u32 = self.warps.iter().map(|warp| part(warp).count_ones()).sum();
        if arrived < asked.1 {
            return false;
        }
        for index in 0..self.warps.len() {
            let mask = part(&self.warps[index]);
            self.count_barrier(index, mask);
            let warp = &mut self.warps[index];
            warp.ready |= mask;
            warp.barrier &= !mask;
        }
        // The others of the block have no access in between that this could hide: they wait elsewhere.
        self.knowledge.barrier();
        self.epoch += 1;
        true
    }

    fn count_barrier(&mut self, index: usize, mask: u32) {
        let mut todo = mask;
        while todo != 0 {
            let warp = &self.warps[index];
            let place = warp.lane[todo.trailing_zeros() as usize].place;
            let group: u32 = lanes_of(todo).filter(|&lane| warp.lane[lane].place == place).map(|lane| 1 << lane).sum();
            todo &= !group;
            let count = self.tally.at(place, Kind::Barrier);
            count.requests += 1;
            count.lanes += u64::from(group.count_ones());
        }
    }

    /// A barrier that not all threads reach, or that is several.
    fn judge_barrier(&mut self, live: u32) {
        let first_of = |worker: &Worker, set: &dyn Fn(&Warp) -> u32| -> Option<u32> {
            let found = worker.warps.iter().position(|warp| set(warp) != 0)?;
            Some((found * LANES) as u32 + set(&worker.warps[found]).trailing_zeros())
        };
        let Some(first) = first_of(self, &|warp| warp.barrier) else { return };
        let place_of = |worker: &Worker, thread: u32| worker.warps[thread as usize / LANES].lane[thread as usize % LANES].place;
        let place = place_of(self, first);
        let differs = |warp: &Warp| -> u32 {
            lanes_of(warp.barrier).filter(|&lane| warp.lane[lane].place != place).map(|lane| 1 << lane).sum()
        };
        let (block, threads) = (self.block, self.threads);
        let other = |place, thread, verb| Some(Party { place, thread: super::faults::Thread { block, thread }, verb });
        let raw = |kind, other| Raw {
            kind,
            place,
            thread: super::faults::Thread { block, thread: first },
            verb: "waits",
            bytes: 0,
            memory: Memory::None,
            other,
            count: 1,
        };
        if let Some(thread) = first_of(self, &differs) {
            let party = other(place_of(self, thread), thread, "waits");
            self.faults.note(raw(FaultKind::BarrierDivergence, party));
        }
        if live < threads {
            let full = |warp: &Warp, index: usize| {
                let count = (threads - (index * LANES) as u32).min(LANES as u32);
                let all = if count == 32 { u32::MAX } else { (1 << count) - 1 };
                all & !warp.live
            };
            let ended = self.warps.iter().enumerate().find(|(index, warp)| full(warp, *index) != 0);
            if let Some((index, warp)) = ended {
                let lane = full(warp, index).trailing_zeros() as usize;
                let party = other(warp.lane[lane].loops.last(), (index * LANES + lane) as u32, "has ended");
                self.faults.note(raw(FaultKind::EarlyReturn, party));
            }
        }
    }

    /// Another turn for the lanes that poll memory; false if nobody is left who could write what they wait for.
    fn poll(&mut self, launched: &Launched<'_>, idle: &mut Idle) -> bool {
        if std::mem::take(&mut self.wrote) {
            launched.writes.fetch_add(1, Ordering::Relaxed);
        }
        let writes = launched.writes.load(Ordering::Relaxed);
        if writes != idle.writes {
            *idle = Idle { writes, ..Idle::default() };
        }
        idle.turns += 1;
        // Another worker may run a block that brings it.
        let alone = launched.workers.load(Ordering::Relaxed) == 1;
        if !alone {
            std::thread::yield_now();
        }
        let since = *idle.since.get_or_insert_with(Instant::now);
        if idle.turns > IDLE_TURNS && (alone || since.elapsed() > IDLE_TIME) {
            let waiting = self.warps.iter().position(|warp| warp.polling != 0).unwrap_or(0);
            let lane = self.warps[waiting].polling.trailing_zeros() as usize % LANES;
            self.faults.note(Raw {
                kind: FaultKind::EndlessSpin,
                place: self.warps[waiting].lane[lane].place,
                thread: self.who((waiting * LANES + lane) as u32),
                verb: "polls",
                bytes: 0,
                memory: Memory::None,
                other: None,
                count: 1,
            });
            launched.aborted.store(true, Ordering::Relaxed);
            return false;
        }
        for warp in &mut self.warps {
            warp.ready |= warp.polling;
            warp.polling = 0;
        }
        true
    }

    /// Lanes wait in a collective operation for lanes that wait elsewhere.
    fn deadlock(&mut self) {
        for index in 0..self.warps.len() {
            let warp = &self.warps[index];
            if warp.collective == 0 {
                continue;
            }
            let lane = warp.collective.trailing_zeros() as usize;
            let (place, mask) = (warp.lane[lane].place, warp.lane[lane].mask);
            let missing = mask & warp.live & warp.barrier;
            let other = (missing != 0).then(|| {
                let lane = missing.trailing_zeros() as usize;
                Party { place: warp.lane[lane].place, thread: self.who((index * LANES + lane) as u32), verb: "waits" }
            });
            self.faults.note(Raw {
                kind: FaultKind::Deadlock,
                place,
                thread: self.who((index * LANES + lane) as u32),
                verb: "waits for the lanes of its mask",
                bytes: 0,
                memory: Memory::Lanes(mask),
                other,
                count: 1,
            });
        }
        if self.warps.iter().all(|warp| warp.collective == 0) {
            // Barriers of parts of a block that never fill.
            let waiting = self.warps.iter().position(|warp| warp.barrier != 0).unwrap_or(0);
            let lane = self.warps[waiting].barrier.trailing_zeros() as usize % LANES;
            self.faults.note(Raw {
                kind: FaultKind::Deadlock,
                place: self.warps[waiting].lane[lane].place,
                thread: self.who((waiting * LANES + lane) as u32),
                verb: "waits at a barrier that others do not reach",
                bytes: 0,
                memory: Memory::None,
                other: None,
                count: 1,
            });
        }
        self.launched().aborted.store(true, Ordering::Relaxed);
    }
}

/// The lane that a shuffle reads: its own where the other would be outside its part of the warp.
fn source(what: u32, lane: usize, argument: usize, width: usize) -> usize {
    let width = width.clamp(1, LANES);
    let low = lane & !(width - 1);
    match what {
        operation::SHUFFLE_FROM => low + (argument & (width - 1)),
        operation::SHUFFLE_UP if lane >= low + argument => lane - argument,
        operation::SHUFFLE_DOWN if lane + argument < low + width => lane + argument,
        operation::SHUFFLE_XOR if (lane ^ argument) < low + width => lane ^ argument,
        _ => lane,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffles_stay_in_their_part_of_the_warp() {
        assert_eq!(source(operation::SHUFFLE_DOWN, 30, 1, 32), 31);
        assert_eq!(source(operation::SHUFFLE_DOWN, 31, 1, 32), 31);
        assert_eq!(source(operation::SHUFFLE_DOWN, 7, 1, 8), 7);
        assert_eq!(source(operation::SHUFFLE_UP, 8, 1, 8), 8);
        assert_eq!(source(operation::SHUFFLE_UP, 9, 1, 8), 8);
        assert_eq!(source(operation::SHUFFLE_FROM, 20, 35, 32), 3);
        assert_eq!(source(operation::SHUFFLE_XOR, 5, 16, 32), 21);
    }
}
