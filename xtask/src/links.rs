//! Checks that the relative links of the Markdown files lead somewhere, headings included, and that the book lists
//! every one of its pages.

use crate::paths;
use anyhow::{Result, bail};
use std::path::Path;

/// Checks every Markdown file of the repository.
pub(crate) fn check() -> Result<()> {
    let root = paths::root();
    let files = paths::files(&root, "md")?;
    let mut problems = Vec::new();
    let mut count = 0;
    for file in &files {
        let text = std::fs::read_to_string(file)?;
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            count += 1;
            if let Some(why) = broken(file, &text, &link) {
                problems.push(format!("{}: ({link}) {why}", paths::shown(file)));
            }
        }
    }
    let book = root.join("docs/src");
    let summary = std::fs::read_to_string(book.join("SUMMARY.md"))?;
    let listed: Vec<String> = links(&summary);
    for page in paths::files(&book, "md")? {
        let name = page.strip_prefix(&book).unwrap_or(&page).display().to_string();
        if name != "SUMMARY.md" && !listed.contains(&name) {
            problems.push(format!("docs/src/{name} is not in SUMMARY.md"));
        }
    }
    println!("{count} relative links in {} files", files.len());
    if !problems.is_empty() {
        bail!("{} links are wrong:\n  {}", problems.len(), problems.join("\n  "));
    }
    Ok(())
}

/// Why a link leads nowhere, if it does.
fn broken(file: &Path, text: &str, link: &str) -> Option<String> {
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let target = if path.is_empty() { file.to_path_buf() } else { file.parent()?.join(path) };
    if !target.exists() {
        return Some("does not exist".into());
    }
    let anchor = anchor?;
    let other = if path.is_empty() { text.to_string() } else { std::fs::read_to_string(&target).unwrap_or_default() };
    (!headings(&other).iter().any(|h| h == anchor)).then(|| "has no such heading".into())
}

/// Lines outside fenced code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fence && !fenced
    })
}

/// Targets of `](...)` outside code.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        // Every second part lies between backticks.
        let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("x");
        let mut rest = plain.as_str();
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, tail)) = after.split_once(')') else { break };
            found.push(target.split_whitespace().next().unwrap_or_default().to_string());
            rest = tail;
        }
    }
    found
}

/// The anchors of the headings, as Markdown renderers make them.
fn headings(text: &str) -> Vec<String> {
    let anchor = |heading: &str| -> String {
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_');
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    prose(text).filter(|line| line.starts_with('#')).map(|line| anchor(line.trim_start_matches('#'))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_code() {
        let text = "[a](b.md) and [c](d.md#e \"title\")\n`[x](no.md)`\n```\n[y](no.md)\n```\n![i](p.png)";
        assert_eq!(links(text), ["b.md", "d.md#e", "p.png"]);
    }

    #[test]
    fn a_missing_file_or_heading_is_broken() {
        let file = paths::root().join("README.md");
        let text = "# One heading: `x`\n";
        assert_eq!(broken(&file, text, "Cargo.toml"), None);
        assert_eq!(broken(&file, text, "#one-heading-x"), None);
        assert!(broken(&file, text, "#two").is_some());
        assert!(broken(&file, text, "no/such/file.md").is_some());
    }
}
