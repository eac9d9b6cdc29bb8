//! Ratekeeper's rules: what people write, checked and compiled into what a request is held to.
//!
//! A *rule* says whom limits bind. People write rules in YAML ([`spec`]); every mistake is told at once, with its place
//! and what to write instead. What is in order compiles into a [`RuleSet`], which resolves a [`Request`] into draws for
//! a store, and never fails. Rules of other limiters are translated by [`import`](import()).
//!
//! This crate does no I/O and reads no clock.

mod address;
mod complaint;
mod descriptor;
mod descriptors;
mod diff;
mod dimension;
mod explain;
mod expression;
mod import;
mod index;
mod lists;
mod path;
mod pattern;
mod plan;
mod prefixes;
mod read;
mod request;
mod rule;
mod schema;
mod set;
mod shapes;
pub mod spec;
mod tail;
mod texts;
mod validate;
mod yaml;

pub use address::{Cidr, CidrError};
pub use complaint::{Complaint, Severity, report, report_json};
pub use descriptor::DescriptorMisfit;
pub use diff::diff;
pub use dimension::Dimension;
pub use explain::{Explanation, Listed, Standing};
pub use import::{Import, Outcome, Source, import};
pub use path::{PathStyle, normalise};
pub use pattern::{PathPattern, PathPatternError, Pattern};
pub use plan::{Bound, Case, Notes, Plan, Stated, Verb};
pub use read::{Review, read};
pub use request::{Attribute, Descriptor, Request};
pub use rule::{Misfit, Rule};
pub use schema::schema;
pub use set::{MAX_KEYS, RuleSet, TierSource, TooManyLimits};
pub use tail::Cut;
pub use validate::validate;
