//! What a server says when it starts: where it listens, what holds, and what to type.

use crate::settings::Settings;
use ratekeeper::rules::spec::Mode;
use ratekeeper::rules::{Rule, RuleSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// How many rules are listed; of more, only how many there are.
const LISTED: usize = 12;

/// Where somebody listens, and whether with TLS.
type ListenAddress = Option<(SocketAddr, bool)>;

/// Where a server listens.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListenAddresses {
    pub(super) http: ListenAddress,
    pub(super) grpc: ListenAddress,
    pub(super) resp: ListenAddress,
    pub(super) admin: ListenAddress,
}

/// What a server says when it starts. The first line is for scripts too.
pub(super) struct Banner {
    places: ListenAddresses,
    store: String,
    source: String,
    rules: Vec<String>,
    fresh_token: Option<String>,
}

impl Banner {
    pub(super) fn new(
        settings: &Settings,
        rules: &RuleSet,
        places: ListenAddresses,
        store: String,
        fresh_token: Option<String>,
    ) -> Banner {
        let source = match &settings.rules {
            Some(path) => format!("rules, from {}, which is followed:", path.display()),
            None => "rules, built in (your own with --rules FILE):".to_owned(),
        };
        let enforced =
            rules.rules().iter().filter(|rule| rule.mode() != Mode::Disabled && !rule.limits().is_empty());
        Banner { places, store, source, rules: enforced.map(line).collect(), fresh_token }
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

impl fmt::Display for Banner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = env!("CARGO_PKG_VERSION");
        let ListenAddresses { http, grpc, resp, admin } = self.places;
        match http {
            Some(http) => writeln!(f, "ratekeeper {version} listens on {}", url(http))?,
            None => writeln!(f, "ratekeeper {version} listens")?,
        }
        if let Some(grpc) = grpc {
            writeln!(f, "gRPC and Envoy RLS: {}", url(grpc))?;
        }
        if let Some((address, has_tls)) = resp {
            writeln!(f, "RESP: {}://{address}", if has_tls { "rediss" } else { "redis" })?;
        }
        if let Some(admin) = admin {
            writeln!(f, "admin: {} (/metrics, /livez, /readyz, /version)", url(admin))?;
        }
        if let (Some(token), Some(_)) = (&self.fresh_token, admin) {
            writeln!(f, "admin token, made just now and not shown again: {token}")?;
        }
        writeln!(f, "store: {}", self.store)?;
        writeln!(f, "{}", self.source)?;
        for rule in self.rules.iter().take(LISTED) {
            writeln!(f, "  {rule}")?;
        }
        match self.rules.len() {
            0 => writeln!(f, "  none: everything is allowed")?,
            count if count > LISTED => writeln!(f, "  and {} more", count - LISTED)?,
            _ => {}
        }
        if http.is_some() || admin.is_some() || matches!(resp, Some((_, false))) {
            writeln!(f, "try it:")?;
        }
        if let Some(http) = http {
            let near = reachable(http);
            writeln!(f, "  curl -d '{{\"client_key\":\"alice\"}}' {near}/check")?;
            writeln!(f, "  ratekeeper check alice --endpoint /orders --server {near}")?;
        }
        if let Some((address, false)) = resp {
            let (host, port) = (near(address).ip(), address.port());
            writeln!(f, "  redis-cli -h {host} -p {port} CL.THROTTLE alice 15 30 60")?;
        }
        if let Some(admin) = admin {
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
    url((near(address), has_tls))
}

fn near(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
