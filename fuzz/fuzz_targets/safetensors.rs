//! See `upsweep_cli::fuzz::safetensors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| upsweep_cli::fuzz::safetensors(bytes));
