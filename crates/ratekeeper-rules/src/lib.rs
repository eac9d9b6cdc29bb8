//! Reads, validates and compiles Ratekeeper's rule files, and resolves requests to the limits that apply.
//!
//! A *rule* says which requests its limits apply to. Rules are written in YAML ([`spec`]); [`read`](read()) reports all
//! errors at once, each with its position and a suggested fix. A valid file compiles into a [`RuleSet`], which resolves
//! a [`CheckRequest`] into draws for a store; resolving never fails.
//!
//! This crate does no I/O and reads no clock.

mod access_lists;
mod address;
pub mod bounds;
mod descriptor;
mod descriptor_index;
mod diagnostic;
mod diff;
mod dimension;
mod draw_plan;
mod explain;
mod expression;
mod index;
mod literal_index;
mod path;
mod path_pattern_error;
mod pattern;
mod prefixed_regex;
mod prefixes;
mod read;
mod request;
mod rule;
mod schema;
mod set;
pub mod spec;
mod template_index;
mod tier_names;
mod validate;
pub mod yaml;

pub use address::{Cidr, CidrError};
pub use descriptor::DescriptorMismatch;
pub use diagnostic::{Diagnostic, Diagnostics, Severity, closest_name, quoted, report, report_json};
pub use diff::{ChangeKind, RuleChange, diff};
pub use dimension::Dimension;
pub use draw_plan::{DrawPlan, DrawSource, InlineLimit, RequestNotes, Resolution, Verb};
pub use explain::{Explanation, ListName, RuleExplanation};
pub use path::{PathStyle, normalise};
pub use path_pattern_error::PathPatternError;
pub use pattern::{PathPattern, Pattern};
pub use prefixed_regex::PrefixedRegex;
pub use read::{ParsedFile, read};
pub use request::{
    Attribute, CheckRequest, Descriptor, FieldBound, LengthUnit, MAX_ATTRIBUTES, MAX_DESCRIPTORS,
    MAX_ENTRIES, RequestBuilder, RequestError, RequestField, parse_ip,
};
pub use rule::{Mismatch, Rule};
pub use schema::schema;
pub use set::{MAX_KEY_GROUPS, RuleSet, TierSource, TooManyLimits};
pub use validate::validate;
