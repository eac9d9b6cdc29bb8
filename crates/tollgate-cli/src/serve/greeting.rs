//! What a server says when it starts: where it listens, what holds, and what to type.

use crate::settings::Settings;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tollgate::rules::spec::Mode;
use tollgate::rules::{Rule, RuleSet};

/// How many rules are listed; of more, only how many there are.
const LISTED: usize = 12;

/// Where somebody listens, and whether with TLS.
type Place = Option<(SocketAddr, bool)>;

/// What a server says when it starts. The first line is for scripts too.
pub(super) struct Greeting {
    http: Place,
    admin: Place,
    source: String,
    rules: Vec<String>,
    fresh_token: Option<String>,
}

impl Greeting {
    pub(super) fn new(
        settings: &Settings,
        rules: &RuleSet,
        http: Place,
        admin: Place,
        fresh_token: Option<String>,
    ) -> Greeting {
        let source = match &settings.rules {
            Some(path) => format!("rules, from {}, which is followed:", path.display()),
            None => "rules, built in (your own with --rules FILE):".to_owned(),
        };
        let enforced =
            rules.rules().iter().filter(|rule| rule.mode() != Mode::Disabled && !rule.limits().is_empty());
        Greeting { http, admin, source, rules: enforced.map(line).collect(), fresh_token }
    }
}

fn line(rule: &Rule) -> String {
    let limits: Vec<_> = rule.limits().iter().map(ToString::to_string).collect();
    let key: Vec<_> = rule.key().iter().map(ToString::to_string).collect();
    let key = if key.is_empty() {
        "for everybody together".to_owned()
    } else {
        format!("for each {}", key.join(" and "))
    };
    let shadow = if rule.mode() == Mode::Shadow { " (shadow)" } else { "" };
    format!("{}: {} {key}{shadow}", rule.id(), limits.join(", "))
}

impl fmt::Display for Greeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = env!("CARGO_PKG_VERSION");
        match (self.http, self.admin) {
            (Some(http), _) => writeln!(f, "tollgate {version} listens on {}", url(http))?,
            (None, Some(admin)) => writeln!(f, "tollgate {version} listens on {} (admin)", url(admin))?,
            (None, None) => {}
        }
        if let (Some(_), Some(admin)) = (self.http, self.admin) {
            writeln!(f, "admin: {} (/metrics, /livez, /readyz, /version)", url(admin))?;
        }
        if let (Some(token), Some(_)) = (&self.fresh_token, self.admin) {
            writeln!(f, "admin token, made just now and not shown again: {token}")?;
        }
        writeln!(f, "{}", self.source)?;
        for rule in self.rules.iter().take(LISTED) {
            writeln!(f, "  {rule}")?;
        }
        match self.rules.len() {
            0 => writeln!(f, "  none: everything is allowed")?,
            count if count > LISTED => writeln!(f, "  and {} more", count - LISTED)?,
            _ => {}
        }
        writeln!(f, "try it:")?;
        if let Some(http) = self.http {
            let near = reachable(http);
            writeln!(f, "  curl -d '{{\"client_key\":\"alice\"}}' {near}/check")?;
            writeln!(f, "  tollgate check alice --endpoint /orders --server {near}")?;
        }
        if let Some(admin) = self.admin {
            let token = self.fresh_token.as_deref().unwrap_or("TOKEN");
            writeln!(f, "  curl -H 'Authorization: Bearer {token}' {}/metrics", reachable(admin))?;
        }
        Ok(())
    }
}

fn url((address, has_tls): (SocketAddr, bool)) -> String {
    format!("{}://{address}", if has_tls { "https" } else { "http" })
}

/// An address to type: of a server that listens on all its addresses, the one that is sure to be near.
fn reachable((address, has_tls): (SocketAddr, bool)) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    url((SocketAddr::new(ip, address.port()), has_tls))
}
