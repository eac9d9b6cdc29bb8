//! `ratekeeper rules explain`: which rules apply to a request, and why the others do not.

use super::{CheckedFile, OutputFormat, print_text};
use crate::check::attribute;
use anyhow::Result;
use clap::Args;
use ratekeeper::rules::{Attribute, CheckRequest, Descriptor, RuleSet};
use ratekeeper::{Clock, SystemClock};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show which rules apply to a request, and why the others do not
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// The rule file; - for stdin
    file: PathBuf,
    /// The client key
    #[arg(long, value_name = "KEY", default_value = "", hide_default_value = true)]
    key: String,
    /// The request path [default: /]
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    endpoint: String,
    /// The HTTP method
    #[arg(long, default_value = "", hide_default_value = true)]
    method: String,
    /// The client's IP address
    #[arg(long)]
    ip: Option<IpAddr>,
    /// The client's tier, if the caller sends one
    #[arg(long, default_value = "", hide_default_value = true)]
    tier: String,
    /// A request attribute; may be repeated
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = attribute)]
    attributes: Vec<(String, String)>,
    /// The domain of the descriptor that a proxy sends
    #[arg(long, default_value = "", hide_default_value = true)]
    domain: String,
    /// An entry of that descriptor; may be repeated, and the order matters
    #[arg(long = "descriptor", value_name = "KEY=VALUE", value_parser = attribute)]
    entries: Vec<(String, String)>,
    /// The output format
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    format: OutputFormat,
}

fn borrow(pairs: &[(String, String)]) -> Vec<Attribute<'_>> {
    pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

impl ExplainArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let Some(spec) = CheckedFile::read(&self.file)?.spec()? else { return Ok(ExitCode::FAILURE) };
        let rules = RuleSet::compile(&spec)?;
        let entries = borrow(&self.entries);
        // The server also treats descriptor entries as attributes, and some of them as request fields.
        let attributes: Vec<_> =
            borrow(&self.attributes).into_iter().chain(entries.iter().copied()).collect();
        let has_descriptor = !self.domain.is_empty() || !entries.is_empty();
        let descriptor = Descriptor { domain: &self.domain, entries: &entries };
        let request = CheckRequest {
            client_key: &self.key,
            endpoint: &self.endpoint,
            method: &self.method,
            tier: &self.tier,
            ip: self.ip,
            attributes: &attributes,
            descriptor: has_descriptor.then_some(descriptor),
            cost: 1,
        }
        .with_known_entries(&entries);
        let clock = SystemClock::new();
        let explanation = rules.explain(&request, || clock.now());
        match self.format {
            OutputFormat::Text => print_text(&explanation.to_string())?,
            OutputFormat::Json => print_text(&format!("{:#}\n", explanation.to_json()))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
