//! The table of settings: names, help texts, types and defaults.
//!
//! Flags, environment variables, fields of the config file, `--print-config`, the help, the manual and [`Settings`] are
//! all derived from it, so none of them can miss a setting. The first paragraph of a setting's text is its short help;
//! `--help` and the manual show all of it.

use super::store::StoreSetting;
use super::value::{
    Bytes, ClientAddress, DenyStatus, Headers, HiddenText, Listen, ListenerChoice, LogFilter, LogFormat,
    Networks, Origins, Reset, SettingValue, ValueShape,
};
use super::{PREFIX, SettingErrors, SettingValues};
use ratekeeper::{FailureMode, Quota};
use ratekeeper_server::KeySources;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// The definition of a setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// The name in the config file. The flag has `-` for `_`; the variable is in upper case with the prefix
    /// `RATEKEEPER_`.
    pub(crate) name: &'static str,
    /// The heading in the help.
    pub(crate) heading: &'static str,
    /// The help text, line by line.
    pub(crate) text: &'static [&'static str],
    pub(crate) fallback: DefaultValue,
    /// The valid range of numbers, sizes and durations.
    pub(crate) range: RangeInclusive<u64>,
    pub(crate) shape: ValueShape,
}

/// The default of a setting.
#[derive(Debug)]
pub(crate) enum DefaultValue {
    /// The value of this text.
    Text(&'static str),
    /// The number of CPU cores.
    Cores,
    /// Text if stderr is a terminal, else JSON.
    Terminal,
    /// Unset, with a description of what that means.
    Unset(&'static str),
}

impl Setting {
    /// The flag, without its dashes.
    pub(crate) fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    pub(crate) fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name.to_uppercase())
    }
}

macro_rules! settings {
    ($($heading:literal {
        $($(#[doc = $text:literal])+ $name:ident: $type:ty $([$range:expr])? = $fallback:expr,)+
    })+) => {
        /// The parsed and validated settings of the server.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct Settings {
            $($($(#[doc = $text])+ pub(crate) $name: $type,)+)+
        }

        /// All settings, in the order in which they are shown.
        pub(crate) static TABLE: &[Setting] = &[$($(Setting {
            name: stringify!($name),
            heading: $heading,
            text: &[$($text),+],
            fallback: $fallback,
            range: settings!(@range $($range)?),
            shape: <$type as SettingValue>::SHAPE,
        },)+)+];

        impl Settings {
            /// Parses all settings. Returns `None` if one is invalid; all of them are parsed either way.
            pub(super) fn read(values: &SettingValues, errors: &mut SettingErrors) -> Option<Settings> {
                $($(let $name: Option<$type> =
                    read_value(values, stringify!($name), &settings!(@range $($range)?), errors);)+)+
                Some(Settings { $($($name: $name?,)+)+ })
            }
        }
    };
    (@range) => { 0..=u64::MAX };
    (@range $range:expr) => { $range };
}

fn read_value<T: SettingValue>(
    values: &SettingValues,
    name: &str,
    range: &RangeInclusive<u64>,
    errors: &mut SettingErrors,
) -> Option<T> {
    let Some(value) = values.get(name) else { return T::absent() };
    T::read(&value.text, range).map_err(|message| errors.add(&value.origin, message)).ok()
}

settings! {
    "Rules" {
        /// The rule file, in YAML
        ///
        /// Without it, each client key has 100 requests per minute.
        rules: Option<PathBuf> = DefaultValue::Unset("100/min per client key"),

        /// A quota for every client address, regardless of the rules
        ///
        /// For emergencies: an amount and a period, like 10/s. It is counted in memory and depends on nothing else.
        emergency_limit: Option<Quota> = DefaultValue::Unset("none"),
    }
    "Listeners" {
        /// The address of the HTTP listener; port 0 picks a free port
        ///
        /// An address and a port, like 127.0.0.1:8080, [::1]:8080, or 0.0.0.0:8080 to accept connections from other
        /// machines; or off.
        http: Listen = DefaultValue::Text("127.0.0.1:8080"),

        /// The address of the gRPC listener, which includes Envoy's rate limit service
        ///
        /// An address and a port, or off.
        grpc: Listen = DefaultValue::Text("127.0.0.1:8081"),

        /// The address of the RESP listener, for Redis clients
        ///
        /// An address and a port, or off.
        resp: Listen = DefaultValue::Text("127.0.0.1:6380"),

        /// The address of the listener for the admin API, metrics and health
        ///
        /// An address and a port, or off.
        admin: Listen = DefaultValue::Text("127.0.0.1:9090"),

        /// A file that contains only the token of the admin API
        ///
        /// At least 16 printable ASCII characters, like the output of `openssl rand -hex 32`. Without it, a token is
        /// generated at each start and printed once. The token can also be in RATEKEEPER_ADMIN_TOKEN. There is no flag
        /// for it, because other users of the machine can see the flags of a process.
        admin_token_file: Option<PathBuf> = DefaultValue::Unset("a token generated at each start and printed once"),

        /// The token of the admin API, only from the environment
        admin_token: Option<HiddenText> = DefaultValue::Unset("a token generated at each start and printed once"),

        /// A file that contains only the token that API clients must send
        ///
        /// Over HTTP and gRPC in the header Authorization: Bearer TOKEN, over RESP with AUTH TOKEN. Without it, anyone
        /// who can connect to the listeners can use the API, so restrict access to them. The token can also be in
        /// RATEKEEPER_API_TOKEN.
        api_token_file: Option<PathBuf> = DefaultValue::Unset("no token required"),

        /// The token that API clients must send, only from the environment
        api_token: Option<HiddenText> = DefaultValue::Unset("no token required"),

        /// The web origins whose pages may call the API, or none
        ///
        /// Browsers send the origin of the page with a request. Requests from pages of other origins than the server's
        /// own are rejected, so that no web page can use up limits through a visitor's browser. Write a scheme and a
        /// host, like https://admin.example. Requests from programs and proxies are not affected.
        allowed_origins: Origins = DefaultValue::Text("none"),

        /// The maximum number of connections per listener
        ///
        /// Each takes some tens of kilobytes at worst. Further connections wait until one is closed. If the process may
        /// not open enough files for that, the available ones are divided among the listeners, and a warning is logged
        /// at start.
        max_connections: u32 [1..=1_000_000] = DefaultValue::Text("10_000"),
    }
    "Proxies" {
        /// Where forward-auth requests carry the client key
        ///
        /// A list in order of preference: header:NAME, query:NAME (of the client's request) and ip, like
        /// header:x-api-key,ip. Such a key is counted without being verified, so a client that invents keys counts as a
        /// new client each time: add a rule with key: ip. The URL that a proxy calls can override this, like
        /// /v1/forward-auth?key=header:x-api-key,ip.
        forward_key: KeySources = DefaultValue::Text("ip"),

        /// The proxies that are trusted to send a client's address: networks, or none
        ///
        /// Any other sender is taken to be the client itself, whatever its headers say. List only your proxies: every
        /// host in these networks can claim any address.
        trusted_proxies: Networks = DefaultValue::Text("127.0.0.0/8,::1"),

        /// The header in which trusted proxies send a client's address
        ///
        /// Only this header is read. Proxies forward other headers as the client wrote them.
        client_address: ClientAddress = DefaultValue::Text("x-forwarded-for"),
    }
    "TLS" {
        /// The server's certificate chain, in PEM
        ///
        /// With it and tls-key, listeners use TLS. Changed certificates, keys and CA files are reloaded and used for
        /// new connections.
        tls_cert: Option<PathBuf> = DefaultValue::Unset("no TLS"),

        /// The private key of the certificate, in PEM, without a password
        tls_key: Option<PathBuf> = DefaultValue::Unset("no TLS"),

        /// The CA certificates for client certificates, in PEM
        ///
        /// With it, every client must present a certificate signed by one of them.
        tls_client_ca: Option<PathBuf> = DefaultValue::Unset("no client certificate required"),

        /// The listeners that use TLS, if there is a certificate
        tls_on: Vec<ListenerChoice> = DefaultValue::Text("http,grpc,resp,admin"),
    }
    "Store" {
        /// Where client states are stored: memory, or the URL of a store that several nodes share
        ///
        /// redis://HOST:PORT/DB and rediss:// (with TLS) for one Redis or Valkey, redis+sentinel://H1:P,H2:P/NAME for
        /// one monitored by sentinels, redis+cluster://H1:P,H2:P for a cluster, redis+sharded://H1:P,H2:P for several
        /// independent servers. valkey may replace redis in all of them. If the URL contains a password, put it into
        /// the variable RATEKEEPER_STORE: other users of the machine can see the flags of a process.
        store: StoreSetting = DefaultValue::Text("memory"),

        /// The timeout of a shared store
        ///
        /// No request waits longer for it. Rules may override it with store_timeout. From 1ms to 1s.
        store_timeout: Duration [1..=1_000] = DefaultValue::Text("50ms"),

        /// How requests are decided when a shared store fails, unless their rule sets it
        on_store_failure: FailureMode = DefaultValue::Text("local"),

        /// The maximum number of states in memory
        ///
        /// A client under three limits has three. Ten million take 300 MB when they all exist, and next to nothing
        /// before. With a shared store, this bounds the states cached on this node.
        max_keys: usize [1..=1_000_000_000] = DefaultValue::Text("10_000_000"),
    }
    "Responses" {
        /// The rate limit headers of responses
        headers: Headers = DefaultValue::Text("x-ratelimit,ietf"),

        /// The form of the X-RateLimit-Reset header
        reset: Reset = DefaultValue::Text("epoch"),

        /// The HTTP status of a denial
        deny_status: DenyStatus = DefaultValue::Text("200"),

        /// The maximum number of checks in one batch
        max_batch: u32 [1..=1_000_000] = DefaultValue::Text("10_000"),

        /// The maximum size of a request body, like 65536, 64KiB or 4MiB
        max_body: Bytes [1024..=1 << 30] = DefaultValue::Text("4MiB"),

        /// The maximum total size of incomplete request bodies
        ///
        /// A body that does not arrive in one piece counts until it is complete. Bodies beyond this are rejected with
        /// status 503. At least max_body.
        max_unfinished_bodies: Bytes [65_536..=1 << 40] = DefaultValue::Text("64MiB"),
    }
    "Runtime" {
        /// The number of worker threads
        workers: usize [1..=1024] = DefaultValue::Cores,

        /// How long a stopping server keeps accepting connections while it reports that it is not ready
        ///
        /// This gives load balancers that poll /readyz time to move clients away. A number and a unit, like 500ms, 5s
        /// or 1min.
        drain_delay: Duration [0..=3_600_000] = DefaultValue::Text("0s"),

        /// How long a stopping server then waits for requests in flight
        drain_timeout: Duration [0..=3_600_000] = DefaultValue::Text("10s"),
    }
    "Logging" {
        /// Which logs are written to stderr: a level, or levels per target
        ///
        /// The levels are off, error, warn, info, debug and trace. For example, warn,ratekeeper=debug is warn in
        /// general and debug for Ratekeeper's own logs. The variable RUST_LOG overrides everything else.
        log: LogFilter = DefaultValue::Text("info"),

        /// The format of log lines
        log_format: LogFormat = DefaultValue::Terminal,

        /// The maximum number of denials logged per second; 0 logs none
        ///
        /// All are counted in the metrics.
        denial_log: u32 [0..=1_000_000] = DefaultValue::Text("10"),
    }
}
