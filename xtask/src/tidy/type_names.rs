//! A type name is defined once in the workspace.
//!
//! Two types of one name mean that one of them has no name yet. Types of integration tests are not counted: each test
//! binary is a program of its own.

use super::source::Source;
use std::collections::BTreeMap;
use syn::Item;

/// Names that may be defined more than once, each with the reason.
const ALLOWED: [(&str, &str); 5] = [
    ("Mutex", "under `--cfg shuttle` the lock is another type with the same interface"),
    ("Reload", "one definition for Unix and one for other systems"),
    ("Signature", "one definition for Unix and one for other systems"),
    ("Stop", "one definition for Unix and one for other systems"),
    ("TlsClient", "one definition with the feature `tls` and one without"),
];

/// The most names that may be defined more than once.
const MAX_ALLOWED: usize = 20;
const _: () = assert!(ALLOWED.len() <= MAX_ALLOWED);

/// Returns a diagnostic for each name that is defined more than once.
pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources {
        collect(&source.items, &source.path.display().to_string(), &mut defined);
    }
    let is_allowed = |name: &str| ALLOWED.iter().any(|(allowed, _)| *allowed == name);
    let repeated = defined.into_iter().filter(|(name, places)| places.len() > 1 && !is_allowed(name));
    repeated
        .map(|(name, places)| format!("type {name} is defined {} times: {}", places.len(), places.join(", ")))
        .collect()
}

fn collect(items: &[Item], path: &str, defined: &mut BTreeMap<String, Vec<String>>) {
    for item in items {
        let name = match item {
            Item::Enum(item) => &item.ident,
            Item::Struct(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::Type(item) => &item.ident,
            Item::Union(item) => &item.ident,
            Item::Mod(module) => {
                let inner = module.content.iter().flat_map(|(_, items)| items).cloned().collect::<Vec<_>>();
                collect(&inner, path, defined);
                continue;
            }
            _ => continue,
        };
        defined.entry(name.to_string()).or_default().push(path.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_name_defined_twice_is_found() {
        let source = |path: &str, text: &str| Source::parse(Path::new(path), text).expect("it is valid Rust");
        let twice = [source("a.rs", "struct Lane;"), source("b.rs", "mod inner { enum Lane {} }")];
        assert_eq!(check(&twice), ["type Lane is defined 2 times: a.rs, b.rs"]);
        let once =
            [source("a.rs", "struct Lane;"), source("b.rs", "#[cfg(test)] mod tests { struct Lane; }")];
        assert_eq!(check(&once), [""; 0]);
    }
}
