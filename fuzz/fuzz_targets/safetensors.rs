//! See `upsweep_cli::fuzz::safetensors`.
#![no_main]

// As they are, and as the header and data of a file whose first eight bytes are right: chance finds those too rarely.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    upsweep_cli::fuzz::safetensors(bytes);
    let Some((&cut, rest)) = bytes.split_first() else { return };
    let header = (rest.len() * usize::from(cut) / 255) as u64;
    upsweep_cli::fuzz::safetensors(&[&header.to_le_bytes()[..], rest].concat());
});
