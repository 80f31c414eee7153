//! The command as its users meet it: exit codes, and the form of what is printed, on the CPU.

use assert_cmd::Command;
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;

/// The command, with nothing of the caller's environment that would change its answers.
fn upsweep(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_upsweep"));
    command.args(arguments).env_remove("CUDA_VISIBLE_DEVICES").env_remove("UPSWEEP_CACHE");
    command
}

/// Exit code, standard output, standard error.
fn outcome(arguments: &[&str]) -> (i32, String, String) {
    let output = upsweep(arguments).output().expect("the command starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the command prints UTF-8");
    (output.status.code().expect("the command was not killed by a signal"), text(output.stdout), text(output.stderr))
}

/// Standard output of a command that must succeed.
fn stdout(arguments: &[&str]) -> String {
    let (code, out, err) = outcome(arguments);
    assert_eq!(code, 0, "{arguments:?}: {err}");
    out
}

fn json(arguments: &[&str]) -> Value {
    let text = stdout(&[arguments, &["--format", "json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{arguments:?} printed no JSON: {e}\n{text}"))
}

fn has_driver() -> bool {
    json(&["doctor"])["findings"].as_array().unwrap().iter().any(|f| f["what"] == "device" && f["found"] == true)
}

/// An `.npy` file of f32, version 1.
fn write_npy(path: &Path, descr: &str, fortran: bool, shape: &str, data: &[u8]) {
    let order = if fortran { "True" } else { "False" };
    let header = format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    std::fs::write(path, bytes).unwrap();
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// Header text and data of a written `.npy` file.
fn read_npy(path: &Path) -> (String, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    let length = u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    (String::from_utf8(bytes[10..10 + length].to_vec()).unwrap(), bytes[10 + length..].to_vec())
}

#[test]
fn list_shows_every_table_row() {
    let value = json(&["list"]);
    assert_eq!(value["ops"], serde_json::json!(["reduce", "scan", "softmax"]));
    assert_eq!(value["operators"].as_array().unwrap().len(), upsweep::types::Operator::TABLE.len());
    assert_eq!(value["dtypes"].as_array().unwrap().len(), upsweep::types::DType::TABLE.len());
    for rung in value["rungs"].as_array().unwrap() {
        for key in ["op", "rung", "device", "operators", "dtypes", "deterministic", "changed", "helps", "cost", "source"] {
            assert!(!rung[key].is_null(), "{rung}");
        }
    }
    for format in ["table", "csv", "md"] {
        let text = stdout(&["list", "--format", format]);
        assert!(text.contains("logsumexp") && text.contains("sequential"), "{format}: {text}");
    }
}

#[test]
fn explain_tells_each_rungs_story() {
    let text = stdout(&["explain", "reduce/0", "--device", "cpu"]);
    for part in ["what changed", "why it helps", "cost", "source", "claims", "figure"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let rungs = json(&["list"])["rungs"].as_array().unwrap().clone();
    for op in ["reduce", "scan", "softmax"] {
        let explained = json(&["explain", op])["rungs"].as_array().unwrap().len();
        assert_eq!(explained, rungs.iter().filter(|rung| rung["op"] == op).count(), "{op}");
    }
    let (code, _, err) = outcome(&["explain", "reduce/99"]);
    assert_eq!(code, 2);
    assert!(err.contains("`99`") && err.contains("0-sequential"), "{err}");
}

#[test]
fn wrong_usage_is_exit_2_and_says_what_is_allowed() {
    for (arguments, word) in [
        (&["ladder", "fold"][..], "reduce"),
        (&["ladder", "reduce", "--n", "2^99"], "2^28"),
        (&["ladder", "reduce", "--dtype", "f8"], "bf16"),
        (&["ladder", "reduce", "--device", "tpu"], "cuda:INDEX"),
        (&["ladder", "reduce", "--device", "cpu", "--block", "128"], "--block"),
        (&["explain", "reduce/"], "OP/RUNG"),
        (&["verify", "reduce/nothing", "--device", "cpu"], "0-sequential"),
        (&["verify", "--operator", "nothing", "--device", "cpu"], "log_softmax"),
        (&["run", "median", "x.npy"], "logsumexp"),
        (&["run", "sum", "x.txt", "--device", "cpu"], ".safetensors"),
        (&["run", "sum", "x.npy", "--out", "y.bin"], ".npy"),
        (&["compare", "no-such-a.json", "no-such-b.json"], "no-such-a.json"),
        (&["frobnicate"], "Usage"),
    ] {
        let (code, out, err) = outcome(arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}: {err}");
        assert!(err.contains(word), "{arguments:?}: {err}");
        assert!(!err.contains("panicked"), "{err}");
    }
}

#[test]
fn a_missing_device_is_exit_3_with_the_next_step() {
    if has_driver() {
        let (code, _, err) = outcome(&["ladder", "reduce", "--device", "cuda:4096"]);
        assert_eq!(code, 3);
        assert!(err.contains("Next step: "), "{err}");
        return;
    }
    for command in
        [&["ladder", "reduce"][..], &["verify", "reduce"], &["bench", "reduce"], &["checklist"], &["run", "sum", "x.npy"]]
    {
        let (code, out, err) = outcome(&[command, &["--device", "cuda"]].concat());
        assert_eq!((code, out.as_str()), (3, ""), "{command:?}: {err}");
        assert!(err.contains("Next step: ") && err.contains("--device cpu"), "{err}");
    }
}

#[test]
fn doctor_never_fails() {
    let value = json(&["doctor"]);
    let findings = value["findings"].as_array().unwrap();
    for finding in findings {
        assert!(finding["found"] == true || finding["next_step"].is_string(), "what is missing has a next step: {finding}");
    }
    assert!(findings.iter().any(|f| f["what"] == "cpu" && f["found"] == true));
}

#[test]
fn a_closed_pipe_is_no_error() {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_upsweep"))
        .args(["list"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn run_reduces_files_of_both_orders() {
    let folder = tempfile::tempdir().unwrap();
    let (c, f) = (folder.path().join("c.npy"), folder.path().join("f.npy"));
    // The same matrix [[0, 1, 2], [3, 4, 5]] in both orders.
    write_npy(&c, "'<f4'", false, "(2, 3)", &floats([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
    write_npy(&f, "'<f4'", true, "(2, 3)", &floats([0.0, 3.0, 1.0, 4.0, 2.0, 5.0]));
    for file in [&c, &f] {
        let file = file.to_str().unwrap();
        let run = |arguments: &[&str]| json(&[&["run", arguments[0], file, "--device", "cpu"], &arguments[1..]].concat());
        assert_eq!(run(&["sum", "--axis", "-1"])["values"], serde_json::json!([3.0, 12.0]));
        assert_eq!(run(&["max", "--axis", "0"])["values"], serde_json::json!([3.0, 4.0, 5.0]));
        assert_eq!(run(&["argmax"])["values"], serde_json::json!([5]));
        assert_eq!(run(&["sum", "--axis", "0,1"])["values"], serde_json::json!([15.0]));
        assert_eq!(run(&["sum", "--axis", "0", "--axis", "-1"])["values"], serde_json::json!([15.0]));
        let text = stdout(&["run", "mean", file, "--device", "cpu"]);
        assert_eq!(text.split_whitespace().last(), Some("2.5"));
        let text = stdout(&["run", "sum", file, "--device", "cpu", "--axis", "-1"]);
        assert!(text.contains("[2]") && text.contains("[3.0, 12.0]"), "{text}");
        assert_eq!(outcome(&["run", "sum", file, "--device", "cpu", "--axis", "2"]).0, 2);
        assert_eq!(outcome(&["run", "sum", file, "--device", "cpu", "--axis", "0,0"]).0, 2);
        assert_eq!(outcome(&["run", "max", file, "--device", "cpu", "--accuracy", "compensated"]).0, 2);
        assert_eq!(outcome(&["run", "sum", file, "--device", "cpu", "--tensor", "a"]).0, 2);
    }
}

#[test]
fn run_scans_and_takes_softmaxes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    write_npy(&path, "'<f4'", false, "(2, 3)", &floats([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
    let file = path.to_str().unwrap();
    let run = |arguments: &[&str]| json(&[&["run", arguments[0], file, "--device", "cpu"], &arguments[1..]].concat());
    assert_eq!(run(&["cumsum"])["values"], serde_json::json!([0.0, 1.0, 3.0, 6.0, 10.0, 15.0]));
    let along = run(&["cumsum", "--axis", "0"]);
    assert_eq!(
        (&along["values"], &along["output_shape"]),
        (&serde_json::json!([0.0, 1.0, 2.0, 3.0, 5.0, 7.0]), &serde_json::json!([2, 3]))
    );
    assert_eq!(run(&["cumprod", "--axis", "1"])["values"], serde_json::json!([0.0, 0.0, 0.0, 3.0, 12.0, 60.0]));
    assert_eq!(run(&["cummax"])["values"], serde_json::json!([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
    assert_eq!(run(&["cummin"])["values"], serde_json::json!([0.0, 0.0, 0.0, 0.0, 0.0, 0.0]));
    for (axis, neighbours) in [("0", [0, 3]), ("1", [0, 1])] {
        let values = run(&["softmax", "--axis", axis])["values"].clone();
        let at = |i: usize| values[i].as_f64().unwrap();
        let distance = (neighbours[1] - neighbours[0]) as f64;
        let ratio = at(neighbours[1]) / at(neighbours[0]);
        assert!((ratio / distance.exp() - 1.0).abs() < 1e-5, "{values}");
    }
    let logs = run(&["log_softmax"])["values"].clone();
    let sum: f64 = (0..3).map(|i| logs[i].as_f64().unwrap().exp()).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{logs}");
    assert_eq!(outcome(&["run", "softmax", file, "--device", "cpu", "--axis", "0,1"]).0, 2);
    assert_eq!(outcome(&["run", "cumsum", file, "--device", "cpu", "--accuracy", "compensated"]).0, 2);
    let (code, _, err) = outcome(&["run", "cumulate", file, "--device", "cpu"]);
    assert!(code == 2 && err.contains("cumsum"), "{err}");
}

#[test]
fn completions_and_the_manual_come_from_the_definition() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(stdout(&["completions", shell]).contains("checklist"), "{shell}");
    }
    let manual = stdout(&["man"]);
    assert!(manual.contains(".TH upsweep 1") && manual.contains("no\\-wrong\\-kernels"), "{manual}");
}

#[test]
fn scalars_print_every_digit_and_special_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    for (values, operator, word) in [
        (vec![0.1f32], "sum", "0.1"),
        (vec![1e38, 1e38], "max", "1e38"),
        (vec![f32::NAN, 1.0], "max", "NaN"),
        (vec![f32::NAN, 1.0], "nan_max", "1.0"),
        (vec![], "sum", "0.0"),
        (vec![], "logsumexp", "-inf"),
        (vec![16777216.0, 1.0, 1.0], "sum", "16777218.0"),
    ] {
        write_npy(&path, "'<f4'", false, &format!("({},)", values.len()), &floats(values.iter().copied()));
        let text = stdout(&[
            "run",
            operator,
            path.to_str().unwrap(),
            "--device",
            "cpu",
            "--accuracy",
            if operator == "sum" { "compensated" } else { "fast" },
        ]);
        assert_eq!(text.split_whitespace().last(), Some(word), "{operator} of {values:?}");
    }
    // Nothing to choose from.
    write_npy(&path, "'<f4'", false, "(0,)", &[]);
    let (code, _, err) = outcome(&["run", "max", path.to_str().unwrap(), "--device", "cpu"]);
    assert_eq!(code, 2);
    assert!(err.contains("empty"), "{err}");
}

#[test]
fn an_output_file_is_whole_or_absent() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("x.npy"), folder.path().join("y.npy"));
    write_npy(&input, "'<f4'", false, "(2, 3)", &floats([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
    let (input, out) = (input.to_str().unwrap(), output.to_str().unwrap());
    assert_eq!(stdout(&["run", "sum", input, "--device", "cpu", "--axis", "-1", "--out", out]), "");
    let (header, data) = read_npy(&output);
    assert!(header.contains("'<f4'") && header.contains("(2,)"), "{header}");
    assert_eq!(data, floats([3.0, 12.0]));
    assert_eq!(stdout(&["run", "argmin", input, "--device", "cpu", "--out", out]), "");
    let (header, data) = read_npy(&output);
    assert!(header.contains("'<u8'") && header.contains("()"), "{header}");
    assert_eq!(data, 0u64.to_le_bytes());
    // A failure leaves the old file, and nothing beside it.
    let (code, _, _) = outcome(&["run", "sum", input, "--device", "cpu", "--axis", "7", "--out", out]);
    assert_eq!(code, 2);
    assert_eq!(read_npy(&output).1, 0u64.to_le_bytes());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    // A folder that is not there, and one in the way of the file.
    for target in [folder.path().join("none/y.npy"), {
        std::fs::create_dir(folder.path().join("d.npy")).unwrap();
        folder.path().join("d.npy")
    }] {
        let (code, _, err) = outcome(&["run", "sum", input, "--device", "cpu", "--out", target.to_str().unwrap()]);
        assert_eq!(code, 2, "{err}");
        assert!(err.contains("nothing was written"), "{err}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    // Reports are written the same way.
    let report = folder.path().join("list.json");
    assert_eq!(stdout(&["list", "--format", "json", "--out", report.to_str().unwrap()]), "");
    assert!(serde_json::from_slice::<Value>(&std::fs::read(&report).unwrap()).is_ok());
}

#[test]
fn bf16_results_are_written_as_f32_and_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("x.safetensors"), folder.path().join("y.npy"));
    let header =
        r#"{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[300],"data_offsets":[4,304]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([1.5f32, 2.0].into_iter().flat_map(|x| half::bf16::from_f32(x).to_le_bytes()));
    bytes.extend([1; 300]);
    std::fs::write(&input, bytes).unwrap();
    let file = input.to_str().unwrap();
    let (code, _, err) = outcome(&["run", "max", file, "--device", "cpu", "--tensor", "a", "--out", output.to_str().unwrap()]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("f32"), "{err}");
    let (header, data) = read_npy(&output);
    assert!(header.contains("'<f4'"), "{header}");
    assert_eq!(data, floats([2.0]));
    // 300 ones in u8 are 300, not 44.
    assert_eq!(stdout(&["run", "sum", file, "--device", "cpu", "--tensor", "b"]).split_whitespace().last(), Some("300"));
    let (code, _, err) = outcome(&["run", "sum", file, "--device", "cpu"]);
    assert_eq!(code, 2);
    assert!(err.contains("--tensor") && err.contains("a, b"), "{err}");
}

#[test]
fn malformed_files_are_errors_not_panics() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    let output = folder.path().join("y.npy");
    let check = |path: &Path, word: &str| {
        let (code, out, err) =
            outcome(&["run", "sum", path.to_str().unwrap(), "--device", "cpu", "--out", output.to_str().unwrap()]);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains(word) && !err.contains("panicked"), "{word}: {err}");
        assert!(!output.exists());
    };
    check(&folder.path().join("absent.npy"), "absent.npy");
    check(folder.path(), "no known format");
    std::fs::write(&path, b"").unwrap();
    check(&path, "malformed");
    write_npy(&path, "'<f4'", false, "(2, 3)", &[0; 23]);
    check(&path, "truncated");
    write_npy(&path, "'>f4'", false, "(1,)", &[0; 4]);
    check(&path, "big endian");
    write_npy(&path, "'|O'", false, "(1,)", &[0; 8]);
    check(&path, "object");
    write_npy(&path, "[('a', '<f4')]", false, "(1,)", &[0; 4]);
    check(&path, "structured");
    write_npy(&path, "'<f4'", false, "(-3,)", &[0; 4]);
    check(&path, "malformed");
    write_npy(&path, "'<f4'", false, "(4294967296, 4294967296)", &[0; 4]);
    check(&path, "63 bits");
    std::fs::write(&path, b"\x93NUMPY\x02\x00\xff\xff\xff\xff").unwrap();
    check(&path, "4294967295");
    let header: String = "{'a':".repeat(1500);
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    std::fs::write(&path, bytes).unwrap();
    check(&path, "nests");
    // More outputs than any memory holds, from a file without data.
    write_npy(&path, "'<f4'", false, "(1125899906842624, 0)", &[]);
    let (code, _, err) = outcome(&["run", "sum", path.to_str().unwrap(), "--device", "cpu", "--axis", "-1"]);
    assert_eq!(code, 2);
    assert!(err.contains("memory"), "{err}");
    let path = folder.path().join("x.safetensors");
    std::fs::write(&path, u64::MAX.to_le_bytes()).unwrap();
    check(&path, "malformed");
    std::fs::write(&path, [16u64.to_le_bytes().as_slice(), b"{}"].concat()).unwrap();
    check(&path, "truncated");
    let twice = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    std::fs::write(&path, [(twice.len() as u64).to_le_bytes().as_slice(), twice.as_bytes(), &[0]].concat()).unwrap();
    check(&path, "twice");
}

#[test]
fn the_ladder_shows_every_cpu_rung_verified_and_timed() {
    let record = json(&["ladder", "reduce", "--device", "cpu", "--n", "2^14", "--repeats", "3", "--seed", "7"]);
    let rungs =
        json(&["list"])["rungs"].as_array().unwrap().iter().filter(|r| r["op"] == "reduce" && r["device"] == "cpu").count();
    let rows = record["rows"].as_array().unwrap();
    assert_eq!((rows.len(), record["seed"].as_u64(), record["schema"].as_u64()), (rungs, Some(7), Some(1)));
    for row in rows {
        assert_eq!(
            (row["op"].as_str(), row["device"].as_str(), row["dtype"].as_str()),
            (Some("reduce"), Some("cpu"), Some("f32"))
        );
        assert_eq!(row["verified"], true, "{row}");
        let (seconds, bytes) = (row["seconds"].as_f64().unwrap(), row["bytes"].as_f64().unwrap());
        assert!(seconds > 0.0 && row["rung"].is_string());
        assert_eq!(bytes, (4 << 14) as f64 + 4.0);
        // Rows that fit in a cache are marked and have no percentage; the rate itself is bytes over time.
        let ratio = row["bytes_per_second"].as_f64().unwrap() * seconds / bytes;
        assert!((ratio - 1.0).abs() < 1e-9, "{row}");
    }
    let (code, out, err) = outcome(&["ladder", "reduce", "--device", "cpu", "--n", "2^14", "--repeats", "3"]);
    assert_eq!(code, 0, "{err}");
    for word in ["GB/s", "% of peak", "% of ceiling", "speedup", "error/bound", "3-threads", "Seed"] {
        assert!(out.contains(word), "{word}: {out}");
    }
    assert!(has_driver() || err.contains("CUDA ladder"), "{err}");
    for format in ["csv", "md"] {
        let text = stdout(&["ladder", "reduce", "--device", "cpu", "--n", "2^10", "--repeats", "3", "--format", format]);
        assert!(text.contains("0-sequential"), "{text}");
    }
}

#[test]
fn verify_counts_cases_and_wrong_kernels() {
    let record = json(&["verify", "reduce/3", "--device", "cpu", "--operator", "sum", "--dtype", "f32", "--seed", "11"]);
    assert_eq!(record["rungs"].as_array().unwrap().len(), 1);
    assert_eq!((record["rungs"][0]["verdict"].as_str(), record["verify"]["failed"].as_u64()), (Some("passed"), Some(0)));
    assert!(record["verify"]["passed"].as_u64().unwrap() > 0);
    let wrong = record["wrong_kernels"].as_array().unwrap();
    let (skipped, judged): (Vec<_>, Vec<_>) = wrong.iter().partition(|w| w["skipped"] == true);
    assert!(judged.len() >= 8 && judged.iter().all(|w| w["rejected"] == true), "{judged:?}");
    // A missing barrier and the like are faults that only a GPU can have: shown, and not counted as rejected.
    assert!(!skipped.is_empty() && skipped.iter().all(|w| w["rejected"] == false), "{skipped:?}");
    // A selection that no rung claims verifies nothing, and that is no success.
    let (code, _, err) = outcome(&["verify", "reduce", "--device", "cpu", "--operator", "logsumexp", "--dtype", "i32"]);
    assert_ne!(code, 0, "{err}");
}

#[test]
fn bench_and_checklist_report() {
    let record = json(&["bench", "reduce", "--device", "cpu", "--n", "2^12", "--operator", "max", "--repeats", "3"]);
    let rows = record["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0]["operator"].as_str(), rows[0]["verified"].as_bool()), (Some("max"), Some(true)));
    let record = json(&["checklist", "--device", "cpu", "--n", "2^12"]);
    let boxes = record["boxes"].as_array().unwrap();
    assert_eq!(boxes.len(), 9);
    assert!(boxes.iter().all(|b| b["evidence"].as_str().is_some_and(|e| !e.is_empty())), "{boxes:?}");
}

#[test]
fn shapes_are_recorded_and_reviewed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shapes.json");
    let file = path.to_str().unwrap();
    let bench = ["bench", "scan", "--device", "cpu", "--shapes", "--up-to", "16", "--operator", "sum", "--repeats", "3"];
    let (code, out, err) = outcome(&[&bench[..], &["--format", "json", "--out", file]].concat());
    assert_eq!((code, out.as_str()), (0, ""), "{err}");
    let mut record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let rows = record["rows"].as_array_mut().unwrap();
    assert!(rows.len() >= 6 && rows.iter().all(|row| row["verified"] == true && row["times_least"].is_f64()), "{rows:?}");
    // The machine's mood aside: all points equally good but one, and a peer that is faster at another.
    for row in rows.iter_mut() {
        row["times_least"] = 1.25.into();
    }
    rows[1]["times_least"] = 5.0.into();
    let mut peer = rows[2].clone();
    for key in ["point", "least", "times_least"] {
        peer.as_object_mut().unwrap().remove(key);
    }
    peer["rung"] = "a peer".into();
    peer["seconds"] = (peer["seconds"].as_f64().unwrap() / 2.0).into();
    rows.push(peer);
    std::fs::write(&path, record.to_string()).unwrap();
    let (code, out, err) = outcome(&["review", file]);
    assert_eq!(code, 1, "{err}");
    assert!(out.contains("a peer") && out.contains("5.00"), "{out}");
    let (_, out, _) = outcome(&["review", file, "--format", "json"]);
    let reviewed: Value = serde_json::from_str(&out).unwrap();
    let found = &reviewed["findings"];
    assert_eq!((found["cliffs"].as_array().unwrap().len(), found["behind"].as_array().unwrap().len()), (1, 1), "{found}");
    let (code, _, err) = outcome(&["bench", "scan", "--up-to", "16"]);
    assert_eq!(code, 2, "{err}");
    std::fs::write(&path, record.to_string().replace("\"shapes\"", "\"bench\"")).unwrap();
    let (code, _, err) = outcome(&["review", file]);
    assert_eq!(code, 2, "{err}");
}

#[test]
fn compare_finds_a_regression() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a.json"), folder.path().join("b.json"));
    let (first, second) = (a.to_str().unwrap(), b.to_str().unwrap());
    let ladder = ["ladder", "reduce", "--device", "cpu", "--n", "2^12", "--repeats", "3", "--format", "json", "--out", first];
    assert_eq!(stdout(&ladder), "");
    assert_eq!(json(&["compare", first, first])["regressions"], 0);
    // A thousand times slower in every quantile: beyond any noise.
    let mut record: Value = serde_json::from_slice(&std::fs::read(&a).unwrap()).unwrap();
    for row in record["rows"].as_array_mut().unwrap() {
        for key in ["seconds", "seconds_min", "seconds_p10", "seconds_p90"] {
            row[key] = (row[key].as_f64().unwrap() * 1000.0).into();
        }
    }
    std::fs::write(&b, record.to_string()).unwrap();
    let (code, out, err) = outcome(&["compare", first, second]);
    assert_eq!(code, 1, "{err}");
    assert!(out.contains("SLOWER"), "{out}");
    std::fs::write(&b, "{\"schema\": 99}").unwrap();
    let (code, _, err) = outcome(&["compare", first, second]);
    assert_eq!(code, 2);
    assert!(err.contains("schema 99"), "{err}");
}

/// The learner's path: a rung is verified, a barrier is deleted in a scratch copy, and the fault is told by line.
#[cfg(all(feature = "sim", target_os = "linux"))]
#[test]
fn a_deleted_barrier_is_told_by_line_and_thread() {
    const SHIPPED: &str = include_str!("../../upsweep/src/ops/reduce/cuda/02_sequential.cu");
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("02_sequential.cu");
    let source = copy.to_str().unwrap();
    let asked =
        ["verify", "reduce/2", "--device", "sim", "--operator", "sum", "--dtype", "f32", "--no-wrong-kernels", "--source"];
    let verify = |text: String| {
        std::fs::write(&copy, text).unwrap();
        outcome(&[&asked[..], &[source]].concat())
    };
    let (code, out, err) = verify(SHIPPED.into());
    assert_eq!(code, 0, "{out}{err}");
    let inside_the_loop = SHIPPED.rfind("    __syncthreads();").unwrap();
    let (code, out, _) =
        verify(SHIPPED[..inside_the_loop].to_string() + &SHIPPED[inside_the_loop..].replacen("__syncthreads();", "", 1));
    assert_eq!(code, 1, "{out}");
    assert!(out.contains("02_sequential.cu:17: race in shared memory: thread "), "{out}");
    let (code, _, err) = outcome(&["verify", "reduce/2", "--device", "cpu", "--source", source]);
    assert!(code == 2 && err.contains("--device sim"), "{code} {err}");
}

#[cfg(all(feature = "sim", target_os = "linux"))]
#[test]
fn the_simulator_counts_and_never_times() {
    let record = json(&["ladder", "reduce", "--device", "sim", "--n", "2^14", "--seed", "7"]);
    assert_eq!((record["kind"].as_str(), record["device"]["kind"].as_str()), (Some("counted"), Some("sim")));
    assert_eq!(record["rows"].as_array().map(Vec::len), Some(0), "a row has a time");
    let rung = |name: &str| record["counted"].as_array().unwrap().iter().find(|one| one["rung"] == name).unwrap().clone();
    assert!(rung("1-non_divergent")["figures"]["shared_load_passes"].as_f64() > Some(3.0), "banks conflict");
    assert_eq!(rung("2-sequential")["figures"]["shared_load_passes"].as_f64(), Some(1.0));
    assert!(rung("10-bulk_copy")["why"].as_str().unwrap().starts_with("not simulated"));
    for command in [&["bench", "reduce"][..], &["checklist"]] {
        let (code, _, err) = outcome(&[command, &["--device", "sim"]].concat());
        assert!(code == 2 && err.contains("no time"), "{code} {err}");
    }
}
