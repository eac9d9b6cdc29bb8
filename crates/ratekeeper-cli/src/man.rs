//! `ratekeeper man`: the manual, generated from the same definition as the help.

use anyhow::{Context, Result};
use clap::{Arg, ArgMatches, Command, ValueHint, value_parser};
use clap_mangen::Man;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::{fs, io};

const EXAMPLES: &str = "\
Examples:
  ratekeeper man > ratekeeper.1 && man ./ratekeeper.1
      all commands on one page

  ratekeeper man --dir ~/.local/share/man/man1
      a page for ratekeeper and one for each subcommand, for `man ratekeeper-serve`";

/// The subcommand and its arguments.
pub(crate) fn command() -> Command {
    let dir = Arg::new("dir").long("dir").value_name("DIR").value_hint(ValueHint::DirPath);
    Command::new("man").about("Print the manual page").after_help(EXAMPLES).arg(
        dir.value_parser(value_parser!(PathBuf))
            .help("Write one page per subcommand into this directory instead"),
    )
}

/// Prints one page, or writes one per subcommand.
pub(crate) fn run(matches: &ArgMatches) -> Result<()> {
    let mut root = crate::command().disable_help_subcommand(true);
    root.build();
    let Some(dir) = matches.get_one::<PathBuf>("dir") else {
        return crate::print_to_stdout(single_page(&root)?.as_bytes());
    };
    fs::create_dir_all(dir).with_context(|| format!("cannot create the directory {}", dir.display()))?;
    for command in [&root].into_iter().chain(subcommands(&root)) {
        let man = Man::new(command.clone());
        let path = dir.join(man.get_filename());
        fs::write(&path, page(&man)?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// All subcommands, depth first.
fn subcommands(command: &Command) -> Vec<&Command> {
    let own = command.get_subcommands().filter(|command| command.get_name() != "help");
    own.flat_map(|command| [command].into_iter().chain(subcommands(command))).collect()
}

/// The page of one command.
fn page(man: &Man) -> io::Result<String> {
    let mut page = Vec::new();
    man.render(&mut page)?;
    Ok(to_text(&page))
}

/// One page for all commands: each subcommand's page becomes a section.
fn single_page(root: &Command) -> io::Result<String> {
    let mut whole = page(&Man::new(root.clone()))?;
    for command in subcommands(root) {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name());
        let title = name.replace('-', " ");
        // There is no other page to refer to.
        whole = whole.replace(&format!("{}(1)", name.replace('-', "\\-")), &title);
        let _ = write!(whole, ".SH \"{}\"\n{}", title.to_uppercase(), section(command)?);
    }
    Ok(whole)
}

fn section(command: &Command) -> io::Result<String> {
    let man = Man::new(command.clone());
    let mut section = Vec::new();
    man.render_synopsis_section(&mut section)?;
    man.render_description_section(&mut section)?;
    man.render_options_section(&mut section)?;
    if command.get_after_help().or(command.get_after_long_help()).is_some() {
        man.render_extra_section(&mut section)?;
    }
    // The preamble for typesetters other than groff is at the top of the page already.
    let lines = to_text(&section).replace(".SH ", ".SS ");
    let lines =
        lines.lines().filter(|line| !line.starts_with(".ie \\n(.g") && !line.starts_with(".el .ds Aq"));
    Ok(lines.map(|line| format!("{line}\n")).collect())
}

/// The page with its last section renamed to NOTES.
fn to_text(page: &[u8]) -> String {
    String::from_utf8_lossy(page).replace("\n.SH EXTRA\n", "\n.SH NOTES\n")
}
