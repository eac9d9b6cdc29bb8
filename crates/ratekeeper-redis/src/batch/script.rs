//! The script that decides draws inside the store, and its digest.

use std::sync::LazyLock;

/// The source text of the script.
pub(crate) const SOURCE: &str = include_str!("draw.lua");

/// The SHA-1 digest that `EVALSHA` calls the script by, in hexadecimal.
pub(crate) fn digest() -> &'static str {
    static DIGEST: LazyLock<String> = LazyLock::new(|| sha1_smol::Sha1::from(SOURCE).digest().to_string());
    &DIGEST
}
