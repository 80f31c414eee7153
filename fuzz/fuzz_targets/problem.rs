//! See `upsweep_cli::fuzz::problem`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| upsweep_cli::fuzz::problem(bytes));
