//! The fields of a rule file: their names, types and descriptions.
//!
//! The parser accepts only the fields in these tables, and the JSON Schema is generated from them, so the two can't
//! disagree. Editors show the descriptions.

use super::field::{Field, FieldForm, FieldTable, field};
use crate::spec::{Consistency, FailureMode, MissingKey, UnknownTier};
use ratekeeper_core::Limit;

/// A file must have at least one of these fields; without them it would limit nothing.
pub(crate) const CONTENT_FIELDS: [&str; 6] =
    ["rules", "default", "tiers", "clients", "whitelist", "blacklist"];

/// The values of `algorithm`.
pub(crate) const ALGORITHMS: [&str; 5] =
    ["token_bucket", "leaky_bucket", "fixed_window", "sliding_window_counter", "sliding_window_log"];
pub(crate) const FAILURE_MODES: [FailureMode; 3] =
    [FailureMode::Open, FailureMode::Closed, FailureMode::Local];
pub(crate) const CONSISTENCIES: [Consistency; 3] =
    [Consistency::Exact, Consistency::Leased, Consistency::Local];
pub(crate) const STARTS: [&str; 2] = ["wall", "first_hit"];
pub(crate) const ESCAPED_SLASHES: [&str; 2] = ["split", "keep"];
pub(crate) const MISSING_MODES: [MissingKey; 3] = [MissingKey::Skip, MissingKey::Refuse, MissingKey::Shared];
pub(crate) const UNKNOWN_TIERS: [UnknownTier; 2] = [UnknownTier::Ignore, UnknownTier::Refuse];
pub(crate) const MATRIX_PARAMETERS: [&str; 2] = ["strip", "keep"];

const FAILURE_MODE_NAMES: [&str; 3] =
    [FAILURE_MODES[0].name(), FAILURE_MODES[1].name(), FAILURE_MODES[2].name()];
const CONSISTENCY_NAMES: [&str; 3] =
    [CONSISTENCIES[0].name(), CONSISTENCIES[1].name(), CONSISTENCIES[2].name()];
const MISSING_MODE_NAMES: [&str; 3] =
    [MISSING_MODES[0].name(), MISSING_MODES[1].name(), MISSING_MODES[2].name()];
const UNKNOWN_TIER_NAMES: [&str; 2] = [UNKNOWN_TIERS[0].name(), UNKNOWN_TIERS[1].name()];

static QUOTA_OR_PARAMS: FieldForm = FieldForm::Either(&FieldForm::Quota, &NUMBERS);
static NUMBERS: FieldForm = FieldForm::Fields(&PARAMS);
const AMOUNT: FieldForm = FieldForm::Integer(1, u32::MAX as u64);

const LIMIT: Field = field(
    "limit",
    FieldForm::Limit,
    "100/min burst 20",
    "The quota: an amount, a period, and optionally a burst. Or unlimited.",
);
const LIMITS: Field = field(
    "limits",
    FieldForm::List(&QUOTA_OR_PARAMS),
    "[100/s, 10000/h]",
    "Several limits that apply together: a request must pass all of them, and if one denies it, none is charged.",
);
const PARAMS_FIELD: Field = field(
    "params",
    FieldForm::Fields(&PARAMS),
    "{capacity: 100, window: 60}",
    "The limit as numbers, instead of limit.",
);
const ALGORITHM: Field = field(
    "algorithm",
    FieldForm::Choice(&ALGORITHMS),
    "token_bucket",
    "The rate limiting algorithm. Default: token_bucket.",
);
const ZONE: Field = field(
    "zone",
    FieldForm::Text,
    "Europe/Berlin",
    "The time zone in which a fixed_window of a day, a week or a month begins. Default: UTC.",
);
const STARTS_FIELD: Field = field(
    "starts",
    FieldForm::Choice(&STARTS),
    "first_hit",
    "When a fixed_window begins: wall aligns it to the wall clock, first_hit starts it with a client's first \
     request. Default: wall.",
);
const LARGE_LOG: Field = field(
    "large_log",
    FieldForm::Boolean,
    "true",
    "Allows a sliding_window_log of more than 10000 units per key.",
);
const _: () = assert!(Limit::STANDARD_LOG_UNITS == 10_000, "the description of large_log names the bound");

const CAPACITY: Field =
    field("capacity", AMOUNT, "100", "The size of the bucket: how many may come at once.");
const REFILL_RATE: Field = field(
    "refill_rate",
    FieldForm::Decimal,
    "1.67",
    "How many units are added per second. Without it, the capacity is added once per window.",
);
const WINDOW: Field =
    field("window", FieldForm::Span, "60", "The length of the period: in seconds, or like 60s or 1h.");
const ON_STORE_FAILURE: Field = field(
    "on_store_failure",
    FieldForm::Choice(&FAILURE_MODE_NAMES),
    "local",
    "What to decide when the store fails: open allows, closed denies, local enforces each node's share of the \
     limit.",
);
const CONSISTENCY: Field = field(
    "consistency",
    FieldForm::Choice(&CONSISTENCY_NAMES),
    "exact",
    "How exactly the limit is enforced across nodes: leased reserves units in advance and decides from memory, \
     exact asks the store for every request, local counts on each node separately. Default: leased.",
);
const STORE_TIMEOUT: Field = field(
    "store_timeout",
    FieldForm::Timeout,
    "20ms",
    "How long to wait for the store, from 1ms to 1s. Default: the server setting, which is 50ms unless changed.",
);
const VALID_UNTIL: Field = field(
    "valid_until",
    FieldForm::Timestamp,
    "2030-01-31T12:00:00Z",
    "When it expires: a time, a date (midnight UTC), or seconds since 1970.",
);
const KEY: Field = field(
    "key",
    FieldForm::OneOrList(&FieldForm::Text),
    "[api_key, endpoint]",
    "What requests are counted by: api_key, client (the key, or the address if there is no key), ip, endpoint, \
     path, method, tier, domain, descriptor, or any attribute that callers send. global alone is one count for \
     all requests. Default: api_key; with match.descriptor, descriptor; in the default section, client.",
);
const MISSING: Field = field(
    "missing",
    FieldForm::Choice(&MISSING_MODE_NAMES),
    "shared",
    "What to do with requests that lack part of the key: skip (the rule does not apply), refuse (deny them), or \
     shared (one count for all of them). Default: skip; in the default section, requests with neither a key nor an \
     address share one count if no rule applies to them.",
);

const LIMIT_GROUP: &[&[&str]] = &[&["limit", "limits", "params"]];
const LIMIT_HINTS: [(&str, &str); 5] = [
    ("unlimited", "write limit: unlimited"),
    ("burst", "write it after the limit, like limit: 100/min burst 20"),
    ("rate", "write limit: 100/min, or params: {capacity: 100, refill_rate: 1.67}"),
    ("quota", "write it as limit: 100/min"),
    ("penalty", "penalty is not enforced by this version: leave it out"),
];

/// The top level of a file.
pub(crate) static FILE: FieldTable = FieldTable {
    title: "a rule file",
    description: "Rate limits and the requests that they apply to. Rules are tried from top to bottom. Of the rules with \
            the same key, only the first match is used; rules with different keys all apply.",
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
            "Fallback limits: used when no rule matches, and inherited by rules without a limit.",
        ),
        field(
            "tiers",
            FieldForm::NamedMap(&FieldForm::Either(&FieldForm::Limit, &FieldForm::Fields(&TIER))),
            "{free: 100/min, pro: 1000/min}",
            "Named sets of limits, which replace the default for their clients.",
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
            "The tiers and limits of individual clients, by key.",
        ),
        field(
            "whitelist",
            FieldForm::Either(&FieldForm::Text, &FieldForm::List(&FieldForm::Text)),
            "[\"sk_internal_*\", 10.0.0.0/8]",
            "Clients that pass unchecked: key patterns, addresses and networks.",
        )
        .aliases(&["allow"])
        .joined(),
        field(
            "blacklist",
            FieldForm::Either(&FieldForm::Text, &FieldForm::List(&FieldForm::Text)),
            "[\"sk_revoked_*\", 192.0.2.7]",
            "Clients that are always denied: key patterns, addresses and networks. It takes precedence over the \
             whitelist.",
        )
        .aliases(&["deny"])
        .joined(),
        field(
            "paths",
            FieldForm::Fields(&PATHS),
            "{ignore_case: true}",
            "How paths are normalized before they are compared.",
        ),
        field(
            "ipv6_prefix",
            FieldForm::Integer(1, 128),
            "64",
            "How many leading bits of an IPv6 address identify a client. Default: 64.",
        ),
        field(
            "unknown_tier",
            FieldForm::Choice(&UNKNOWN_TIER_NAMES),
            "refuse",
            "What to do if a request states a tier that the file does not define: ignore the tier, or refuse (deny) \
             the request. Default: ignore.",
        ),
        MISSING,
        ON_STORE_FAILURE,
        CONSISTENCY,
        STORE_TIMEOUT,
    ],
    exclusive: &[],
    hints: &[
        ("rule", "write rules: and a list of rules"),
        ("version", "versions belong to single rules: leave it out here"),
        ("limit", "write default: {limit: 100/min}"),
        ("overrides", "put it in a rule, or write clients: {acme: {limit: 1000/min}}"),
    ],
};

/// A rule.
pub(crate) static RULE: FieldTable = FieldTable {
    title: "a rule",
    description: "Limits, and the requests that they apply to.",
    example: "{id: orders, limit: 100/min}",
    fields: &[
        field(
            "id",
            FieldForm::Text,
            "orders",
            "The unique name of the rule: up to 64 of A-Z a-z 0-9 . _ : / -",
        )
        .required(),
        field(
            "version",
            FieldForm::Integer(0, u64::MAX),
            "42",
            "A version number for your own use. It is kept and shown.",
        ),
        field(
            "description",
            FieldForm::Text,
            "orders are expensive",
            "What the rule is for. It is kept and shown.",
        ),
        field("enabled", FieldForm::Boolean, "false", "Whether the rule is used at all. Default: true."),
        field(
            "shadow",
            FieldForm::Boolean,
            "true",
            "Whether the rule only counts and records its decisions, without denying requests: to try it on real \
             traffic. Default: false.",
        ),
        field(
            "tier",
            FieldForm::Text,
            "pro",
            "The tier that the rule is for. With match.api_key, it also applies to matching keys whose tier is not \
             known.",
        ),
        field(
            "match",
            FieldForm::Fields(&MATCH),
            "{path: \"/users/{id}\", method: POST}",
            "Which requests the rule applies to. Default: all.",
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
            "Other limits for individual client keys.",
        )
        .aliases(&["overrides"]),
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

/// The conditions of a rule.
pub(crate) static MATCH: FieldTable = FieldTable {
    title: "a match",
    description: "Which requests a rule applies to. All conditions must hold.",
    example: "{path: /v1/orders}",
    fields: &[
        field(
            "api_key",
            FieldForm::Text,
            "\"sk_prod_*\"",
            "The client's key; * matches any characters.",
        )
        .aliases(&["api_key_pattern", "client_key"]),
        field(
            "path",
            FieldForm::Text,
            "\"/users/{id}\"",
            "The path: exact, with placeholders like {id} for a segment, or with wildcards: * within a segment, ** \
             across segments.",
        )
        .aliases(&["endpoint"]),
        field(
            "path_regex",
            FieldForm::Text,
            "\"^/v1/orders\"",
            "A regular expression that the path must match.",
        )
        .aliases(&["endpoint_regex"]),
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
            "The client's address or network, or one of several.",
        ),
        field(
            "attributes",
            FieldForm::Map(&FieldForm::OneOrList(&FieldForm::Text)),
            "{tenant: \"acme-*\"}",
            "Attributes that callers send, each with one pattern or several; * matches any characters.",
        ),
        field(
            "domain",
            FieldForm::Text,
            "edge",
            "The domain that a proxy like Envoy sends with its descriptors; * matches any characters.",
        ),
        field(
            "descriptor",
            FieldForm::Descriptor,
            "[generic_key: login, remote_address]",
            "The descriptor that a proxy sends: exactly these entries, in this order. A name alone matches any value; \
             in values, * matches any characters.",
        ),
    ],
    exclusive: &[&["path", "path_regex"]],
    hints: &[
        ("user", "if callers send it, write attributes: {user: …}"),
        ("tenant", "if callers send it, write attributes: {tenant: …}"),
        ("host", "if callers send it, write attributes: {host: …}"),
        ("header", "if callers send it, write attributes: {name: …}"),
        ("namespace", "write it as domain"),
        ("query", "the query is not part of the path: if callers send it, write attributes: {name: …}"),
    ],
};

/// A limit as numbers.
pub(crate) static PARAMS: FieldTable = FieldTable {
    title: "params",
    description: "A limit as numbers: capacity with refill_rate or window for the bucket algorithms, limit and window for \
            the window algorithms.",
    example: "{capacity: 100, refill_rate: 1.67}",
    fields: &[CAPACITY, REFILL_RATE, field("limit", AMOUNT, "100", "How many units per window."), WINDOW],
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
    description: "Other limits for one client key, optionally with an expiry time. Params that it leaves out are inherited \
            from the rule.",
    example: "{limit: 1000/min}",
    fields: &[
        CAPACITY,
        REFILL_RATE,
        field(
            "limit",
            FieldForm::Either(&AMOUNT, &FieldForm::Limit),
            "1000/min",
            "A quota, or an amount for the rule's window. Or unlimited.",
        ),
        WINDOW,
        LIMITS,
        ALGORITHM,
        VALID_UNTIL,
    ],
    exclusive: &[&["capacity", "limit", "limits"], &["refill_rate", "limits"], &["window", "limits"]],
    hints: &PARAMS_HINTS,
};

/// The fallback limits.
pub(crate) static DEFAULT: FieldTable = FieldTable {
    title: "the default",
    description: "Fallback limits: used when no rule matches, and inherited by rules without a limit.",
    example: "{limit: 100/min}",
    fields: &[LIMIT, LIMITS, PARAMS_FIELD, ALGORITHM, KEY, MISSING, ZONE, STARTS_FIELD, LARGE_LOG],
    exclusive: LIMIT_GROUP,
    hints: &LIMIT_HINTS,
};

/// A named set of limits.
pub(crate) static TIER: FieldTable = FieldTable {
    title: "a tier",
    description: "Limits that replace the default for the clients of this tier.",
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
            "Patterns of the client keys that belong to the tier, unless the request or a client record states \
             another.",
        ),
        ZONE,
        STARTS_FIELD,
        LARGE_LOG,
    ],
    exclusive: LIMIT_GROUP,
    hints: &LIMIT_HINTS,
};

/// The tier and limits of one client.
pub(crate) static CLIENT: FieldTable = FieldTable {
    title: "a client",
    description: "The tier of one client, its own limits, or both.",
    example: "{tier: pro}",
    fields: &[
        field("tier", FieldForm::Text, "pro", "The client's tier."),
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

/// How paths are normalized.
pub(crate) static PATHS: FieldTable = FieldTable {
    title: "paths",
    description: "Options for normalizing paths, beyond what is always done.",
    example: "{ignore_case: true}",
    fields: &[
        field(
            "escaped_slashes",
            FieldForm::Choice(&ESCAPED_SLASHES),
            "keep",
            "Whether %2F separates segments (split, as most frameworks do) or is part of one (keep). Default: split.",
        ),
        field(
            "ignore_case",
            FieldForm::Boolean,
            "true",
            "Whether upper and lower case are the same. Default: false.",
        ),
        field(
            "matrix_parameters",
            FieldForm::Choice(&MATRIX_PARAMETERS),
            "keep",
            "Whether a ; and the rest of its segment are removed (strip, as Tomcat and Spring do) or are part of the \
             path (keep). Default: strip.",
        ),
    ],
    exclusive: &[],
    hints: &[],
};

/// All tables, to find out where a misplaced field belongs, and to generate the schema.
pub(crate) static TABLES: [&FieldTable; 9] =
    [&FILE, &RULE, &MATCH, &PARAMS, &OVERRIDE, &DEFAULT, &TIER, &CLIENT, &PATHS];
