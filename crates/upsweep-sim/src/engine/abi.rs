//! The other side of `simulated.h`: what a kernel calls. Each function finds the worker of its host thread, lets it judge and
//! count, and, where the thread has to wait, leaves its coroutine until the scheduler comes back to it.

use super::worker::{Next, Worker};
use std::cell::Cell;
use std::ffi::c_void;

thread_local! {
    static WORKER: Cell<*mut Worker> = const { Cell::new(std::ptr::null_mut()) };
}

/// The functions, in the order of `upsweep_sim::Engine`.
#[repr(C)]
pub(crate) struct Engine {
    access: unsafe extern "C" fn(u64, u32, u32, u64),
    basic_block: unsafe extern "C" fn(u64),
    barrier: unsafe extern "C" fn(u32, u32, u64),
    collective: unsafe extern "C" fn(u32, u32, u64, u32, u32, u64) -> u64,
    fence: unsafe extern "C" fn(u64),
    clock: unsafe extern "C" fn() -> u64,
    coordinate: unsafe extern "C" fn(u32) -> u32,
    dynamic_shared: unsafe extern "C" fn() -> *mut c_void,
}

pub(crate) static ENGINE: Engine = Engine { access, basic_block, barrier, collective, fence, clock, coordinate, dynamic_shared };

/// Makes a worker the one of this host thread, until the guard is dropped.
pub(crate) struct Attached;

impl Attached {
    pub(crate) fn new(worker: *mut Worker) -> Attached {
        WORKER.set(worker);
        Attached
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        WORKER.set(std::ptr::null_mut());
    }
}

/// Runs `work` on this host thread's worker. Null (code of the library that runs outside of a launch) gives `otherwise`.
#[inline]
fn with<R>(otherwise: R, work: impl FnOnce(&mut Worker) -> R) -> R {
    let worker = WORKER.get();
    if worker.is_null() {
        return otherwise;
    }
    // SAFETY: `Attached` set it to a live worker. The scheduler holds no reference while a coroutine runs, and `work` does
    // not leave the coroutine, so this is the only one.
    work(unsafe { &mut *worker })
}

/// Leaves the running coroutine if `next` asks for it.
#[inline]
fn follow(next: Next) {
    match next {
        Next::Go => {}
        Next::Wait => leave(),
        Next::Retry | Next::Never => wait_long(next),
    }
}

#[cold]
fn wait_long(mut next: Next) {
    loop {
        match next {
            Next::Go => return,
            Next::Wait => return leave(),
            Next::Retry => {
                leave();
                next = with(Next::Go, Worker::enter_again);
            }
            Next::Never => loop {
                leave();
            },
        }
    }
}

fn leave() {
    let yielder = with(std::ptr::null(), |worker| worker.yielder());
    if !yielder.is_null() {
        // SAFETY: the running coroutine stored the pointer to its own yielder, which lives on its stack as long as it runs.
        unsafe { (*yielder).suspend(()) };
    }
}

unsafe extern "C" fn access(address: u64, bytes: u32, kind: u32, site: u64) {
    follow(with(Next::Go, |worker| worker.access(address, bytes, kind, site)));
}

unsafe extern "C" fn basic_block(site: u64) {
    follow(with(Next::Go, |worker| worker.basic_block(site)));
}

unsafe extern "C" fn barrier(number: u32, threads: u32, site: u64) {
    follow(with(Next::Go, |worker| worker.barrier(number, threads, site)));
}

unsafe extern "C" fn collective(operation: u32, mask: u32, value: u64, argument: u32, width: u32, site: u64) -> u64 {
    follow(with(Next::Go, |worker| worker.collective(operation, mask, value, argument, width, site)));
    with(0, |worker| worker.result())
}

unsafe extern "C" fn fence(site: u64) {
    with((), |worker| worker.fence(site));
}

unsafe extern "C" fn clock() -> u64 {
    with(0, Worker::clock)
}

unsafe extern "C" fn coordinate(which: u32) -> u32 {
    with(0, |worker| worker.coordinate(which))
}

unsafe extern "C" fn dynamic_shared() -> *mut c_void {
    with(std::ptr::null_mut(), |worker| worker.dynamic_shared())
}
