//! The fields of a rule file: their names, what they take, and what they are for.
//!
//! The reader takes no field that is not in these tables and the schema is made of them, so neither can know what the
//! other does not. What is said here of a field is what an editor shows beside it.

use ratekeeper_core::Limit;

/// A map with known fields.
#[derive(Debug)]
pub(crate) struct FieldTable {
    /// What goes by these fields, with its article: `a rule`.
    pub(crate) title: &'static str,
    /// What it is for.
    pub(crate) about: &'static str,
    /// One, as it is written in YAML.
    pub(crate) example: &'static str,
    pub(crate) fields: &'static [Field],
    /// Of each of these groups, one field at most.
    pub(crate) exclusive: &'static [&'static [&'static str]],
    /// What to say of some names that are no fields.
    pub(crate) hints: &'static [(&'static str, &'static str)],
}

/// A field of a map.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    /// Other names of the same field.
    pub(crate) also: &'static [&'static str],
    /// Whether it must be there.
    pub(crate) is_required: bool,
    /// Whether it may be there under several of its names, and then all of it counts.
    pub(crate) is_joined: bool,
    pub(crate) form: FieldForm,
    /// A value, as it is written in YAML.
    pub(crate) example: &'static str,
    /// What it is for.
    pub(crate) about: &'static str,
}

/// What a field takes.
#[derive(Debug)]
pub(crate) enum FieldForm {
    /// A single value, taken as text.
    Text,
    /// `true` or `false`.
    Flag,
    /// A whole number from these.
    Whole(u64, u64),
    /// A decimal number above zero, exactly as it is written.
    Decimal,
    /// A number of seconds, or text like `1h`.
    Span,
    /// How long somebody is waited for, like `20ms`.
    Timeout,
    /// A date or a time.
    Moment,
    /// Text like `100/min burst 20`.
    Quota,
    /// The same, or `unlimited`.
    Limit,
    /// An address or a network.
    Network,
    /// The entries of a proxy's descriptor.
    Descriptor,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list.
    List(&'static FieldForm),
    /// One alone, or a list of at least one.
    OneOrList(&'static FieldForm),
    /// A map by names that the author chooses.
    Map(&'static FieldForm),
    /// The same, by names of the kind that rules have.
    Named(&'static FieldForm),
    /// A map with known fields.
    Fields(&'static FieldTable),
    /// Either of two.
    Either(&'static FieldForm, &'static FieldForm),
}

impl FieldTable {
    /// The field of a name, by any of its names.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.names().any(|known| known == name))
    }

    /// Every name of every field.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.fields.iter().flat_map(Field::names)
    }
}

impl Field {
    /// Its name, then its other names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        std::iter::once(self.name).chain(self.also.iter().copied())
    }

    const fn also(mut self, names: &'static [&'static str]) -> Field {
        self.also = names;
        self
    }

    const fn required(mut self) -> Field {
        self.is_required = true;
        self
    }

    const fn joined(mut self) -> Field {
        self.is_joined = true;
        self
    }
}

const fn field(name: &'static str, form: FieldForm, example: &'static str, about: &'static str) -> Field {
    Field { name, also: &[], is_required: false, is_joined: false, form, example, about }
}

/// The names of the algorithms that a rule may follow.
pub(crate) const ALGORITHMS: [&str; 5] =
    ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window_counter", "sliding_window_log"];
pub(crate) const FAILURE_MODES: [&str; 3] = ["open", "closed", "local"];
pub(crate) const CONSISTENCIES: [&str; 3] = ["exact", "leased", "local"];
pub(crate) const STARTS: [&str; 2] = ["wall", "first_hit"];
pub(crate) const ESCAPED_SLASHES: [&str; 2] = ["split", "keep"];
pub(crate) const MISSING_MODES: [&str; 3] = ["skip", "refuse", "shared"];
pub(crate) const UNKNOWN_TIERS: [&str; 2] = ["ignore", "refuse"];
pub(crate) const MATRIX_PARAMETERS: [&str; 2] = ["strip", "keep"];

static QUOTA_OR_PARAMS: FieldForm = FieldForm::Either(&FieldForm::Quota, &NUMBERS);
static NUMBERS: FieldForm = FieldForm::Fields(&PARAMS);
const AMOUNT: FieldForm = FieldForm::Whole(1, u32::MAX as u64);

const LIMIT: Field = field(
    "limit",
    FieldForm::Limit,
    "100/min burst 20",
    "How much per how long: an amount, a period, and perhaps how much may come at once. Or unlimited.",
);
const LIMITS: Field = field(
    "limits",
    FieldForm::List(&QUOTA_OR_PARAMS),
    "[100/s, 10000/h]",
    "Several limits that hold together: a request passes all of them or takes from none.",
);
const PARAMS_FIELD: Field = field(
    "params",
    FieldForm::Fields(&PARAMS),
    "{capacity: 100, window: 60}",
    "The limit in numbers, instead of limit.",
);
const ALGORITHM: Field = field(
    "algorithm",
    FieldForm::Choice(&ALGORITHMS),
    "token_bucket",
    "How it is counted: token_bucket unless said otherwise.",
);
const ZONE: Field = field(
    "zone",
    FieldForm::Text,
    "Europe/Berlin",
    "The time zone in which a fixed_window of a day, a week or a month begins: UTC unless said otherwise.",
);
const STARTS_FIELD: Field = field(
    "starts",
    FieldForm::Choice(&STARTS),
    "first_hit",
    "When a fixed_window begins: on the wall clock, or with a client's first request.",
);
const LARGE_LOG: Field = field(
    "large_log",
    FieldForm::Flag,
    "true",
    "Lets a sliding_window_log remember more than 10000 requests of each client.",
);
const _: () = assert!(Limit::MODEST_LOG == 10_000, "the description of large_log names the bound");

const CAPACITY: Field =
    field("capacity", AMOUNT, "100", "How many may come at once: the size of the bucket.");
const REFILL_RATE: Field = field(
    "refill_rate",
    FieldForm::Decimal,
    "1.67",
    "How many are added each second. If it is left out, the capacity is added once a window.",
);
const WINDOW: Field =
    field("window", FieldForm::Span, "60", "How long the amount is for: in seconds, or like 60s or 1h.");
const ON_STORE_FAILURE: Field = field(
    "on_store_failure",
    FieldForm::Choice(&FAILURE_MODES),
    "local",
    "What to answer when the store gives no answer: open allows, closed refuses, local enforces each node's \
     share.",
);
const CONSISTENCY: Field = field(
    "consistency",
    FieldForm::Choice(&CONSISTENCIES),
    "exact",
    "How exact it is across nodes: leased, the default, takes units ahead and answers from memory, exact asks \
     the store each time, local counts each node by itself.",
);
const STORE_TIMEOUT: Field = field(
    "store_timeout",
    FieldForm::Timeout,
    "20ms",
    "How long the store has to answer, from 1ms to 1s: 50ms unless the server is told otherwise.",
);
const VALID_UNTIL: Field = field(
    "valid_until",
    FieldForm::Moment,
    "2030-01-31T12:00:00Z",
    "From when on it no longer holds: a time, a date (midnight UTC), or seconds since 1970.",
);
const KEY: Field = field(
    "key",
    FieldForm::OneOrList(&FieldForm::Text),
    "[api_key, endpoint]",
    "What is counted apart: api_key, client (the key, or the address of who has none), ip, endpoint, path, \
     method, tier, domain, descriptor, or any attribute that callers send. global alone is one count for all. \
     Unless said otherwise, api_key; with match.descriptor, descriptor; in the default, client.",
);
const MISSING: Field = field(
    "missing",
    FieldForm::Choice(&MISSING_MODES),
    "shared",
    "What to do with requests that lack something of the key: skip (they are not bound), refuse, or shared (one \
     count for all of them). skip unless said otherwise; by the default, those with neither a key nor an address \
     share a count if no rule binds them.",
);

const LIMIT_GROUP: &[&[&str]] = &[&["limit", "limits", "params"]];
const LIMIT_HINTS: [(&str, &str); 5] = [
    ("unlimited", "write limit: unlimited"),
    ("burst", "write it behind the limit, like limit: 100/min burst 20"),
    ("rate", "write limit: 100/min, or params: {capacity: 100, refill_rate: 1.67}"),
    ("quota", "write it as limit: 100/min"),
    ("penalty", "penalty is not enforced by this version: leave it out"),
];

/// A whole file.
pub(crate) static FILE: FieldTable = FieldTable {
    title: "a rule file",
    about: "Which requests pass, and how many. Rules are tried from top to bottom. Of rules that count by \
            the same key the \
            first that matches is used; rules that count by different keys all hold.",
    example: "rules: [{id: per-key, limit: 100/min}]",
    fields: &[
        field(
            "rules",
            FieldForm::List(&FieldForm::Fields(&RULE)),
            "[{id: per-key, limit: 100/min}]",
            "The rules, in the order in which they are tried.",
        ),
        field(
            "default",
            FieldForm::Either(&FieldForm::Limit, &FieldForm::Fields(&DEFAULT)),
            "{limit: 100/min}",
            "What binds whom no rule binds, and what rules without a limit inherit.",
        ),
        field(
            "tiers",
            FieldForm::Named(&FieldForm::Either(&FieldForm::Limit, &FieldForm::Fields(&TIER))),
            "{free: 100/min, pro: 1000/min}",
            "Bundles of limits by name, which take the default's place for their clients.",
        ),
        field(
            "default_tier",
            FieldForm::Text,
            "free",
            "The tier of clients whose tier is not known otherwise.",
        ),
        field(
            "clients",
            FieldForm::Map(&FieldForm::Either(&FieldForm::Limit, &FieldForm::Fields(&CLIENT))),
            "{acme: {tier: pro}}",
            "What is known of single clients, by their keys.",
        ),
        field(
            "whitelist",
            FieldForm::Either(&FieldForm::Text, &FieldForm::List(&FieldForm::Text)),
            "[\"sk_internal_*\", 10.0.0.0/8]",
            "Who passes unchecked: patterns of client keys, addresses and networks.",
        )
        .also(&["allow"])
        .joined(),
        field(
            "blacklist",
            FieldForm::Either(&FieldForm::Text, &FieldForm::List(&FieldForm::Text)),
            "[\"sk_revoked_*\", 192.0.2.7]",
            "Who is always refused: patterns of client keys, addresses and networks. It wins over the \
             whitelist.",
        )
        .also(&["deny"])
        .joined(),
        field(
            "paths",
            FieldForm::Fields(&PATHS),
            "{ignore_case: true}",
            "How paths are made alike before they \
            are compared.",
        ),
        field(
            "ipv6_prefix",
            FieldForm::Whole(1, 128),
            "64",
            "How many leading bits of an IPv6 address tell clients apart: 64 unless said otherwise.",
        ),
        field(
            "unknown_tier",
            FieldForm::Choice(&UNKNOWN_TIERS),
            "refuse",
            "What to do with a tier that a request states and the file does not name: ignore it, which is the \
             default, or refuse the request.",
        ),
        MISSING,
        ON_STORE_FAILURE,
        CONSISTENCY,
        STORE_TIMEOUT,
    ],
    exclusive: &[],
    hints: &[
        ("rule", "write rules: and a list of them"),
        ("version", "each rule has a version of its own: leave it out here"),
        ("limit", "write default: {limit: 100/min}"),
        ("overrides", "they stand in a rule, or a client's limit in clients: {acme: {limit: 1000/min}}"),
    ],
};

/// A rule.
pub(crate) static RULE: FieldTable = FieldTable {
    title: "a rule",
    about: "Whom limits bind, and which.",
    example: "{id: orders, limit: 100/min}",
    fields: &[
        field(
            "id",
            FieldForm::Text,
            "orders",
            "Its name, which no other rule has: up to 64 of A-Z a-z 0-9 . _ : / -",
        )
        .required(),
        field(
            "version",
            FieldForm::Whole(0, u64::MAX),
            "42",
            "A number that its author counts up. It is kept and shown.",
        ),
        field("description", FieldForm::Text, "orders are dear", "What it is for. It is kept and shown."),
        field(
            "enabled",
            FieldForm::Flag,
            "false",
            "Whether the rule is there at all: true unless said otherwise.",
        ),
        field(
            "shadow",
            FieldForm::Flag,
            "true",
            "Decide and count, and refuse nobody: to try a rule on real traffic.",
        ),
        field(
            "tier",
            FieldForm::Text,
            "pro",
            "The tier it is for. With match.api_key, it also holds for matching keys whose tier nobody \
             stated.",
        ),
        field(
            "match",
            FieldForm::Fields(&MATCH),
            "{path: \"/users/{id}\", method: POST}",
            "Whom it binds: everybody, if left out.",
        ),
        ALGORITHM,
        LIMIT,
        LIMITS,
        PARAMS_FIELD,
        KEY,
        MISSING,
        field(
            "override",
            FieldForm::Map(&FieldForm::Either(&FieldForm::Limit, &FieldForm::Fields(&OVERRIDE))),
            "{acme: 1000/min}",
            "Other limits for single client keys.",
        )
        .also(&["overrides"]),
        ON_STORE_FAILURE,
        CONSISTENCY,
        STORE_TIMEOUT,
        ZONE,
        STARTS_FIELD,
        LARGE_LOG,
    ],
    exclusive: LIMIT_GROUP,
    hints: &[
        LIMIT_HINTS[0],
        LIMIT_HINTS[1],
        LIMIT_HINTS[2],
        LIMIT_HINTS[3],
        LIMIT_HINTS[4],
        ("name", "write it as id"),
        ("priority", "rules are tried from top to bottom: move the rule instead"),
        ("disabled", "write enabled: false"),
    ],
};

/// Whom a rule binds.
pub(crate) static MATCH: FieldTable = FieldTable {
    title: "a match",
    about: "Whom a rule binds: all of this must hold.",
    example: "{path: /v1/orders}",
    fields: &[
        field(
            "api_key",
            FieldForm::Text,
            "\"sk_prod_*\"",
            "The client's key; * stands for any run of characters.",
        )
        .also(&["api_key_pattern", "client_key"]),
        field(
            "path",
            FieldForm::Text,
            "\"/users/{id}\"",
            "The path: exact, with a name in braces for a segment, or with * within a segment and ** across \
             segments.",
        )
        .also(&["endpoint"]),
        field(
            "path_regex",
            FieldForm::Text,
            "\"^/v1/orders\"",
            "A regular expression that the path must match.",
        )
        .also(&["endpoint_regex"]),
        field(
            "method",
            FieldForm::OneOrList(&FieldForm::Text),
            "[POST, PUT]",
            "The HTTP method, or one of several.",
        ),
        field(
            "tier",
            FieldForm::OneOrList(&FieldForm::Text),
            "free",
            "The client's tier, or one of several.",
        ),
        field(
            "ip",
            FieldForm::OneOrList(&FieldForm::Network),
            "10.0.0.0/8",
            "The client's address, or networks that \
            it may be in.",
        ),
        field(
            "attributes",
            FieldForm::Map(&FieldForm::OneOrList(&FieldForm::Text)),
            "{tenant: \"acme-*\"}",
            "Attributes that callers send, each with its pattern or several; * stands for any run of \
             characters.",
        ),
        field(
            "domain",
            FieldForm::Text,
            "edge",
            "The domain that a proxy like Envoy sends with its descriptors; * stands for any run of characters.",
        ),
        field(
            "descriptor",
            FieldForm::Descriptor,
            "[generic_key: login, remote_address]",
            "The descriptor that a proxy sends: these entries in this order, no more and no fewer. A name alone \
             is any value; in values, * stands for any run of characters.",
        ),
    ],
    exclusive: &[&["path", "path_regex"]],
    hints: &[
        ("user", "if callers send it, write attributes: {user: …}"),
        ("tenant", "if callers send it, write attributes: {tenant: …}"),
        ("host", "if callers send it, write attributes: {host: …}"),
        ("header", "if callers send it, write attributes: {name: …}"),
        ("namespace", "write it as domain"),
        ("query", "the query is no part of the path: if callers send it, write attributes: {name: …}"),
    ],
};

/// A limit in numbers.
pub(crate) static PARAMS: FieldTable = FieldTable {
    title: "params",
    about: "A limit in numbers: capacity and refill_rate or window for the buckets, limit and window for the \
            windows.",
    example: "{capacity: 100, refill_rate: 1.67}",
    fields: &[CAPACITY, REFILL_RATE, field("limit", AMOUNT, "100", "How many in a window."), WINDOW],
    exclusive: &[&["capacity", "limit"]],
    hints: &PARAMS_HINTS,
};

const PARAMS_HINTS: [(&str, &str); 6] = [
    ("burst", "write it as capacity"),
    ("rate", "write it as refill_rate"),
    ("period", "write it as window"),
    ("interval", "write it as window"),
    ("amount", "write it as limit"),
    ("max_requests", "write it as limit"),
];

/// Other limits for one client key.
pub(crate) static OVERRIDE: FieldTable = FieldTable {
    title: "an override",
    about: "Other limits for one client key, perhaps for a time. What it leaves out of the rule's params \
            stays as it is there.",
    example: "{limit: 1000/min}",
    fields: &[
        CAPACITY,
        REFILL_RATE,
        field(
            "limit",
            FieldForm::Either(&AMOUNT, &FieldForm::Limit),
            "1000/min",
            "How much per how long, or how many in the rule's window. Or unlimited.",
        ),
        WINDOW,
        LIMITS,
        ALGORITHM,
        VALID_UNTIL,
    ],
    exclusive: &[&["capacity", "limit", "limits"], &["refill_rate", "limits"], &["window", "limits"]],
    hints: &PARAMS_HINTS,
};

/// What binds whom no rule binds.
pub(crate) static DEFAULT: FieldTable = FieldTable {
    title: "the default",
    about: "What binds whom no rule binds.",
    example: "{limit: 100/min}",
    fields: &[LIMIT, LIMITS, PARAMS_FIELD, ALGORITHM, KEY, MISSING, ZONE, STARTS_FIELD, LARGE_LOG],
    exclusive: LIMIT_GROUP,
    hints: &LIMIT_HINTS,
};

/// A bundle of limits.
pub(crate) static TIER: FieldTable = FieldTable {
    title: "a tier",
    about: "Limits that take the default's place for the clients of this tier.",
    example: "{limit: 1000/min}",
    fields: &[
        LIMIT,
        LIMITS,
        PARAMS_FIELD,
        ALGORITHM,
        field(
            "keys",
            FieldForm::OneOrList(&FieldForm::Text),
            "[\"sk_free_*\"]",
            "Patterns of the client keys that belong to it, unless the request or a client record says \
             otherwise.",
        ),
        ZONE,
        STARTS_FIELD,
        LARGE_LOG,
    ],
    exclusive: LIMIT_GROUP,
    hints: &LIMIT_HINTS,
};

/// What is known of one client.
pub(crate) static CLIENT: FieldTable = FieldTable {
    title: "a client",
    about: "What is known of one client: its tier, or limits of its own.",
    example: "{tier: pro}",
    fields: &[
        field("tier", FieldForm::Text, "pro", "Its tier."),
        LIMIT,
        LIMITS,
        PARAMS_FIELD,
        ALGORITHM,
        VALID_UNTIL,
        ZONE,
        STARTS_FIELD,
        LARGE_LOG,
    ],
    exclusive: LIMIT_GROUP,
    hints: &LIMIT_HINTS,
};

/// How paths are made alike.
pub(crate) static PATHS: FieldTable = FieldTable {
    title: "paths",
    about: "How paths are made alike beyond what is always done.",
    example: "{ignore_case: true}",
    fields: &[
        field(
            "escaped_slashes",
            FieldForm::Choice(&ESCAPED_SLASHES),
            "keep",
            "Whether %2F separates segments (split, as most frameworks do) or is a part of one (keep).",
        ),
        field("ignore_case", FieldForm::Flag, "true", "Whether letters of either case are alike."),
        field(
            "matrix_parameters",
            FieldForm::Choice(&MATRIX_PARAMETERS),
            "keep",
            "Whether a ; and what follows it in a segment are cut off (strip, the default, as Tomcat and Spring \
             do) or are a part of the path (keep).",
        ),
    ],
    exclusive: &[],
    hints: &[],
};

/// All tables, for finding out where a misplaced field belongs.
pub(crate) static TABLES: [&FieldTable; 9] =
    [&FILE, &RULE, &MATCH, &PARAMS, &OVERRIDE, &DEFAULT, &TIER, &CLIENT, &PATHS];
