//! The engine: runs the threads of a block as coroutines, from one meeting point to the next, and follows what they do.
//!
//! A worker (a thread of the host) runs one block at a time. The lanes of a warp run one after the other, each until it waits:
//! at a barrier, at a warp's collective operation, or because it polls memory. What they did until then is grouped into the
//! requests that a warp would have made ([`requests`]), and every access is checked against those before it ([`memory`]).
//!
//! A kernel is C++ and calls back through [`abi`]; all state that both sides reach is behind one raw pointer, [`worker::Worker`],
//! borrowed for no longer than a callback.

pub(crate) mod abi;
pub(crate) mod block;
pub(crate) mod faults;
pub(crate) mod memory;
pub(crate) mod order;
pub(crate) mod requests;
pub(crate) mod worker;
