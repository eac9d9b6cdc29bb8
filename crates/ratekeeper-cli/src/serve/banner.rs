//! The start-up banner: listener addresses, store, rules, and example commands.

use crate::settings::Settings;
use ratekeeper::rules::spec::Mode;
use ratekeeper::rules::{Rule, RuleSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The maximum number of rules listed; further ones are only counted.
const MAX_LISTED_RULES: usize = 12;

/// The address of a listener and whether it uses TLS, or `None` if it is off.
type ListenAddress = Option<(SocketAddr, bool)>;

/// The addresses of all listeners.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListenAddresses {
    pub(super) http: ListenAddress,
    pub(super) grpc: ListenAddress,
    pub(super) resp: ListenAddress,
    pub(super) admin: ListenAddress,
}

/// The start-up banner. Scripts may parse its first line.
pub(super) struct Banner {
    addresses: ListenAddresses,
    store: String,
    source: String,
    rules: Vec<String>,
    generated_token: Option<String>,
}

impl Banner {
    pub(super) fn new(
        settings: &Settings,
        rules: &RuleSet,
        addresses: ListenAddresses,
        store: String,
        generated_token: Option<String>,
    ) -> Banner {
        let source = match &settings.rules {
            Some(path) => format!("rules from {} (reloaded on change):", path.display()),
            None => "rules (built-in; set your own with --rules FILE):".to_owned(),
        };
        let enforced =
            rules.rules().iter().filter(|rule| rule.mode() != Mode::Disabled && !rule.limits().is_empty());
        Banner { addresses, store, source, rules: enforced.map(rule_line).collect(), generated_token }
    }
}

fn rule_line(rule: &Rule) -> String {
    let limits: Vec<_> = rule.limits().iter().map(ToString::to_string).collect();
    let key: Vec<_> = rule.key().iter().map(ToString::to_string).collect();
    let key = if key.is_empty() {
        "shared by all clients".to_owned()
    } else {
        format!("per {}", key.join(" and "))
    };
    let shadow = if rule.mode() == Mode::Shadow { " (shadow)" } else { "" };
    format!("{}: {} {key}{shadow}", rule.id(), limits.join(", "))
}

impl fmt::Display for Banner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = env!("CARGO_PKG_VERSION");
        let ListenAddresses { http, grpc, resp, admin } = self.addresses;
        match http {
            Some(http) => writeln!(f, "ratekeeper {version} listening on {}", url(http))?,
            None => writeln!(f, "ratekeeper {version} started")?,
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
        if let (Some(token), Some(_)) = (&self.generated_token, admin) {
            writeln!(f, "admin token, generated at start and not shown again: {token}")?;
        }
        writeln!(f, "store: {}", self.store)?;
        writeln!(f, "{}", self.source)?;
        for rule in self.rules.iter().take(MAX_LISTED_RULES) {
            writeln!(f, "  {rule}")?;
        }
        match self.rules.len() {
            0 => writeln!(f, "  none; all requests are allowed")?,
            count if count > MAX_LISTED_RULES => writeln!(f, "  and {} more", count - MAX_LISTED_RULES)?,
            _ => {}
        }
        if http.is_some() || admin.is_some() || matches!(resp, Some((_, false))) {
            writeln!(f, "try it:")?;
        }
        if let Some(http) = http {
            let base = client_url(http);
            writeln!(f, "  curl -d '{{\"client_key\":\"alice\"}}' {base}/check")?;
            writeln!(f, "  ratekeeper check alice --endpoint /orders --server {base}")?;
        }
        if let Some((address, false)) = resp {
            let (host, port) = (replace_unspecified(address).ip(), address.port());
            writeln!(f, "  redis-cli -h {host} -p {port} CL.THROTTLE alice 15 30 60")?;
        }
        if let Some(admin) = admin {
            let token = self.generated_token.as_deref().unwrap_or("TOKEN");
            writeln!(f, "  curl -H 'Authorization: Bearer {token}' {}/metrics", client_url(admin))?;
        }
        Ok(())
    }
}

fn url((address, has_tls): (SocketAddr, bool)) -> String {
    format!("{}://{address}", if has_tls { "https" } else { "http" })
}

/// The URL for a client on this machine: an unspecified address is replaced by loopback.
fn client_url((address, has_tls): (SocketAddr, bool)) -> String {
    url((replace_unspecified(address), has_tls))
}

fn replace_unspecified(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
