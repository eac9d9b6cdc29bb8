//! The script that decides draws inside the store, and the name that a server knows it by.

use std::sync::LazyLock;

/// The script's text.
pub(crate) const SOURCE: &str = include_str!("draw.lua");

/// The digest that `EVALSHA` calls the script by, in hexadecimal digits.
pub(crate) fn digest() -> &'static str {
    static DIGEST: LazyLock<String> = LazyLock::new(|| sha1_smol::Sha1::from(SOURCE).digest().to_string());
    &DIGEST
}
