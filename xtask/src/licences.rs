//! Holds every dependency's licence to the list in `deny.toml`. Written here because building the usual tool for it, two
//! hundred crates, is out of proportion to this one check; `cargo deny check licenses` reads the same file.

use crate::paths;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

/// Checks the packages of the lock file.
pub(crate) fn check() -> Result<()> {
    let text = std::fs::read_to_string(paths::root().join("deny.toml")).context("deny.toml")?;
    let allowed = allowed(&text).context("deny.toml")?;
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--all-features"])
        .current_dir(paths::root())
        .output()
        .context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("the output of cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let mut problems = Vec::new();
    let mut used: BTreeMap<String, usize> = BTreeMap::new();
    for package in packages {
        let name = format!("{} {}", package["name"].as_str().unwrap_or("?"), package["version"].as_str().unwrap_or("?"));
        let source = package["source"].as_str();
        if source.is_some_and(|s| !s.starts_with("registry+")) {
            problems.push(format!("{name} is from {}, not from the registry", source.unwrap_or_default()));
        }
        match package["license"].as_str() {
            None => problems.push(format!("{name} states no licence")),
            Some(licence) => match accepts(licence, &allowed) {
                Ok(true) => *used.entry(licence.to_string()).or_default() += 1,
                Ok(false) => problems.push(format!("{name} is under {licence}, which deny.toml does not allow")),
                Err(error) => problems.push(format!("{name}: {error:#}")),
            },
        }
    }
    for (licence, count) in used {
        println!("{count:4} {licence}");
    }
    println!("{} packages", packages.len());
    if !problems.is_empty() {
        bail!("{} packages are not allowed:\n  {}", problems.len(), problems.join("\n  "));
    }
    Ok(())
}

/// The `licenses.allow` list.
fn allowed(text: &str) -> Result<Vec<String>> {
    let file: toml::Value = toml::from_str(text)?;
    let list =
        file.get("licenses").and_then(|l| l.get("allow")).and_then(|a| a.as_array()).context("no `licenses.allow` list")?;
    list.iter()
        .map(|entry| entry.as_str().map(str::to_string).context("`licenses.allow` holds something other than text"))
        .collect()
}

/// Whether an SPDX expression can be met with the allowed licences. `/` is the old way to write OR.
fn accepts(expression: &str, allowed: &[String]) -> Result<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let accepted = either(&words, &mut at, allowed).with_context(|| format!("licence {expression:?}"))?;
    if at != words.len() {
        bail!("licence {expression:?}: {:?} is not expected", words[at]);
    }
    Ok(accepted)
}

fn either(words: &[&str], at: &mut usize, allowed: &[String]) -> Result<bool> {
    let mut accepted = both(words, at, allowed)?;
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        accepted |= both(words, at, allowed)?;
    }
    Ok(accepted)
}

fn both(words: &[&str], at: &mut usize, allowed: &[String]) -> Result<bool> {
    let mut accepted = one(words, at, allowed)?;
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        accepted &= one(words, at, allowed)?;
    }
    Ok(accepted)
}

fn one(words: &[&str], at: &mut usize, allowed: &[String]) -> Result<bool> {
    let word = *words.get(*at).context("a licence is missing at the end")?;
    *at += 1;
    match word {
        "(" => {
            let accepted = either(words, at, allowed)?;
            if words.get(*at) != Some(&")") {
                bail!("a parenthesis is not closed");
            }
            *at += 1;
            Ok(accepted)
        }
        ")" | "AND" | "OR" | "WITH" => bail!("{word:?} is not a licence"),
        _ => {
            let mut name = word.to_string();
            if words.get(*at) == Some(&"WITH") {
                let exception = words.get(*at + 1).context("WITH without an exception")?;
                name = format!("{word} WITH {exception}");
                *at += 2;
            }
            Ok(allowed.contains(&name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_met_or_not() {
        let allowed: Vec<String> = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].map(String::from).to_vec();
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("MIT OR GPL-3.0-only", true),
            ("MIT/GPL-3.0", true),
            ("MIT AND GPL-3.0-only", false),
            ("GPL-3.0-only OR MIT AND Apache-2.0", true),
            ("(GPL-3.0-only OR MIT) AND MPL-2.0", false),
            ("Apache-2.0 WITH LLVM-exception OR MPL-2.0", true),
            ("MIT WITH Classpath-exception-2.0", false),
        ] {
            assert_eq!(accepts(expression, &allowed).unwrap(), expected, "{expression}");
        }
        for bad in ["", "MIT OR", "(MIT", "MIT)", "AND", "MIT MIT", "MIT WITH"] {
            assert!(accepts(bad, &allowed).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_list_is_read() {
        assert_eq!(allowed("[licenses]\nallow = [\"MIT\"]").unwrap(), ["MIT"]);
        for bad in ["", "[licenses]", "[licenses]\nallow = [1]", "[licenses"] {
            assert!(allowed(bad).is_err(), "{bad}");
        }
    }
}
