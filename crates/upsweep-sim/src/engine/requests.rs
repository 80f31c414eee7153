//! From the accesses of lanes to the requests of a warp, and what a request costs.
//!
//! The lanes of a warp do not run in step here, so their accesses are matched afterwards: same place in the kernel, same
//! iteration of the loops around it, not yet taken part in. What the loops' iterations are follows from the order in which a
//! lane enters basic blocks ([`Loops`]), so a branch that only some lanes take shifts nothing.

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// Open requests of a warp before it has to catch up.
const CAPACITY: usize = 128;

/// What is counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Loads from global memory.
    GlobalLoad,
    /// Stores to global memory.
    GlobalStore,
    /// Atomic operations on global memory, and ordered loads and stores.
    GlobalAtomic,
    /// Loads from shared memory.
    SharedLoad,
    /// Stores to shared memory.
    SharedStore,
    /// Atomic operations on shared memory.
    SharedAtomic,
    /// Shuffles.
    Shuffle,
    /// Votes, matches and reductions of a warp.
    Vote,
    /// `__syncwarp`.
    WarpSync,
    /// `__syncthreads`, and barriers of a part of a block.
    Barrier,
    /// Memory fences.
    Fence,
}

impl Kind {
    /// Every kind, in the order of tables.
    pub const ALL: [Kind; 11] = [
        Kind::GlobalLoad,
        Kind::GlobalStore,
        Kind::GlobalAtomic,
        Kind::SharedLoad,
        Kind::SharedStore,
        Kind::SharedAtomic,
        Kind::Shuffle,
        Kind::Vote,
        Kind::WarpSync,
        Kind::Barrier,
        Kind::Fence,
    ];

    /// Name in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::GlobalLoad => "global_load",
            Kind::GlobalStore => "global_store",
            Kind::GlobalAtomic => "global_atomic",
            Kind::SharedLoad => "shared_load",
            Kind::SharedStore => "shared_store",
            Kind::SharedAtomic => "shared_atomic",
            Kind::Shuffle => "shuffle",
            Kind::Vote => "vote",
            Kind::WarpSync => "syncwarp",
            Kind::Barrier => "barrier",
            Kind::Fence => "fence",
        }
    }
}

/// Counts of one kind at one place, or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Instructions of warps.
    pub requests: u64,
    /// Lanes that took part in them.
    pub lanes: u64,
    /// Bytes that the lanes asked for.
    pub bytes: u64,
    /// Sectors of 32 bytes of global memory.
    pub sectors: u64,
    /// Passes over the banks of shared memory.
    pub wavefronts: u64,
    /// The least passes for as many words.
    pub least_wavefronts: u64,
}

impl Count {
    /// Adds another's.
    pub fn add(&mut self, other: &Count) {
        self.requests += other.requests;
        self.lanes += other.lanes;
        self.bytes += other.bytes;
        self.sectors += other.sectors;
        self.wavefronts += other.wavefronts;
        self.least_wavefronts += other.least_wavefronts;
    }

    /// Passes that other words of the same banks cost.
    pub fn bank_conflicts(&self) -> u64 {
        self.wavefronts - self.least_wavefronts
    }
}

/// A request that lanes still join.
#[derive(Clone, Copy)]
struct Request {
    place: u32,
    iteration: u32,
    mask: u32,
    kind: Kind,
    bytes: u8,
    address: [u64; LANES],
}

/// The open requests of a warp.
pub(crate) struct Requests {
    open: Vec<Request>,
    /// Where each lane looks first: behind the request it joined last.
    cursor: [u8; LANES],
}

impl Requests {
    pub(crate) fn new() -> Requests {
        Requests { open: Vec::with_capacity(CAPACITY), cursor: [0; LANES] }
    }

    /// Enters a lane's access. False if there is no room: the lane waits until its warp has caught up.
    #[inline]
    pub(crate) fn join(&mut self, place: u32, iteration: u32, kind: Kind, bytes: u8, lane: usize, address: u64) -> bool {
        let bit = 1u32 << lane;
        let start = self.cursor[lane] as usize;
        let fits = |request: &Request| {
            request.place == place && request.iteration == iteration && request.kind == kind && request.mask & bit == 0
        };
        let length = self.open.len();
        let found = if start < length && fits(&self.open[start]) {
            Some(start)
        } else {
            (start + 1..length).chain(0..start.min(length)).find(|&i| fits(&self.open[i]))
        };
        let position = match found {
            Some(position) => position,
            None if length < CAPACITY => {
                self.open.push(Request { place, iteration, mask: 0, kind, bytes, address: [0; LANES] });
                length
            }
            None => return false,
        };
        let request = &mut self.open[position];
        request.mask |= bit;
        request.address[lane] = address;
        self.cursor[lane] = (position + 1) as u8;
        true
    }

    /// Counts the open requests; the next ones begin anew.
    pub(crate) fn close(&mut self, tally: &mut Tally) {
        for request in &self.open {
            let count = tally.at(request.place, request.kind);
            let lanes = u64::from(request.mask.count_ones());
            count.requests += 1;
            count.lanes += lanes;
            count.bytes += lanes * u64::from(request.bytes);
            match request.kind {
                Kind::GlobalLoad | Kind::GlobalStore | Kind::GlobalAtomic => count.sectors += sectors(request),
                Kind::SharedLoad | Kind::SharedStore | Kind::SharedAtomic => {
                    let (passes, least) = wavefronts(request);
                    count.wavefronts += passes;
                    count.least_wavefronts += least;
                }
                _ => {}
            }
        }
        self.open.clear();
        self.cursor = [0; LANES];
    }
}

fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
}

/// Whether all lanes take part and read neighbours in their order.
fn is_a_run(request: &Request) -> bool {
    let step = u64::from(request.bytes);
    request.mask == u32::MAX && (0..LANES as u64).all(|lane| request.address[lane as usize] == request.address[0] + lane * step)
}

/// Distinct sectors of 32 bytes.
fn sectors(request: &Request) -> u64 {
    let bytes = u64::from(request.bytes);
    if is_a_run(request) {
        return (request.address[LANES - 1] + bytes - 1) / 32 - request.address[0] / 32 + 1;
    }
    let mut seen = [0u64; 2 * LANES];
    let mut count = 0;
    for lane in lanes_of(request.mask) {
        let address = request.address[lane];
        for sector in address / 32..=(address + bytes - 1) / 32 {
            if !seen[..count].contains(&sector) {
                seen[count] = sector;
                count += 1;
            }
        }
    }
    count as u64
}

/// Passes over the 32 banks of 4 bytes, and the least for as many distinct words. Accesses of 8 bytes are served by half
/// warps, of 16 bytes by quarters; a word that several lanes ask for is read once.
fn wavefronts(request: &Request) -> (u64, u64) {
    if request.bytes == 4 && is_a_run(request) {
        return (1, 1);
    }
    let words = u64::from(request.bytes).div_ceil(4);
    let together = if words == 1 { LANES } else { LANES / words as usize };
    let (mut passes, mut least) = (0, 0);
    for first in (0..LANES).step_by(together) {
        let mut bank: [[u64; LANES]; LANES] = [[0; LANES]; LANES];
        let mut in_bank = [0usize; LANES];
        let mut distinct = 0u64;
        for lane in (first..first + together).filter(|lane| request.mask >> lane & 1 != 0) {
            for word in (0..words).map(|i| request.address[lane] / 4 + i) {
                let number = (word % 32) as usize;
                let known = &mut bank[number];
                if !known[..in_bank[number]].contains(&word) {
                    known[in_bank[number]] = word;
                    in_bank[number] += 1;
                    distinct += 1;
                }
            }
        }
        passes += in_bank.iter().max().copied().unwrap_or(0) as u64;
        least += distinct.div_ceil(32);
    }
    (passes, least)
}

/// Counts by place and kind.
pub(crate) struct Tally {
    slots: Vec<Option<(u32, Kind, Count)>>,
    used: usize,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally { slots: vec![None; 256], used: 0 }
    }

    pub(crate) fn at(&mut self, place: u32, kind: Kind) -> &mut Count {
        if self.used * 2 > self.slots.len() {
            self.grow();
        }
        let slot = self.slot(place, kind);
        let (.., count) = self.slots[slot].get_or_insert_with(|| {
            self.used += 1;
            (place, kind, Count::default())
        });
        count
    }

    fn slot(&self, place: u32, kind: Kind) -> usize {
        let mask = self.slots.len() - 1;
        let hash = (u64::from(place) << 4 | kind as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut slot = (hash >> 40) as usize & mask;
        while self.slots[slot].is_some_and(|(p, k, _)| (p, k) != (place, kind)) {
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn grow(&mut self) {
        let more = vec![None; self.slots.len() * 2];
        for (place, kind, count) in std::mem::replace(&mut self.slots, more).into_iter().flatten() {
            let slot = self.slot(place, kind);
            self.slots[slot] = Some((place, kind, count));
        }
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (u32, Kind, Count)> {
        self.slots.iter().flatten().copied()
    }
}

/// How deep loops are followed; deeper ones share a count.
const DEPTH: usize = 6;

/// Which iteration of which loops a thread is in, from the places of the basic blocks it enters: a jump backwards begins
/// another iteration of the loop whose head it reaches, and a block behind the loop's last one leaves it.
#[derive(Clone, Copy)]
pub(crate) struct Loops {
    head: [u32; DEPTH],
    turns: [u32; DEPTH],
    depth: usize,
    last: u32,
    /// The last block of the innermost loop, as far as it was known when the loop was entered; without a loop, no block is beyond.
    limit: u32,
    /// A number for the iteration; the same for lanes that are in the same one.
    pub(crate) iteration: u32,
}

impl Loops {
    pub(crate) const NONE: Loops =
        Loops { head: [0; DEPTH], turns: [0; DEPTH], depth: 0, last: 0, limit: u32::MAX, iteration: 0 };

    /// Where the last basic block began.
    pub(crate) fn last(&self) -> u32 {
        self.last
    }

    /// Enters a basic block. `ends` knows the last block of every loop that any thread has been through.
    #[inline]
    pub(crate) fn enter(&mut self, place: u32, ends: &mut LoopEnds) {
        if place > self.last && place <= self.limit {
            self.last = place;
        } else {
            self.turn(place, ends);
        }
    }

    /// A block that leaves a loop or begins another iteration of one.
    #[cold]
    #[inline(never)]
    fn turn(&mut self, place: u32, ends: &mut LoopEnds) {
        if place > self.last {
            if self.depth > 0 && ends.of(self.head[self.depth - 1]) < place {
                while self.depth > 0 && ends.of(self.head[self.depth - 1]) < place {
                    self.depth -= 1;
                }
                self.number();
            }
        } else {
            while self.depth > 0 && self.head[self.depth - 1] > place {
                self.depth -= 1;
            }
            if self.depth > 0 && self.head[self.depth - 1] == place {
                self.turns[self.depth - 1] += 1;
            } else if self.depth < DEPTH {
                self.head[self.depth] = place;
                self.turns[self.depth] = 1;
                self.depth += 1;
            }
            ends.extend(place, self.last);
            self.number();
        }
        self.last = place;
        self.limit = if self.depth > 0 { ends.of(self.head[self.depth - 1]) } else { u32::MAX };
    }

    fn number(&mut self) {
        let mut number = 0u32;
        for level in 0..self.depth {
            number =
                (number ^ self.head[level]).wrapping_mul(0x9e37_79b1).wrapping_add(self.turns[level].wrapping_mul(0x85eb_ca6b));
        }
        self.iteration = number;
    }
}

/// Last basic blocks of loops, by their first; a kernel has few.
pub(crate) struct LoopEnds {
    known: Vec<(u32, u32)>,
    latest: usize,
}

impl LoopEnds {
    pub(crate) fn new() -> LoopEnds {
        LoopEnds { known: Vec::new(), latest: 0 }
    }

    #[inline]
    fn of(&mut self, head: u32) -> u32 {
        if let Some(&(known, end)) = self.known.get(self.latest)
            && known == head
        {
            return end;
        }
        match self.known.iter().position(|&(known, _)| known == head) {
            Some(position) => {
                self.latest = position;
                self.known[position].1
            }
            None => 0,
        }
    }

    fn extend(&mut self, head: u32, end: u32) {
        match self.known.iter_mut().find(|(known, _)| *known == head) {
            Some((_, known)) => *known = end.max(*known),
            None => self.known.push((head, end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(bytes: u8, mask: u32, address: impl Fn(u64) -> u64) -> Request {
        let address = std::array::from_fn(|lane| address(lane as u64));
        Request { place: 0, iteration: 0, mask, kind: Kind::SharedLoad, bytes, address }
    }

    #[test]
    fn sectors_of_a_request() {
        assert_eq!(sectors(&request(4, u32::MAX, |lane| 4096 + 4 * lane)), 4);
        assert_eq!(sectors(&request(4, u32::MAX, |lane| 4100 + 4 * lane)), 5);
        assert_eq!(sectors(&request(16, u32::MAX, |lane| 4096 + 16 * lane)), 16);
        assert_eq!(sectors(&request(4, u32::MAX, |lane| 4096 + 32 * lane)), 32);
        assert_eq!(sectors(&request(4, u32::MAX, |_| 4096)), 1);
        assert_eq!(sectors(&request(4, 1, |_| 4096)), 1);
    }

    #[test]
    fn passes_over_the_banks() {
        assert_eq!(wavefronts(&request(4, u32::MAX, |lane| 4 * lane)), (1, 1));
        assert_eq!(wavefronts(&request(4, u32::MAX, |lane| 8 * lane)), (2, 1));
        assert_eq!(wavefronts(&request(4, u32::MAX, |lane| 128 * lane)), (32, 1));
        assert_eq!(wavefronts(&request(4, u32::MAX, |_| 64)), (1, 1), "one word for all");
        assert_eq!(wavefronts(&request(8, u32::MAX, |lane| 8 * lane)), (2, 2));
        assert_eq!(wavefronts(&request(16, u32::MAX, |lane| 16 * lane)), (4, 4));
        assert_eq!(wavefronts(&request(2, u32::MAX, |lane| 2 * lane)), (1, 1));
        assert_eq!(wavefronts(&request(4, 0x5555_5555, |lane| 4 * lane)), (1, 1));
    }

    #[test]
    fn lanes_that_skip_a_branch_of_a_loop_join_the_same_iteration() {
        // A loop of blocks 10, 20 (some lanes, some turns), 30; an access in each.
        let mut requests = Requests::new();
        let mut ends = LoopEnds::new();
        for lane in 0..LANES {
            let mut loops = Loops::NONE;
            for turn in 0..4 {
                for block in [10, 20, 30] {
                    if block == 20 && (lane + turn) % 2 == 0 {
                        continue;
                    }
                    loops.enter(block, &mut ends);
                    assert!(requests.join(block + 1, loops.iteration, Kind::SharedLoad, 4, lane, 4 * lane as u64));
                }
            }
        }
        let mut tally = Tally::new();
        requests.close(&mut tally);
        let count = |place| *tally.slots.iter().flatten().find(|(p, ..)| *p == place).map(|(.., count)| count).unwrap();
        assert_eq!((count(11).requests, count(11).lanes), (4, 128));
        assert_eq!((count(21).requests, count(21).lanes), (4, 64));
        assert_eq!((count(31).requests, count(31).lanes), (4, 128));
    }

    #[test]
    fn a_full_table_says_so() {
        let mut requests = Requests::new();
        for place in 0..CAPACITY as u32 {
            assert!(requests.join(place, 0, Kind::GlobalLoad, 4, 0, 0));
        }
        assert!(!requests.join(9999, 0, Kind::GlobalLoad, 4, 0, 0));
        assert!(requests.join(5, 0, Kind::GlobalLoad, 4, 1, 0));
    }

    #[test]
    fn many_places_are_kept_apart() {
        let mut tally = Tally::new();
        for place in 0..1000 {
            tally.at(place, Kind::GlobalLoad).requests += u64::from(place);
            tally.at(place, Kind::SharedLoad).requests += 1;
        }
        assert_eq!(tally.entries().count(), 2000);
        assert_eq!(tally.at(77, Kind::GlobalLoad).requests, 77);
    }
}
