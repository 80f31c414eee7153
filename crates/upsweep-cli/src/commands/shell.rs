//! `completions` and `man`: made from the definition of the command line.

use crate::args::{Cli, CompletionsArgs};
use crate::output;
use clap::CommandFactory;

/// Prints the completions of a shell.
///
/// # Errors
/// Those of the output.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "upsweep", &mut text);
    output::print(&String::from_utf8_lossy(&text))
}

/// Prints the manual page: the command, then each subcommand.
///
/// # Errors
/// Those of the output.
pub fn manual() -> anyhow::Result<()> {
    let mut command = Cli::command();
    command.build();
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        let page = clap_mangen::Man::new(subcommand.clone());
        page.render_synopsis_section(&mut text)?;
        page.render_description_section(&mut text)?;
        page.render_options_section(&mut text)?;
    }
    output::print(&String::from_utf8_lossy(&text))
}
