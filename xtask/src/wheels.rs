//! Pinned Python wheels, installed below the target folder.

use crate::paths;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// A wheel: its name and version.
pub(crate) type Wheel = (&'static str, &'static str);

/// Installs the wheels into a folder, unless they are there.
pub(crate) fn ensure(folder: &Path, wheels: &[Wheel]) -> Result<()> {
    let is_there = |(name, version): &Wheel| folder.join(format!("{}-{version}.dist-info", name.replace('-', "_"))).is_dir();
    if wheels.iter().all(is_there) {
        return Ok(());
    }
    install(folder, wheels)
}

/// Installs them beside their place and moves them there, so that a broken installation is not taken for a whole one.
fn install(folder: &Path, wheels: &[Wheel]) -> Result<()> {
    let partial = folder.with_extension("partial");
    for stale in [folder, &partial] {
        if stale.exists() {
            std::fs::remove_dir_all(stale).with_context(|| stale.display().to_string())?;
        }
    }
    std::fs::create_dir_all(&partial)?;
    let wheels: Vec<String> = wheels.iter().map(|(name, version)| format!("{name}=={version}")).collect();
    println!("installing {} into {}", wheels.join(", "), paths::shown(folder));
    let output = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"])
        .arg(&partial)
        .args(&wheels)
        .output()
        .context("python3 did not start; compilers come as Python wheels: install python3 with pip")?;
    if !output.status.success() {
        let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
        bail!(
            "pip could not install {} ({}):\n{}\n{}",
            wheels.join(", "),
            output.status,
            words(&output.stdout),
            words(&output.stderr)
        );
    }
    std::fs::rename(&partial, folder).with_context(|| folder.display().to_string())
}
