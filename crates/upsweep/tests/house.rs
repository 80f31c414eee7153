//! The house's rules, held by tests: every kernel file is a rung of the ladder and looks as kernel files do, and the
//! semantics page names tests that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use upsweep::device::caps::{Caps, CudaCaps, DeviceKind};
use upsweep::flow::{Expect, KernelFile, RungFacts};
use upsweep::ops::reduce::{ReduceProblem, plan};
use upsweep::types::{DType, Layout, Operator};

/// One entry of a ladder, as far as the checks need it.
#[derive(Clone, Debug)]
struct Entry {
    /// For instance `reduce`.
    op: &'static str,
    device: DeviceKind,
    number: String,
    name: String,
    /// Kernel file below `src/`; none for a CPU rung.
    file: Option<&'static str>,
}

/// Every ladder's entries.
fn entries() -> Vec<Entry> {
    let entry = |rung: &RungFacts| Entry {
        op: rung.op,
        device: rung.device,
        number: rung.number.to_string(),
        name: rung.name.to_string(),
        file: rung.file.map(|file| file.path),
    };
    upsweep::ops::rungs().iter().map(entry).collect()
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The files below a folder with one of the extensions, in a fixed order.
fn walk(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| extensions.iter().any(|x| e == *x)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Kernel files: CUDA C++ anywhere below `ops/`, Rust tile kernels in its `cuda` folders.
fn kernel_files(source: &Path) -> Vec<PathBuf> {
    let mut files = walk(&source.join("ops"), &["cu", "cuh", "rs"]);
    let is_host = |path: &PathBuf| path.extension().is_some_and(|e| e == "rs") && !path.parent().unwrap().ends_with("cuda");
    files.retain(|path| !is_host(path));
    files
}

/// The number that a rung's files carry: `5` for rung `5b`.
fn digits(number: &str) -> Option<u32> {
    number.trim_end_matches(|c: char| c.is_ascii_lowercase()).parse().ok()
}

/// What the first five lines of a kernel file begin with.
const HEAD: [&str; 5] = ["// Rung ", "// input:", "// launch:", "// cost:", "// source:"];

/// Text without comments and the contents of strings, so that words in them do not count.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(position) = rest.find(['/', '"']) {
        code.push_str(&rest[..position]);
        rest = &rest[position..];
        let (skip, close) = if rest.starts_with("//") {
            (2, "\n")
        } else if rest.starts_with("/*") {
            (2, "*/")
        } else if rest.starts_with('"') {
            (1, "\"")
        } else {
            code.push('/');
            rest = &rest[1..];
            continue;
        };
        let end = rest[skip..].find(close).map_or(rest.len(), |at| skip + at + close.len());
        code.push(if close == "\n" { '\n' } else { ' ' });
        rest = &rest[end..];
    }
    code.push_str(rest);
    code
}

/// Every fault of the kernel files below `source` against the ladders' entries, in words.
fn faults(source: &Path, entries: &[Entry]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for entry in entries {
        if !seen.insert((entry.op, entry.device.name(), entry.number.clone())) {
            faults.push(format!("{}: rung {} of {} is there twice", entry.op, entry.number, entry.device.name()));
        }
        if digits(&entry.number).is_none() {
            faults.push(format!("{}: rung number {} is not a number with at most letters behind it", entry.op, entry.number));
        }
        if let Some(file) = entry.file.filter(|f| !source.join(f).is_file()) {
            faults.push(format!("{}: rung {} names {file}, which does not exist", entry.op, entry.number));
        }
    }
    for path in kernel_files(source) {
        let file = path.strip_prefix(source).unwrap().to_string_lossy().replace('\\', "/");
        let mut fault = |why: String| faults.push(format!("{file}: {why}"));
        let users: Vec<&Entry> = entries.iter().filter(|e| e.file == Some(file.as_str())).collect();
        if users.is_empty() {
            fault("no entry of a ladder names it".into());
        }
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        let (number, name) = stem.split_once('_').unwrap_or((stem.as_str(), ""));
        let belongs = |e: &&Entry| digits(&e.number) == number.parse().ok() && e.name == name;
        if !users.is_empty() && !users.iter().any(belongs) {
            let rungs: Vec<String> = users.iter().map(|e| format!("{}-{}", e.number, e.name)).collect();
            fault(format!("its name has the number and name of none of its rungs ({})", rungs.join(", ")));
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for (position, begin) in HEAD.iter().enumerate() {
            if !lines.get(position).is_some_and(|line| line.starts_with(begin)) {
                fault(format!("line {} of the head does not begin with {begin:?}", position + 1));
            }
        }
        if lines.get(HEAD.len()).is_some_and(|line| line.starts_with("//")) {
            fault("the head has more than five lines".into());
        }
        let code = code(&text);
        if code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| ["asm", "__asm__", "__asm"].contains(&word)) {
            fault("inline assembly belongs in kernels/layer.cuh".into());
        }
        if code.lines().any(|line| line.trim_start().strip_prefix('#').is_some_and(|l| l.trim_start().starts_with("include"))) {
            fault("kernel files include nothing: the shared headers are put before them".into());
        }
    }
    faults
}

#[test]
fn every_kernel_file_is_a_rung_and_looks_like_one() {
    let faults = faults(&source(), &entries());
    assert!(faults.is_empty(), "\n  {}\n", faults.join("\n  "));
}

#[test]
fn embedded_kernels_are_the_files_text() {
    for file in upsweep::ops::rungs().iter().filter_map(|rung| rung.file) {
        assert_eq!(std::fs::read_to_string(source().join(file.path)).unwrap(), file.text, "{}", file.path);
    }
}

/// What is compiled ahead of time is what the ladders list, made from the files as they are now.
#[test]
fn tile_kernels_are_embedded_for_every_target() {
    use sha2::{Digest, Sha256};
    use upsweep::kernels::tiles;
    let files: BTreeMap<&str, KernelFile> =
        upsweep::ops::rungs().iter().filter_map(|rung| rung.file).filter(|f| !f.tiles.is_empty()).map(|f| (f.path, f)).collect();
    let digest = |text: &str| Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let sources: Vec<(&str, String)> = files.values().map(|file| (file.path, digest(file.text))).collect();
    let made: Vec<(&str, String)> = tiles::SOURCES.iter().map(|(path, digest)| (*path, digest.to_string())).collect();
    assert_eq!(made, sources, "`cargo xtask tiles` compiles what changed");
    let listed = files.values().flat_map(|file| file.tiles.iter().map(move |kernel| (file.path, kernel)));
    let mut count = 0;
    for (path, kernel) in listed {
        for (compute, target) in tiles::TARGETS {
            let cubin = tiles::find(path, kernel, compute).unwrap_or_else(|| panic!("{path} {kernel:?} {target}"));
            assert_eq!(cubin.compute, compute);
            assert!((32..=1024).contains(&cubin.threads) && cubin.threads.is_multiple_of(32), "{cubin:?}");
            // Without the CUDA backend nothing is embedded.
            assert_eq!(cubin.image.starts_with(b"\x7fELF"), cfg!(feature = "cuda"), "{path} {kernel:?} {target}");
            count += 1;
        }
        // Later devices of the first generation run its cubins; those of others have none.
        assert_eq!(tiles::find(path, kernel, (8, 9)).unwrap().compute, (8, 0));
        assert!([(7, 5), (9, 1), (10, 3)].iter().all(|compute| tiles::find(path, kernel, *compute).is_none()));
    }
    assert_eq!(count, tiles::cubins().len());
}

/// A copy of the kernel files in a folder of its own, removed when dropped.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str) -> Copy {
        let folder = std::env::temp_dir().join(format!("upsweep-house-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        for file in kernel_files(&source()) {
            let to = folder.join(file.strip_prefix(source()).unwrap());
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(&file, to).unwrap();
        }
        Copy(folder)
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join("ops/reduce/cuda").join(file), text).unwrap();
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const TOY: &str = "// Rung 98, toy: one thread adds everything.
// input: n elements; output: one result
// launch: grid 1, block 1
// cost: one read of n items; n dependent combines
// source: a test

namespace upsweep {
template <class Op> UPSWEEP_KERNEL reduce_toy(const void* input, u64 n, void* output) {}
}  // namespace upsweep
";

fn toy_entry() -> Entry {
    let file = Some("ops/reduce/cuda/98_toy.cu");
    Entry { op: "reduce", device: DeviceKind::Cuda, number: "98".into(), name: "toy".into(), file }
}

#[test]
fn a_kernel_file_without_an_entry_is_found_and_an_entry_settles_it() {
    let copy = Copy::new("toy");
    assert_eq!(faults(&copy.0, &entries()), Vec::<String>::new());
    copy.write("98_toy.cu", TOY);
    assert_eq!(faults(&copy.0, &entries()), ["ops/reduce/cuda/98_toy.cu: no entry of a ladder names it"]);
    // A tile kernel is a kernel file, too; the host's code beside the folder is none.
    copy.write("96_toy.rs", TOY);
    assert_eq!(faults(&copy.0, &entries()).len(), 2);
    std::fs::remove_file(copy.0.join("ops/reduce/cuda/96_toy.rs")).unwrap();
    let mut with_toy = entries();
    with_toy.push(toy_entry());
    assert_eq!(faults(&copy.0, &with_toy), Vec::<String>::new());
    with_toy.push(toy_entry());
    assert_eq!(faults(&copy.0, &with_toy), ["reduce: rung 98 of cuda is there twice"]);
}

#[test]
fn each_fault_of_a_kernel_file_is_found() {
    let copy = Copy::new("faults");
    let mut entries = entries();
    entries.push(toy_entry());
    let only = |text: &str, part: &str| {
        copy.write("98_toy.cu", text);
        let found = faults(&copy.0, &entries);
        assert!(found.len() == 1 && found[0].contains(part), "{part}: {found:?}");
    };
    only(&TOY.replace("{}", "{ asm(\"nop;\"); }"), "inline assembly");
    only(&TOY.replace("namespace upsweep {\n", "#  include <cuda_fp16.h>\n"), "include nothing");
    only(&TOY.replacen("// cost: ", "// price: ", 1), "\"// cost:\"");
    only(&TOY.replacen("\n\nnamespace", "\n// more\nnamespace", 1), "more than five lines");
    // In a comment or a text the words mean nothing.
    copy.write("98_toy.cu", &TOY.replace("{}", "{ /* no asm */ const char* s = \"asm\"; } // #include asm"));
    assert_eq!(faults(&copy.0, &entries), Vec::<String>::new());

    std::fs::remove_file(copy.0.join("ops/reduce/cuda/98_toy.cu")).unwrap();
    let found = faults(&copy.0, &entries);
    assert!(found.len() == 1 && found[0].contains("does not exist"), "{found:?}");

    copy.write("97_toy.cu", TOY);
    entries.last_mut().unwrap().file = Some("ops/reduce/cuda/97_toy.cu");
    let found = faults(&copy.0, &entries);
    assert!(found.len() == 1 && found[0].contains("none of its rungs (98-toy)"), "{found:?}");
}

/// The rows of the semantics page's tables: the row's question, and the tests its marker names.
fn semantics(page: &str) -> Vec<(String, Vec<String>)> {
    let is_row = |line: &&str| line.starts_with('|') && !line.starts_with("|---") && !line.starts_with("| question");
    let row = |line: &str| {
        let question = line.trim_start_matches('|').split('|').next().unwrap_or_default().trim().to_string();
        let marker = line.split_once("<!-- tests:").and_then(|(_, rest)| rest.split_once("-->")).map_or("", |(names, _)| names);
        (question, marker.split(',').map(|name| name.trim().to_string()).filter(|name| !name.is_empty()).collect())
    };
    page.lines().filter(is_row).map(row).collect()
}

/// Names of the functions that carry a test attribute in Rust text.
fn test_names(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut marked = false;
    for line in text.lines().map(str::trim) {
        if line == "#[test]" {
            marked = true;
        } else if let Some(rest) = line.strip_prefix("fn ").filter(|_| marked) {
            names.insert(rest.split(['(', '<']).next().unwrap_or_default().to_string());
            marked = false;
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            marked = false;
        }
    }
    names
}

#[test]
fn every_row_of_the_semantics_page_names_tests_that_exist() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = workspace.join("docs/src/semantics.md");
    let Ok(page) = std::fs::read_to_string(&page) else {
        // The published package has no book; in the repository the page exists, which the next line makes sure of.
        assert!(!workspace.join("docs/book.toml").exists(), "{} is missing", page.display());
        return;
    };
    let mut names = BTreeSet::new();
    for file in walk(&workspace.join("crates"), &["rs"]) {
        names.extend(test_names(&std::fs::read_to_string(&file).unwrap()));
    }
    let rows = semantics(&page);
    assert!(rows.len() >= 12, "only {} rows were found", rows.len());
    let mut faults = Vec::new();
    for (question, tests) in rows {
        if tests.is_empty() {
            faults.push(format!("{question}: no test is named"));
        }
        faults.extend(tests.iter().filter(|t| !names.contains(*t)).map(|test| format!("{question}: there is no test `{test}`")));
    }
    assert!(faults.is_empty(), "\n  {}\n", faults.join("\n  "));
}

#[test]
fn the_semantics_check_sees_missing_markers_and_plain_functions() {
    let page = "| question | rule |\n|---|---|\n| a | b <!-- tests: x, y --> |\n| c | d |\n";
    assert_eq!(semantics(page), [("a".to_string(), vec!["x".to_string(), "y".to_string()]), ("c".to_string(), vec![])]);
    let names = test_names("#[test]\n#[should_panic]\nfn x() {}\nfn y() {}\n#[test]\nlet z = 1;\nfn w() {}\n");
    assert_eq!(names, BTreeSet::from(["x".to_string()]));
}

#[test]
fn the_planner_picks_deterministic_rungs_only() {
    for caps in CudaCaps::known() {
        for operator in Operator::reductions() {
            for dtype in DType::all().filter(|dtype| operator.accepts(*dtype)) {
                for length in [1, 1 << 10, 1 << 17, 1 << 24, 1 << 28] {
                    let rows = Layout::contiguous(&[3, length]).unwrap();
                    for problem in
                        [ReduceProblem::whole(operator, dtype, length), ReduceProblem::new(operator, dtype, &rows, Some(&[1]))]
                    {
                        let plan = plan(&problem.unwrap(), &Caps::Cuda(caps.clone())).unwrap();
                        assert!(
                            plan.rung.deterministic && plan.rung.expect == Expect::Pass,
                            "{} on {}",
                            plan.rung.id(),
                            caps.name
                        );
                    }
                }
            }
        }
    }
}

/// The first Rust example of a Markdown text.
fn example(text: &str) -> Option<&str> {
    text.split_once("```rust\n")?.1.split_once("```").map(|(code, _)| code)
}

#[test]
fn the_front_pages_show_the_example_that_the_package_tests() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let ours = std::fs::read_to_string(here.join("README.md")).unwrap();
    let ours = example(&ours).expect("the package's README has an example");
    for page in ["../../README.md", "../../docs/src/use.md"] {
        // The published package stands alone.
        if let Ok(text) = std::fs::read_to_string(here.join(page)) {
            assert_eq!(example(&text), Some(ours), "{page}");
        }
    }
}
