//! The fuzz bodies as bounded property tests: arbitrary bytes, and well-formed files with a few bytes changed.

use proptest::prelude::*;
use upsweep_cli::fuzz;

/// An `.npy` file of version 1.
fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// A `.safetensors` file.
fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

fn npy_seeds() -> Vec<Vec<u8>> {
    let header =
        |descr: &str, order: &str, shape: &str| format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n");
    vec![
        npy(&header("'<f4'", "False", "(2, 3)"), &[0x3f; 24]),
        npy(&header("'<f2'", "True", "(2, 3)"), &[0x11; 12]),
        npy(&header("'|b1'", "False", "(3,)"), &[0, 1, 1]),
        npy(&header("'<i8'", "False", "()"), &[1; 8]),
        npy(&header("'>f4'", "False", "(0,)"), &[]),
        npy(&header("[('a', '<f4'), ('b', '<i2', (2,))]", "False", "(1,)"), &[0; 8]),
        npy(&header("'|O'", "False", "(1,)"), &[0; 8]),
        npy(&header("'<f8'", "False", "(4611686018427387904, 2)"), &[]),
        npy(&"[".repeat(9000), &[]),
        npy(&format!("{{'shape': ({}", "9".repeat(9000)), &[]),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }\n", &[]),
        b"\x93NUMPY\x03\x00\xff\xff\xff\xff{".to_vec(),
    ]
}

fn safetensors_seeds() -> Vec<Vec<u8>> {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"__metadata__":{{"k":"v"}},"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    vec![
        safetensors(&one("F32", "[2]", "[0,8]"), &[1; 8]),
        safetensors(&one("BOOL", "[2]", "[0,2]"), &[0, 1]),
        safetensors(&one("BF16", "[0,5]", "[0,0]"), &[]),
        safetensors(&one("F64", "[4611686018427387904,8]", "[0,8]"), &[0; 8]),
        safetensors(&one("U8", "[18446744073709551615]", "[0,18446744073709551615]"), &[]),
        safetensors(&one("F4", "[1]", "[0,1]"), &[0]),
        safetensors(
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F16","shape":[2],"data_offsets":[1,5]}}"#,
            &[1; 5],
        ),
        safetensors(
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#,
            &[1],
        ),
        safetensors(&format!(r#"{{"a":{}"#, "[".repeat(50_000)), &[]),
        u64::MAX.to_le_bytes().to_vec(),
    ]
}

/// Well-formed and hostile files with some bytes overwritten and the end cut off or padded.
fn damaged(seeds: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    (prop::sample::select(seeds), changes, -8i64..8).prop_map(|(mut bytes, changes, longer)| {
        for (position, value) in changes {
            let position = position.index(bytes.len());
            bytes[position] = value;
        }
        bytes.resize((bytes.len() as i64 + longer).max(0) as usize, 0);
        bytes
    })
}

#[test]
fn every_seed_returns() {
    npy_seeds().iter().for_each(|seed| fuzz::npy(seed));
    safetensors_seeds().iter().for_each(|seed| fuzz::safetensors(seed));
    for byte in 0..=255 {
        fuzz::problem(&[byte; 200]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_as_npy(bytes in prop_oneof![damaged(npy_seeds()), prop::collection::vec(any::<u8>(), 0..200)]) {
        fuzz::npy(&bytes);
    }

    #[test]
    fn any_bytes_as_safetensors(bytes in prop_oneof![damaged(safetensors_seeds()), prop::collection::vec(any::<u8>(), 0..200)]) {
        fuzz::safetensors(&bytes);
    }

    #[test]
    fn any_bytes_as_a_problem(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzz::problem(&bytes);
    }
}
