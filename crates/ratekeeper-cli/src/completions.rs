//! `ratekeeper completions`: shell completion scripts.

use anyhow::Result;
use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::{Shell, generate};

const INSTALLATION: &str = "\
Installation:
  bash   ratekeeper completions bash > ~/.local/share/bash-completion/completions/ratekeeper
  zsh    ratekeeper completions zsh > ~/.zfunc/_ratekeeper
         with fpath+=~/.zfunc before compinit in ~/.zshrc
  fish   ratekeeper completions fish > ~/.config/fish/completions/ratekeeper.fish
  powershell and elvish: source the output from your profile";

/// The subcommand and its arguments.
pub(crate) fn command() -> Command {
    let shell = Arg::new("shell").value_name("SHELL").required(true).value_parser(value_parser!(Shell));
    Command::new("completions")
        .about("Print a shell completion script")
        .after_help(INSTALLATION)
        .arg(shell.help("The shell to generate the script for"))
}

/// Prints the script.
pub(crate) fn run(matches: &ArgMatches) -> Result<()> {
    let shell = *matches.get_one::<Shell>("shell").expect("clap requires a shell");
    let mut script = Vec::new();
    generate(shell, &mut crate::command(), "ratekeeper", &mut script);
    crate::print_to_stdout(&script)
}
