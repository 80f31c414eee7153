//! Embeds what a run is accountable for: the commit that was built, and the committed records.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=UPSWEEP_COMMIT");
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?).join("../..");
    println!("cargo:rustc-env=UPSWEEP_BUILD_COMMIT={}", commit(&root));
    println!("cargo:rustc-env=UPSWEEP_BUILD_PROFILE={}", env::var("PROFILE").unwrap_or_default());
    embed_records(&root.join("records"))
}

/// The commit: told by the environment, else asked of git, else unknown (a package without its repository).
fn commit(root: &Path) -> String {
    if let Some(told) = env::var("UPSWEEP_COMMIT").ok().filter(|c| !c.trim().is_empty()) {
        return told.trim().to_string();
    }
    let git = |args: &[&str]| {
        let output = Command::new("git").arg("--no-optional-locks").arg("-C").arg(root).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    // A package that was unpacked inside somebody else's repository must not take that one's commit.
    let Some(commit) =
        git(&["ls-files", "--error-unmatch", "crates/upsweep-cli/build.rs"]).and_then(|_| git(&["rev-parse", "HEAD"]))
    else {
        return "unknown".into();
    };
    // A commit moves HEAD or its log; an edit shows in the folders below. A path that does not exist would rerun this
    // script on every build.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]).map(|p| root.join(p)).filter(|p| p.exists()) {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    for folder in ["crates", "Cargo.toml", "Cargo.lock"] {
        println!("cargo:rerun-if-changed={}", root.join(folder).display());
    }
    // Records and generated pages may differ from what was measured; code may not.
    let dirty = git(&["status", "--porcelain", "--", "crates", "Cargo.toml", "Cargo.lock"]).is_none_or(|s| !s.is_empty());
    if dirty { format!("{commit}-dirty") } else { commit }
}

/// Writes `records.rs`: an array of (path below `records/`, text) of every committed record.
fn embed_records(folder: &Path) -> io::Result<()> {
    let mut files = Vec::new();
    if folder.is_dir() {
        println!("cargo:rerun-if-changed={}", folder.display());
        collect(folder, &mut files)?;
        files.sort();
    }
    let mut code = String::from("&[\n");
    for file in &files {
        let absolute = file.canonicalize()?;
        let name = file.strip_prefix(folder).map_err(io::Error::other)?.to_string_lossy().replace('\\', "/");
        code += &format!("    ({name:?}, include_str!({:?})),\n", absolute.display().to_string());
    }
    code += "]\n";
    let out = PathBuf::from(env::var("OUT_DIR").map_err(io::Error::other)?).join("records.rs");
    fs::write(out, code)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "json") {
            files.push(path);
        }
    }
    Ok(())
}
