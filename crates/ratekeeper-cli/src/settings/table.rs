//! The table of settings: what there is, what it is called, what it is unless somebody says otherwise.
//!
//! Flags, environment variables, fields of the config file, `--print-config`, the help and the manual all follow from
//! it, and so does [`Settings`], so that none of them can know of a setting that the others don't. The first line of a
//! setting's text is its help; all of it is what `--help` and the manual say.

use super::store::StoreSetting;
use super::value::{
    Bytes, ClientAddress, DenyStatus, Headers, HiddenText, Listen, ListenerChoice, LogFilter, LogFormat,
    Networks, Origins, Reset, SettingValue, ValueShape,
};
use ratekeeper::{FailureMode, Quota};
use ratekeeper_server::KeySources;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// A setting, before anybody has said anything.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Its name in the config file. The flag has `-` for `_`, the variable is in capitals behind `RATEKEEPER_`.
    pub(crate) name: &'static str,
    /// What it has to do with.
    pub(crate) heading: &'static str,
    /// What it means, line by line.
    pub(crate) text: &'static [&'static str],
    pub(crate) fallback: DefaultValue,
    /// From which number to which, for those that are numbers.
    pub(crate) range: RangeInclusive<u64>,
    pub(crate) shape: ValueShape,
}

/// What holds if nobody says anything.
#[derive(Debug)]
pub(crate) enum DefaultValue {
    /// As if this had been written.
    Text(&'static str),
    /// As many as there are processor cores.
    Cores,
    /// For people if one is reading, else for programs.
    Reader,
    /// Nothing, which means this.
    Nothing(&'static str),
}

impl Setting {
    /// Its flag, without the dashes before it.
    pub(crate) fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    pub(crate) fn variable(&self) -> String {
        format!("RATEKEEPER_{}", self.name.to_uppercase())
    }
}

/// Reads the text of settings into values, in the order of the table.
pub(crate) trait TextReader {
    /// The value of the next one, unless there is something to complain of.
    fn next<T: SettingValue>(&mut self) -> Option<T>;
}

macro_rules! settings {
    ($($heading:literal {
        $($(#[doc = $text:literal])+ $name:ident: $type:ty $([$range:expr])? = $fallback:expr,)+
    })+) => {
        /// What the server is told, every part of it read and checked.
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
            /// What `reader` makes of the text of each, if there is nothing to complain of. All are read either way.
            pub(crate) fn read(reader: &mut impl TextReader) -> Option<Settings> {
                $($(let $name = reader.next::<$type>();)+)+
                Some(Settings { $($($name: $name?,)+)+ })
            }
        }
    };
    (@range) => { 0..=u64::MAX };
    (@range $range:expr) => { $range };
}

settings! {
    "Rules" {
        /// The rules to enforce, in YAML
        ///
        /// Without them, each client key has 100 requests a minute.
        rules: Option<PathBuf> = DefaultValue::Nothing("100/min for each client key"),

        /// A quota that holds for every client address, whatever the rules say
        ///
        /// For when something is on fire: an amount and a period, like 10/s. It is counted in memory and needs
        /// nothing else to be in order.
        emergency_limit: Option<Quota> = DefaultValue::Nothing("none"),
    }
    "Listening" {
        /// Where to listen for HTTP; port 0 takes any free one
        ///
        /// An address and a port, like 127.0.0.1:8080, [::1]:8080, or 0.0.0.0:8080 to be reached from other machines
        /// too; or off.
        http: Listen = DefaultValue::Text("127.0.0.1:8080"),

        /// Where to listen for gRPC, which Envoy's rate limit service is part of
        ///
        /// An address and a port, or off.
        grpc: Listen = DefaultValue::Text("127.0.0.1:8081"),

        /// Where to listen for RESP, which Redis clients speak
        ///
        /// An address and a port, or off.
        resp: Listen = DefaultValue::Text("127.0.0.1:6380"),

        /// Where to listen for the admin API, metrics and health
        ///
        /// An address and a port, or off.
        admin: Listen = DefaultValue::Text("127.0.0.1:9090"),

        /// A file with nothing in it but the token that opens the admin API
        ///
        /// At least 16 letters, digits and signs, like those of `openssl rand -hex 32`. Without it a new token is made
        /// at each start and printed once. The token itself can also be in RATEKEEPER_ADMIN_TOKEN; there is no flag for
        /// it, because other users of the machine see the flags of a process.
        admin_token_file: Option<PathBuf> = DefaultValue::Nothing("a new token at each start, printed once"),

        /// The token that opens the admin API, taken from the environment alone
        admin_token: Option<HiddenText> = DefaultValue::Nothing("a new token at each start, printed once"),

        /// A file with nothing in it but a token that whoever asks must send
        ///
        /// Over HTTP and gRPC in the header Authorization: Bearer TOKEN, over RESP with AUTH TOKEN. Without it, whoever
        /// reaches the ports may use all of them, so let only those reach them who may. The token itself can also be in
        /// RATEKEEPER_API_TOKEN.
        api_token_file: Option<PathBuf> = DefaultValue::Nothing("nobody is asked for a token"),

        /// The token that whoever asks must send, taken from the environment alone
        api_token: Option<HiddenText> = DefaultValue::Nothing("nobody is asked for a token"),

        /// The web sites whose pages may use the API: origins, or none
        ///
        /// Browsers say which page a request comes from. Requests from pages of any other site than the server's own are
        /// refused, so that no web page can use up limits through a visitor's browser. Write a scheme and a host, like
        /// https://admin.example. Programs, and what proxies ask, are not held to this.
        allowed_origins: Origins = DefaultValue::Text("none"),

        /// The most connections at once on each port
        ///
        /// Each takes some tens of kilobytes at worst. Whoever comes on top waits until one is closed.
        /// Where the process may not have enough files open for that, what there is is divided among the ports, and the log says
        /// so at the start.
        max_connections: u32 [1..=1_000_000] = DefaultValue::Text("10_000"),
    }
    "Proxies" {
        /// Where proxies that ask for their clients find a client's key
        ///
        /// A list in order of preference: header:NAME, query:NAME (of what the client asked for) and ip, like
        /// header:x-api-key,ip. Nobody has looked at such a key before it is counted by, so a client that makes up new
        /// ones is a new client each time: add a rule with key: ip. The URL that a proxy asks with can say otherwise, like
        /// /v1/forward-auth?key=header:x-api-key,ip.
        forward_key: KeySources = DefaultValue::Text("ip"),

        /// The proxies that are believed when they tell a client's address: networks, or none
        ///
        /// Whoever else asks is the client itself, whatever it says. Name your proxies alone: all that is in these
        /// networks can take any address.
        trusted_proxies: Networks = DefaultValue::Text("127.0.0.0/8,::1"),

        /// The header in which trusted proxies tell a client's address
        ///
        /// It is the only one that is looked at. Proxies hand others on as the client wrote them.
        client_address: ClientAddress = DefaultValue::Text("x-forwarded-for"),
    }
    "Encryption" {
        /// The server's certificate, in PEM, with those that lead to its authority behind it
        ///
        /// With it and tls-key, listeners speak TLS. Certificates, keys and authorities that change are read again,
        /// and hold for new connections.
        tls_cert: Option<PathBuf> = DefaultValue::Nothing("no TLS"),

        /// The key of the certificate, in PEM, without a password
        tls_key: Option<PathBuf> = DefaultValue::Nothing("no TLS"),

        /// The authorities that sign clients' certificates, in PEM
        ///
        /// With it, whoever connects must show a certificate that one of them has signed.
        tls_client_ca: Option<PathBuf> = DefaultValue::Nothing("clients need no certificate"),

        /// The listeners that speak TLS, if there is a certificate
        tls_on: Vec<ListenerChoice> = DefaultValue::Text("http,grpc,resp,admin"),
    }
    "State" {
        /// Where the states of clients are kept: memory, or the URL of a store that several nodes share
        ///
        /// redis://HOST:PORT/DB and rediss:// (with TLS) for one Redis or Valkey, redis+sentinel://H1:P,H2:P/NAME for one
        /// that sentinels watch, redis+cluster://H1:P,H2:P for a cluster, redis+sharded://H1:P,H2:P for several that know
        /// nothing of each other; in all of them valkey may stand for redis. With a password in it, put it into the variable
        /// RATEKEEPER_STORE: other users of the machine see the flags of a process.
        store: StoreSetting = DefaultValue::Text("memory"),

        /// How long a shared store has to answer
        ///
        /// No request waits longer for it. Rules may say otherwise with store_timeout. From 1ms to 1s.
        store_timeout: Duration [1..=1_000] = DefaultValue::Text("50ms"),

        /// What holds when a shared store gives no answer, for rules that do not say it themselves
        on_store_failure: FailureMode = DefaultValue::Text("local"),

        /// The most states that are remembered at once
        ///
        /// A client under three limits has three. Ten million take 300 MB when they are all there, and next to nothing
        /// before. Of a shared store, so many are known here too.
        max_keys: usize [1..=1_000_000_000] = DefaultValue::Text("10_000_000"),
    }
    "Answers" {
        /// The headers that tell a client of its limit
        headers: Headers = DefaultValue::Text("x-ratelimit,ietf"),

        /// What the header X-RateLimit-Reset tells
        reset: Reset = DefaultValue::Text("epoch"),

        /// The HTTP status of an answer that is a denial
        deny_status: DenyStatus = DefaultValue::Text("200"),

        /// The most checks in one batch
        max_batch: u32 [1..=1_000_000] = DefaultValue::Text("10_000"),

        /// The most bytes in the body of a request, like 65536, 64KiB or 4MiB
        max_body: Bytes [1024..=1 << 30] = DefaultValue::Text("4MiB"),

        /// The most bytes of all bodies together of which some is still to come
        ///
        /// A body that does not come in one piece counts until it is complete. Those for which there is no room are refused
        /// with status 503. No less than max_body.
        max_unfinished_bodies: Bytes [65_536..=1 << 40] = DefaultValue::Text("64MiB"),
    }
    "Running" {
        /// How many threads do the work
        workers: usize [1..=1024] = DefaultValue::Cores,

        /// How long a stopping server still lets clients in, while it says that it is not ready
        ///
        /// Load balancers that look at /readyz have as long to send clients elsewhere. A number and a unit, like 500ms,
        /// 5s or 1min.
        drain_delay: Duration [0..=3_600_000] = DefaultValue::Text("0s"),

        /// How long a stopping server then waits for requests that have begun
        drain_timeout: Duration [0..=3_600_000] = DefaultValue::Text("10s"),
    }
    "Logging" {
        /// Which logs are written to stderr: a level, or levels by part
        ///
        /// The levels are off, error, warn, info, debug and trace; warn,ratekeeper=debug is warn, but debug for Ratekeeper's
        /// own. The variable RUST_LOG wins over all else.
        log: LogFilter = DefaultValue::Text("info"),

        /// What a line of the log looks like
        log_format: LogFormat = DefaultValue::Reader,

        /// The most denials that are logged in a second; 0 logs none
        ///
        /// All are counted in the metrics.
        denial_log: u32 [0..=1_000_000] = DefaultValue::Text("10"),
    }
}
