//! `ratekeeper man`: the manual, from the same definition as the help.

use anyhow::{Context, Result};
use clap::{Arg, ArgMatches, Command, ValueHint, value_parser};
use clap_mangen::Man;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::{fs, io};

const READING: &str = "\
Examples:
  ratekeeper man > ratekeeper.1 && man ./ratekeeper.1
      everything on one page

  ratekeeper man --dir ~/.local/share/man/man1
      a page for ratekeeper and one for each subcommand, for `man ratekeeper-serve`";

/// The subcommand and its arguments.
pub(crate) fn command() -> Command {
    let dir = Arg::new("dir").long("dir").value_name("DIR").value_hint(ValueHint::DirPath);
    Command::new("man").about("Print the manual page").after_help(READING).arg(
        dir.value_parser(value_parser!(PathBuf))
            .help("Write a page for each subcommand into this folder instead"),
    )
}

/// Prints the page, or writes several.
pub(crate) fn run(matches: &ArgMatches) -> Result<()> {
    let mut root = crate::command().disable_help_subcommand(true);
    root.build();
    let Some(dir) = matches.get_one::<PathBuf>("dir") else { return crate::print(whole(&root)?.as_bytes()) };
    fs::create_dir_all(dir).with_context(|| format!("cannot make the folder {}", dir.display()))?;
    for command in [&root].into_iter().chain(subcommands(&root)) {
        let man = Man::new(command.clone());
        let path = dir.join(man.get_filename());
        fs::write(&path, page(&man)?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// All subcommands, those of each right behind it.
fn subcommands(command: &Command) -> Vec<&Command> {
    let own = command.get_subcommands().filter(|command| command.get_name() != "help");
    own.flat_map(|command| [command].into_iter().chain(subcommands(command))).collect()
}

/// A command's own page.
fn page(man: &Man) -> io::Result<String> {
    let mut page = Vec::new();
    man.render(&mut page)?;
    Ok(text(&page))
}

/// One page for all: each subcommand's page becomes a section of it.
fn whole(root: &Command) -> io::Result<String> {
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
    // What each part begins with, for typesetters other than GNU's, has been said at the top.
    let lines = text(&section).replace(".SH ", ".SS ");
    let lines =
        lines.lines().filter(|line| !line.starts_with(".ie \\n(.g") && !line.starts_with(".el .ds Aq"));
    Ok(lines.map(|line| format!("{line}\n")).collect())
}

/// A page whose last section has a name that tells.
fn text(page: &[u8]) -> String {
    String::from_utf8_lossy(page).replace("\n.SH EXTRA\n", "\n.SH NOTES\n")
}
