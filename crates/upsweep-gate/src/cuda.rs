//! A CUDA device as a [`Target`](crate::target::Target): device buffers with guard bands, events for time, and the
//! device error word.
