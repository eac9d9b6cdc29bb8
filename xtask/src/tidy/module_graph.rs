//! Modules of a crate form layers: no two siblings depend on each other, not even through others.
//!
//! A module depends on a sibling if anything below it names something below the sibling by a path that begins with
//! `crate`, `super` or `self`. A name that a parent re-exports counts as the child's that defines it. A parent and its
//! children may use each other: together they are one layer.

use super::source::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use syn::visit::{self, Visit};
use syn::{Item, ItemUse, UseTree};

/// A module by its path from the root of its crate; the root is empty.
type ModulePath = Vec<String>;

/// Cycles that are still to be broken. The list only ever gets shorter: a new cycle fails, and so does an entry that no
/// longer exists.
const KNOWN_CYCLES: [&str; 1] = ["ratekeeper-core: algorithm, limit, status"];

/// Returns a diagnostic for each new cycle, and for each known one that is gone.
pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let cycles = cycles(sources);
    let is_known = |cycle: &&String| KNOWN_CYCLES.contains(&cycle.as_str());
    let new =
        cycles.iter().filter(|cycle| !is_known(cycle)).map(|cycle| format!("cycle of modules: {cycle}"));
    let is_gone = |known: &&&str| !cycles.iter().any(|cycle| cycle == **known);
    let gone = KNOWN_CYCLES
        .iter()
        .filter(is_gone)
        .map(|known| format!("xtask/src/tidy/module_graph.rs: remove the known cycle that is gone: {known}"));
    new.chain(gone).collect()
}

/// The groups of sibling modules that depend on each other in a circle, each as `crate: module, module`.
fn cycles(sources: &[Source]) -> Vec<String> {
    let mut crates: BTreeMap<String, Vec<(ModulePath, &Source)>> = BTreeMap::new();
    for source in sources {
        if let Some((name, module)) = locate(&source.path) {
            crates.entry(name).or_default().push((module, source));
        }
    }
    crates.iter().flat_map(|(name, modules)| cycles_of(name, modules)).collect()
}

/// The crate and the module of a source file.
fn locate(path: &Path) -> Option<(String, ModulePath)> {
    let text = path.to_str()?.strip_suffix(".rs")?;
    let (name, inside) = text.split_once("/src/")?;
    let mut module: ModulePath = inside.split('/').map(ToOwned::to_owned).collect();
    if module.last().is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str())) {
        module.pop();
    }
    Some((name.rsplit('/').next().unwrap_or(name).to_owned(), module))
}

fn cycles_of(name: &str, modules: &[(ModulePath, &Source)]) -> Vec<String> {
    let known: BTreeSet<ModulePath> = modules.iter().map(|(module, _)| module.clone()).collect();
    let exports: BTreeMap<ModulePath, BTreeMap<String, ModulePath>> =
        modules.iter().map(|(module, source)| (module.clone(), re_exports(module, source, &known))).collect();
    let mut edges: BTreeMap<ModulePath, BTreeSet<ModulePath>> = BTreeMap::new();
    for (module, source) in modules {
        for used in used_modules(module, source, &known, &exports) {
            if let Some((from, to)) = sibling_edge(module, &used) {
                edges.entry(from).or_default().insert(to);
            }
        }
    }
    let cycles = strongly_connected(&edges);
    let shown = |cycle: Vec<ModulePath>| {
        let names: Vec<_> = cycle.iter().map(|module| module.join("::")).collect();
        format!("{name}: {}", names.join(", "))
    };
    cycles.into_iter().map(shown).collect()
}

/// The two siblings, below their nearest common parent, between which a dependency crosses.
fn sibling_edge(from: &[String], to: &[String]) -> Option<(ModulePath, ModulePath)> {
    let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
    let is_between_siblings = from.len() > common && to.len() > common;
    is_between_siblings.then(|| (from[..=common].to_vec(), to[..=common].to_vec()))
}

/// The names that a module re-exports or imports from its children, and from which child.
fn re_exports(
    module: &[String],
    source: &Source,
    known: &BTreeSet<ModulePath>,
) -> BTreeMap<String, ModulePath> {
    let mut found = BTreeMap::new();
    let uses = source.items.iter().filter_map(|item| match item {
        Item::Use(item) => Some(item),
        _ => None,
    });
    for path in uses.flat_map(paths_of) {
        let Some((name, parents)) = path.split_last() else { continue };
        let absolute = absolute(module, parents);
        if let Some(child) = longest_known(&absolute, known).filter(|child| child.len() > module.len()) {
            found.insert(name.clone(), child);
        }
    }
    found
}

/// The modules whose items a file names.
fn used_modules(
    module: &[String],
    source: &Source,
    known: &BTreeSet<ModulePath>,
    exports: &BTreeMap<ModulePath, BTreeMap<String, ModulePath>>,
) -> BTreeSet<ModulePath> {
    let mut paths = Paths::default();
    for item in &source.items {
        paths.visit_item(item);
    }
    let is_relative = |path: &&Vec<String>| ["crate", "super", "self"].contains(&path[0].as_str());
    let mut used = BTreeSet::new();
    for path in paths.found.iter().filter(is_relative) {
        let absolute = absolute(module, path);
        let Some(target) = longest_known(&absolute, known) else { continue };
        let next = absolute.get(target.len());
        let defined_by = next.and_then(|name| exports.get(&target)?.get(name));
        used.insert(defined_by.unwrap_or(&target).clone());
    }
    used
}

/// A path from the root of the crate, with `crate`, `self` and `super` resolved; other paths begin in `module` itself.
fn absolute(module: &[String], path: &[String]) -> ModulePath {
    let mut absolute = module.to_vec();
    for segment in path {
        match segment.as_str() {
            "crate" => absolute.clear(),
            "self" => {}
            "super" => {
                absolute.pop();
            }
            name => absolute.push(name.to_owned()),
        }
    }
    absolute
}

fn longest_known(path: &[String], known: &BTreeSet<ModulePath>) -> Option<ModulePath> {
    (0..=path.len()).rev().map(|len| path[..len].to_vec()).find(|module| known.contains(module))
}

/// All paths of a file: those that `use` lists, and those in code.
#[derive(Default)]
struct Paths {
    found: Vec<Vec<String>>,
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.found.extend(paths_of(item));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.found.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

fn paths_of(item: &ItemUse) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    if item.leading_colon.is_none() {
        expand(&item.tree, &mut Vec::new(), &mut found);
    }
    found
}

fn expand(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let mut add = |name: &str, before: &[String]| {
        let mut path = before.to_vec();
        if name != "self" || before.is_empty() {
            path.push(name.to_owned());
        }
        found.push(path);
    };
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            expand(&path.tree, before, found);
            before.pop();
        }
        UseTree::Name(name) => add(&name.ident.to_string(), before),
        UseTree::Rename(rename) => add(&rename.ident.to_string(), before),
        UseTree::Glob(_) => add("*", before),
        UseTree::Group(group) => group.items.iter().for_each(|tree| expand(tree, before, found)),
    }
}

/// The groups of two or more modules that reach each other.
fn strongly_connected(edges: &BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> Vec<Vec<ModulePath>> {
    let nodes: BTreeSet<&ModulePath> = edges.iter().flat_map(|(from, to)| to.iter().chain([from])).collect();
    let reachable = |start: &ModulePath| {
        let mut seen = BTreeSet::new();
        let mut open: Vec<&ModulePath> = edges.get(start).into_iter().flatten().collect();
        while let Some(node) = open.pop() {
            if seen.insert(node.clone()) {
                open.extend(edges.get(node).into_iter().flatten());
            }
        }
        seen
    };
    let reach: BTreeMap<&ModulePath, BTreeSet<ModulePath>> =
        nodes.iter().map(|node| (*node, reachable(node))).collect();
    let mut grouped = BTreeSet::new();
    let mut cycles = Vec::new();
    for node in &nodes {
        if !reach[node].contains(*node) || !grouped.insert((*node).clone()) {
            continue;
        }
        let others =
            reach[node].iter().filter(|other| reach.get(other).is_some_and(|back| back.contains(*node)));
        let cycle: BTreeSet<ModulePath> = others.cloned().collect();
        grouped.extend(cycle.iter().cloned());
        if cycle.len() > 1 {
            cycles.push(cycle.into_iter().collect());
        }
    }
    cycles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn found(files: &[(&str, &str)], expected: &[&str]) {
        let parse = |(path, text): &(&str, &str)| {
            Source::parse(Path::new(&format!("crates/x/src/{path}")), text).expect("it is valid Rust")
        };
        let sources: Vec<_> = files.iter().map(parse).collect();
        assert_eq!(cycles(&sources), expected);
    }

    #[test]
    fn siblings_that_use_each_other_are_found() {
        let cycle = "x: a, b";
        found(&[("a.rs", "use crate::b::B;"), ("b.rs", "fn f() { super::a::g() }")], &[cycle]);
        found(&[("a.rs", "use crate::b::B;"), ("b.rs", "use std::a::g;")], &[]);
        found(&[("a.rs", "use crate::b::B;"), ("b.rs", "#[cfg(test)] mod tests { use crate::a::g; }")], &[]);
    }

    #[test]
    fn a_circle_of_three_below_other_modules_is_found() {
        let files = [
            ("a.rs", "mod one; mod two; mod three;"),
            ("a/one.rs", "use super::two::x;"),
            ("a/two.rs", "use crate::a::three::{x, y};"),
            ("a/three/deep.rs", "use crate::a::one;"),
            ("a/three.rs", "mod deep;"),
        ];
        found(&files, &["x: a::one, a::three, a::two"]);
    }

    #[test]
    fn a_re_exported_name_belongs_to_the_child_that_defines_it() {
        let files = [
            ("a.rs", "mod one; mod two; pub use one::One;"),
            ("a/one.rs", "use super::two::Two; pub struct One;"),
            ("a/two.rs", "use super::One; pub struct Two;"),
        ];
        found(&files, &["x: a::one, a::two"]);
    }

    #[test]
    fn a_parent_and_its_child_may_use_each_other() {
        found(&[("a.rs", "mod one; use one::One; struct A;"), ("a/one.rs", "use super::A;")], &[]);
    }
}
