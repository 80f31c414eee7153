//! The project's tasks. `cargo xtask test` is everything that CI checks.

mod kernels;
mod licences;
mod links;
mod paths;
mod ptxas;
mod ratchet;
mod steps;
mod tables;
mod tiles;
mod variants;
mod wheels;

use anyhow::{Result, bail};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask TASK

  test                       all that CI checks
  kernels [--all] [--bless] [--target TARGET]
                             compile every variant for every target without a GPU, as far as CI's time allows;
                             --all: every one with all optimisations;
                             --target: only that one; --bless: rewrite xtask/kernel-resources.tsv
  tables [--check]           write the generated tables and pages; --check: only say which are stale
  tiles [--check]            compile the Rust tile kernels into the embedded cubins; --check: only compare
  licences                   hold every dependency's licence to deny.toml
  links                      check the relative links of the Markdown files";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<()> {
    match words {
        ["test"] => steps::test(),
        ["kernels", options @ ..] => kernels::run(&kernels::Options::parse(options)?),
        ["tables"] => tables::write(),
        ["tables", "--check"] => tables::check(),
        ["tiles"] => tiles::write(),
        ["tiles", "--check"] => tiles::check(),
        ["licences"] => licences::check(),
        ["links"] => links::check(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}
