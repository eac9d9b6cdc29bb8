//! `ratekeeper completions`: what a shell needs to complete the command line.

use anyhow::Result;
use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::{Shell, generate};

const INSTALLING: &str = "\
Where it goes:
  bash   ratekeeper completions bash > ~/.local/share/bash-completion/completions/ratekeeper
  zsh    ratekeeper completions zsh > ~/.zfunc/_ratekeeper
         with fpath+=~/.zfunc before compinit in ~/.zshrc
  fish   ratekeeper completions fish > ~/.config/fish/completions/ratekeeper.fish
  powershell and elvish: load what it prints from your profile";

/// The subcommand and its arguments.
pub(crate) fn command() -> Command {
    let shell = Arg::new("shell").value_name("SHELL").required(true).value_parser(value_parser!(Shell));
    Command::new("completions")
        .about("Print a script that completes ratekeeper's command line")
        .after_help(INSTALLING)
        .arg(shell.help("The shell to write it for"))
}

/// Prints the script.
pub(crate) fn run(matches: &ArgMatches) -> Result<()> {
    let shell = *matches.get_one::<Shell>("shell").expect("clap asks for a shell");
    let mut script = Vec::new();
    generate(shell, &mut crate::command(), "ratekeeper", &mut script);
    crate::print(&script)
}
