//! `tollgate rules explain`: which rules bind a request, why, and why the others do not.

use super::{Format, Reviewed, say};
use anyhow::{Result, anyhow};
use clap::Args;
use serde_json::json;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::process::ExitCode;
use tollgate::rules::spec::Mode;
use tollgate::rules::{
    Attribute, Descriptor, Explanation, Listed, Request, Rule, RuleSet, Standing, TierSource,
};
use tollgate::{Clock, Consistency, FailureMode, SystemClock};

/// Say which rules bind a request, why, and why the others do not
#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// The file of rules; - for what comes on stdin
    file: PathBuf,
    /// The client's key
    #[arg(long, value_name = "KEY", default_value = "", hide_default_value = true)]
    key: String,
    /// The path that it asks for, / if nothing says it
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    endpoint: String,
    /// The HTTP method
    #[arg(long, default_value = "", hide_default_value = true)]
    method: String,
    /// The client's address
    #[arg(long)]
    ip: Option<IpAddr>,
    /// The client's tier, if the caller says it
    #[arg(long, default_value = "", hide_default_value = true)]
    tier: String,
    /// Another attribute; may be given several times
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = attribute)]
    attributes: Vec<(String, String)>,
    /// The domain of the descriptor that a proxy sends
    #[arg(long, default_value = "", hide_default_value = true)]
    domain: String,
    /// An entry of that descriptor; may be given several times, and the order counts
    #[arg(long = "descriptor", value_name = "KEY=VALUE", value_parser = attribute)]
    entries: Vec<(String, String)>,
    /// How to say it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Reads `NAME=VALUE`.
fn attribute(text: &str) -> Result<(String, String)> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = pair.ok_or_else(|| anyhow!("write it like tenant=acme"))?;
    Ok((name.to_owned(), value.to_owned()))
}

fn borrow(pairs: &[(String, String)]) -> Vec<Attribute<'_>> {
    pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

impl Explain {
    pub(super) fn run(self) -> Result<ExitCode> {
        let Some(spec) = Reviewed::of(&self.file)?.spec()? else { return Ok(ExitCode::FAILURE) };
        let rules = RuleSet::compile(&spec)?;
        let entries = borrow(&self.entries);
        // A server that speaks with proxies takes entries for attributes too, and some of them for more.
        let attributes: Vec<_> =
            borrow(&self.attributes).into_iter().chain(entries.iter().copied()).collect();
        let has_descriptor = !self.domain.is_empty() || !entries.is_empty();
        let descriptor = Descriptor { domain: &self.domain, entries: &entries };
        let request = Request {
            client_key: &self.key,
            endpoint: &self.endpoint,
            method: &self.method,
            tier: &self.tier,
            ip: self.ip,
            attributes: &attributes,
            descriptor: has_descriptor.then_some(descriptor),
            cost: 1,
        }
        .told_by(&entries);
        let clock = SystemClock::new();
        let explanation = rules.explain(&request, || clock.now());
        match self.format {
            Format::Text => say(&words(&explanation))?,
            Format::Json => say(&format!("{:#}\n", values(&explanation)))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn words(explanation: &Explanation<'_>) -> String {
    let mut text = String::new();
    // Writing into a string can't fail.
    let _ = writeln!(text, "path: {}", explanation.path);
    let _ = match &explanation.tier {
        Some(tier) => writeln!(text, "tier: {tier} ({})", source(explanation.tier_source)),
        None => writeln!(text, "tier: not known"),
    };
    match explanation.listed {
        Some(Listed::Deny) => text.push_str("REFUSED: the client is on the deny list\n"),
        Some(Listed::Allow) => {
            text.push_str("ALLOWED: the client is on the allow list, and no rule is looked at\n");
        }
        None if explanation.rules.iter().all(|(_, standing)| !matches!(standing, Standing::Binds { .. })) => {
            text.push_str("ALLOWED: no rule binds it\n");
        }
        None if explanation.rules.iter().all(|(_, standing)| !limits(standing)) => {
            text.push_str("ALLOWED: what binds it is unlimited\n");
        }
        None => {}
    }
    let is_listed = explanation.listed.is_some();
    for (rule, standing) in &explanation.rules {
        let shadow = if rule.mode() == Mode::Shadow { " (shadow: refuses nobody)" } else { "" };
        let mark = if matches!(standing, Standing::Binds { .. }) && !is_listed { '*' } else { ' ' };
        let _ = writeln!(text, "{mark} {}: {}{shadow}", rule.id(), verdict(rule, standing, is_listed));
    }
    text
}

/// Whether a rule holds the request to something.
fn limits(standing: &Standing<'_>) -> bool {
    matches!(standing, Standing::Binds { limits, .. } if !limits.is_empty())
}

/// What a rule has to say; of a client on a list, what it would.
fn verdict(rule: &Rule, standing: &Standing<'_>, is_listed: bool) -> String {
    match standing {
        Standing::Binds { limits, .. } if limits.is_empty() => {
            let binds = if is_listed { "would bind" } else { "binds" };
            format!("{binds}: unlimited, and no rule behind it that counts the same is looked at")
        }
        Standing::Binds { limits, key } => {
            let limits: Vec<_> = limits.iter().map(ToString::to_string).collect();
            let key: Vec<_> = key.iter().map(|(name, value)| format!("{name} {value:?}")).collect();
            let counted = if key.is_empty() {
                "for everybody together".to_owned()
            } else {
                format!("for {}", key.join(", "))
            };
            let binds = if is_listed { "would bind" } else { "binds" };
            format!("{binds}: {}, counted {counted}{}", limits.join(" and "), terms(rule))
        }
        Standing::ComesLater(id) => format!("no: {id} counts the same and comes first"),
        Standing::Misfit(misfit) => format!("no: {misfit}"),
        Standing::NoLimit => {
            "no: neither it nor what it inherits from has a limit for this client".to_owned()
        }
        Standing::Disabled => "no: it is disabled".to_owned(),
    }
}

/// What a rule says of a store that several nodes share, where that is not what is usual.
fn terms(rule: &Rule) -> String {
    let mut said = String::new();
    match rule.consistency() {
        Consistency::Exact => {}
        Consistency::Leased => said.push_str(", in units that each node takes ahead"),
        Consistency::Local => said.push_str(", on each node by itself"),
    }
    if let Some(millis) = rule.store_timeout_ms() {
        let _ = write!(said, ", the store has {millis}ms to answer");
    }
    match rule.on_store_failure() {
        FailureMode::Local => {}
        FailureMode::Open => said.push_str(", allowed if the store gives no answer"),
        FailureMode::Closed => said.push_str(", refused if the store gives no answer"),
    }
    said
}

fn source(source: TierSource) -> &'static str {
    match source {
        TierSource::Nobody => "nobody said so",
        TierSource::Request => "the request says so",
        TierSource::Client => "the client's record says so",
        TierSource::Pattern => "the tier's keys match",
        TierSource::Default => "the default tier",
    }
}

fn values(explanation: &Explanation<'_>) -> serde_json::Value {
    let is_listed = explanation.listed.is_some();
    let rules = explanation.rules.iter().map(|(rule, standing)| {
        let mut value = json!({
            "id": rule.id(),
            "binds": matches!(standing, Standing::Binds { .. }) && !is_listed,
            "shadow": rule.mode() == Mode::Shadow,
            "why": verdict(rule, standing, is_listed),
        });
        if let Standing::Binds { limits, key } = standing {
            value["on_store_failure"] = rule.on_store_failure().name().into();
            value["consistency"] = rule.consistency().name().into();
            value["store_timeout_ms"] = rule.store_timeout_ms().map(NonZeroU16::get).into();
            value["limits"] = limits.iter().map(ToString::to_string).collect();
            value["key"] = key.iter().map(|(name, part)| json!({ "name": name, "value": part })).collect();
        }
        value
    });
    json!({
        "path": explanation.path,
        "tier": explanation.tier,
        "tier_source": match explanation.tier_source {
            TierSource::Nobody => None,
            TierSource::Request => Some("request"),
            TierSource::Client => Some("client"),
            TierSource::Pattern => Some("pattern"),
            TierSource::Default => Some("default"),
        },
        "listed": explanation.listed.map(|listed| match listed {
            Listed::Allow => "allow",
            Listed::Deny => "deny",
        }),
        "rules": rules.collect::<Vec<_>>(),
    })
}
