//! What orders the accesses of different blocks: a fence before an atomic operation publishes what the thread knows; a fence
//! after an atomic operation that met it takes it over (PTX ISA, memory consistency model: release and acquire patterns).

use super::memory::Moment;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A moment of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) block: u32,
    pub(crate) moment: Moment,
}

/// Of every block the moment up to which it is known; `None` of those of which nothing is.
pub(crate) type Clock = Vec<Option<Moment>>;

/// Whether a moment of a block is known.
pub(crate) fn covers(clock: &[Option<Moment>], stamp: Stamp) -> bool {
    clock.get(stamp.block as usize).copied().flatten().is_some_and(|known| stamp.moment.is_before(known))
}

fn note(clock: &mut Clock, block: u32, moment: Moment) {
    let index = block as usize;
    if clock.len() <= index {
        clock.resize(index + 1, None);
    }
    let known = &mut clock[index];
    *known = Some(match *known {
        None => moment,
        Some(known) if known.epoch != moment.epoch => {
            if known.epoch > moment.epoch {
                known
            } else {
                moment
            }
        }
        Some(known) if known.thread / 32 == moment.thread / 32 => {
            if known.meeting > moment.meeting {
                known
            } else {
                moment
            }
        }
        // Two threads of one epoch: rather too much is known than too little.
        Some(known) => Moment { epoch: known.epoch + 1, ..moment },
    });
}

pub(crate) fn merge(clock: &mut Clock, other: &[Option<Moment>]) {
    for (block, moment) in (0..).zip(other) {
        if let Some(moment) = moment {
            note(clock, block, *moment);
        }
    }
}

/// What atomic operations of a launch left at their addresses.
#[derive(Default)]
pub(crate) struct Published {
    at: Mutex<HashMap<u64, Arc<Clock>>>,
}

impl Published {
    fn locked(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Clock>>> {
        self.at.lock().unwrap_or_else(|error| error.into_inner())
    }

    /// What an atomic load at an address meets.
    pub(crate) fn met_at(&self, address: u64) -> Option<Arc<Clock>> {
        self.locked().get(&address).cloned()
    }

    /// Leaves a clock at an address: an update keeps what was there, a store replaces it.
    pub(crate) fn leave(&self, address: u64, clock: Option<&Clock>, keeps: bool) {
        let mut at = self.locked();
        match clock {
            Some(clock) if keeps => merge(Arc::make_mut(at.entry(address).or_default()), clock),
            Some(clock) => {
                at.insert(address, Arc::new(clock.clone()));
            }
            None if keeps => {}
            None => {
                at.remove(&address);
            }
        }
    }
}

/// What the threads of the running block know of other blocks.
#[derive(Default)]
pub(crate) struct Knowledge {
    /// Known to every thread: taken over before the last barrier.
    block: Clock,
    /// Taken over by one thread since.
    pending: Vec<(Moment, Arc<Clock>)>,
    /// Met by atomic operations of a thread, and not taken over by a fence yet.
    met: Vec<(u16, Arc<Clock>)>,
    /// What a thread's last fence made ready to be published.
    fenced: HashMap<u16, Clock>,
}

impl Knowledge {
    pub(crate) fn begin(&mut self) {
        if !self.block.is_empty() || !self.fenced.is_empty() || !self.met.is_empty() {
            *self = Knowledge::default();
        }
    }

    /// Whether a thread of this block knows a moment of another.
    pub(crate) fn has(&self, now: Moment, stamp: Stamp) -> bool {
        covers(&self.block, stamp) || self.pending.iter().any(|(taken, clock)| taken.is_before(now) && covers(clock, stamp))
    }

    pub(crate) fn barrier(&mut self) {
        for (_, clock) in std::mem::take(&mut self.pending) {
            merge(&mut self.block, &clock);
        }
    }

    pub(crate) fn fence(&mut self, block: u32, now: Moment) {
        let (mine, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.met).into_iter().partition(|(thread, _)| *thread == now.thread);
        self.met = rest;
        self.pending.extend(mine.into_iter().map(|(_, clock)| (now, clock)));
        let mut clock = self.block.clone();
        for (taken, other) in &self.pending {
            if taken.is_before(now) {
                merge(&mut clock, other);
            }
        }
        note(&mut clock, block, now);
        self.fenced.insert(now.thread, clock);
    }

    /// An atomic operation of a thread.
    pub(crate) fn atomic(&mut self, published: &Published, address: u64, thread: u16, reads: bool, writes: bool) {
        if reads && let Some(clock) = published.met_at(address) {
            self.met.push((thread, clock));
        }
        if writes {
            published.leave(address, self.fenced.get(&thread), reads);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(epoch: u32, thread: u16) -> Moment {
        Moment { epoch, thread, meeting: 0 }
    }

    /// Block 0 writes, then publishes; block 1 meets it, then reads.
    fn handed_over(fence_before: bool, fence_after: bool, writer: u16, reader: u16, barrier: bool) -> bool {
        let published = Published::default();
        let (mut first, mut second) = (Knowledge::default(), Knowledge::default());
        if fence_before {
            first.fence(0, moment(3, 0));
        }
        first.atomic(&published, 8, 0, true, true);
        second.atomic(&published, 8, 0, true, true);
        if fence_after {
            second.fence(1, moment(5, 0));
        }
        if barrier {
            second.barrier();
        }
        let now = moment(if barrier { 6 } else { 5 }, reader);
        second.has(now, Stamp { block: 0, moment: moment(3, writer) })
    }

    #[test]
    fn a_fence_on_each_side_hands_over() {
        assert!(handed_over(true, true, 0, 0, false));
        assert!(handed_over(true, true, 0, 70, true));
        assert!(!handed_over(true, true, 0, 70, false), "another thread needs a barrier");
        assert!(!handed_over(true, true, 70, 0, false), "another thread's write needed a barrier before the fence");
        assert!(!handed_over(false, true, 0, 0, false));
        assert!(!handed_over(true, false, 0, 0, true));
    }

    #[test]
    fn a_store_replaces_and_an_update_keeps() {
        let published = Published::default();
        let (mut first, mut second) = (Knowledge::default(), Knowledge::default());
        first.fence(0, moment(0, 0));
        first.atomic(&published, 8, 0, false, true);
        second.atomic(&published, 8, 0, true, true);
        assert!(published.met_at(8).is_some_and(|clock| covers(&clock, Stamp { block: 0, moment: moment(0, 0) })));
        second.atomic(&published, 8, 0, false, true);
        assert!(published.met_at(8).is_none());
    }
}
