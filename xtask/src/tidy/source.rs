//! Rust sources of the workspace, parsed once for the rules that need more than text.

use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use syn::{Attribute, File, Item, Meta};

/// A parsed source file, without its tests.
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) items: Vec<Item>,
}

impl Source {
    /// Parses a file and drops every item that is only compiled for tests.
    pub(super) fn read(path: &Path) -> Result<Source> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Source::parse(path, &text)
    }

    pub(super) fn parse(path: &Path, text: &str) -> Result<Source> {
        let file: File =
            syn::parse_file(text).with_context(|| format!("{} is not valid Rust", path.display()))?;
        Ok(Source { path: path.to_owned(), items: without_tests(file.items) })
    }
}

/// Whether `path` is a source file of a crate in the workspace: code that is shipped, the test kit and xtask.
pub(super) fn is_source(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let is_member = text.starts_with("crates/") || text.starts_with("xtask/");
    is_member && text.contains("/src/") && text.ends_with(".rs")
}

fn without_tests(items: Vec<Item>) -> Vec<Item> {
    items.into_iter().filter(|item| !attributes(item).iter().any(is_test_only)).collect()
}

/// Whether an attribute is `#[cfg(test)]`, or a `cfg(all(test, …))` or `cfg(any(test, …))`.
fn is_test_only(attribute: &Attribute) -> bool {
    match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "test")
        }
        _ => false,
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
