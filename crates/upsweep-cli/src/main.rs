//! The `upsweep` command.

use clap::Parser;
use std::process::ExitCode;
use upsweep_cli::{Failure, args::Cli, exit_code};

fn main() -> ExitCode {
    // clap ends the process itself for --help (0) and for wrong usage (2).
    let cli = Cli::parse();
    match upsweep_cli::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !matches!(error.downcast_ref(), Some(Failure::PipeClosed)) {
                // `eprintln!` panics when standard error is closed; there is nobody left to tell then.
                use std::io::Write;
                let _ = writeln!(std::io::stderr(), "upsweep: {}", message(&error));
            }
            ExitCode::from(exit_code(&error))
        }
    }
}

/// The error and its causes; a cause that a text already ends with is not said twice.
fn message(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        said if said.contains(&cause) => text,
        _ => format!("{text}: {cause}"),
    })
}
