//! The command line of upsweep as a library: arguments, tensor files, reports, and the subcommands. The binary calls
//! [`run`]; the fuzz targets call [`fuzz`].

pub mod args;
pub mod build;
pub mod commands;
pub mod device;
mod failure;
pub mod fuzz;
pub mod number;
pub mod output;
pub mod tensor;

pub use failure::{EXIT_DEVICE, EXIT_GATE, EXIT_USAGE, Failure, exit_code};

use args::{Cli, Command};

/// Runs a parsed command line.
///
/// # Errors
/// Everything that can go wrong; [`exit_code`] says what it means to the caller of the program.
pub fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::List(args) => commands::list::run(&args),
        Command::Explain(args) => commands::explain::run(&args),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Ladder(args) => commands::ladder::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Review(args) => commands::review::run(&args),
        Command::Compare(args) => commands::compare::run(&args),
        Command::Checklist(args) => commands::checklist::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Run(args) => commands::run::run(&args),
        Command::Completions(args) => commands::shell::completions(&args),
        Command::Man => commands::shell::manual(),
    }
}
