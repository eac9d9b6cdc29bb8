//! The description of the API, for people's tools.
//!
//! It is written by hand and served as it is; tests drive the server by it and look for what it does not say.

/// The document, in OpenAPI 3.1.
pub(super) const DOCUMENT: &str = include_str!("openapi.json");
