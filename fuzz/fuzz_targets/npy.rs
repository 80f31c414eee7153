//! See `upsweep_cli::fuzz::npy`.
#![no_main]

// As they are, and as the header and data of a file whose first ten bytes are right: chance finds those too rarely.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    upsweep_cli::fuzz::npy(bytes);
    let Some((&cut, rest)) = bytes.split_first() else { return };
    let header = (rest.len() * usize::from(cut) / 255) as u16;
    upsweep_cli::fuzz::npy(&[b"\x93NUMPY\x01\x00", &header.to_le_bytes()[..], rest].concat());
});
