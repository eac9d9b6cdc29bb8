//! The OpenAPI description of the API.
//!
//! It is written by hand and served unchanged. Tests generate requests from it and check the responses against it.

/// The document, in OpenAPI 3.1.
pub(super) const DOCUMENT: &str = include_str!("openapi.json");
