//! `ratekeeper check`: sends a check to a running server and reports the decision by its exit code.
//!
//! Scripts need only the exit code: 0 is allowed, 1 is denied, and 2 means that there was no decision.

mod client;

use crate::print_to_stdout;
use anyhow::{Context, Result, bail, ensure};
use clap::builder::OsStringValueParser;
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueHint};
use client::{ServerReply, ServerTarget};
use ratekeeper_server::file;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The default address of a server.
const DEFAULT_SERVER: &str = "http://127.0.0.1:8080";
/// The exit code of a denial.
const EXIT_DENIED: u8 = 1;
/// The exit code if there was no decision.
const EXIT_ERROR: u8 = 2;
/// The maximum size of a token file in bytes, as in the server.
const MAX_TOKEN_BYTES: u64 = 4096;

const EXAMPLES: &str = "\
Examples:
  ratekeeper check alice
      is alice allowed? Takes one unit, like any check

  ratekeeper check alice --cost 5 --endpoint /orders --method POST
      is alice allowed to spend 5 units on POST /orders?

  ratekeeper check alice --peek
      what would the decision be? Takes nothing

  ratekeeper check alice --json --server https://limits.example.com --ca ca.crt
      check with a remote server over TLS, and print its response unchanged

  ratekeeper check backup --cost 1 && ./backup.sh
      run the backup only if it is allowed

The exit code is 0 if allowed, 1 if denied, 2 if there was no decision.";

/// Ask a running server whether a request is allowed
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES, after_help = "See --help for examples.")]
struct CheckArgs {
    /// The client key
    #[arg(value_name = "KEY")]
    client_key: String,

    /// The request path, without the host
    #[arg(long, value_name = "PATH")]
    endpoint: Option<String>,

    /// The HTTP method, like POST
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,

    /// The client's IP address
    #[arg(long, value_name = "IP")]
    ip: Option<IpAddr>,

    /// The client's tier
    #[arg(long, value_name = "TIER")]
    tier: Option<String>,

    /// Another attribute that rules use; may be repeated
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = attribute)]
    attributes: Vec<(String, String)>,

    /// The number of units to take
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u32,

    /// Only peek: take nothing
    #[arg(long)]
    peek: bool,

    /// Print the server's response unchanged, as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server_args: ServerArgs,
}

/// How to reach the server.
#[derive(Args, Debug)]
#[command(next_help_heading = "Server")]
struct ServerArgs {
    /// The URL of the server
    #[arg(long, value_name = "URL", env = "RATEKEEPER_SERVER", default_value = DEFAULT_SERVER, value_hint = ValueHint::Url)]
    server: String,

    /// The CA certificates to trust, in PEM [default: those of the system]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    ca: Option<PathBuf>,

    /// The client certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "key", value_hint = ValueHint::FilePath)]
    cert: Option<PathBuf>,

    /// The private key of the client certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "cert", value_hint = ValueHint::FilePath)]
    key: Option<PathBuf>,

    /// A file that contains only the server's API token
    ///
    /// The token can also be in RATEKEEPER_API_TOKEN. There is no flag for it, because other users of the machine can
    /// see the flags of a process.
    #[arg(long, value_name = "FILE", env = "RATEKEEPER_API_TOKEN_FILE", value_hint = ValueHint::FilePath)]
    #[arg(value_parser = OsStringValueParser::new())]
    api_token_file: Option<OsString>,
}

impl ServerArgs {
    /// The token to send. An empty variable counts as unset, since compose files leave variables empty.
    fn token(&self) -> Result<Option<String>> {
        let Some(path) = self.api_token_file.as_deref().filter(|path| !path.is_empty()) else {
            let token = std::env::var("RATEKEEPER_API_TOKEN").unwrap_or_default();
            return Ok(Some(token.trim().to_owned()).filter(|token| !token.is_empty()));
        };
        let path = Path::new(path);
        let context = || format!("cannot read the token in {}", path.display());
        let text = String::from_utf8(file::read(path, MAX_TOKEN_BYTES).with_context(context)?);
        Ok(Some(text.with_context(context)?.trim().to_owned()))
    }
}

/// The subcommand and its arguments.
pub(crate) fn command() -> Command {
    CheckArgs::augment_args(Command::new("check"))
}

/// Sends the check, prints the decision, and returns the exit code.
pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let check = CheckArgs::from_arg_matches(matches).expect("the arguments were parsed by this command");
    match check.run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => EXIT_DENIED.into(),
        Err(error) => crate::fail(&error, EXIT_ERROR),
    }
}

impl CheckArgs {
    /// Sends the check and returns whether it is allowed.
    fn run(&self) -> Result<bool> {
        let server = ServerTarget::new(&self.server_args)?;
        let body = serde_json::to_vec(&self.request_body()?)?;
        // A denial is read from the body, whatever status the server is configured to use for other clients.
        let path = if self.peek { "/v1/peek?deny_status=200" } else { "/v1/check?deny_status=200" };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start the runtime")?;
        let reply = runtime.block_on(server.post(path, body));
        // A DNS lookup that timed out may still be running; don't wait for it.
        runtime.shutdown_background();
        let reply = reply?;
        let decision = DecisionJson::parse(&reply).with_context(|| format!("no decision from {server}"))?;
        if self.json {
            print_to_stdout(&[reply.body.trim_ascii_end(), b"\n"].concat())?;
        } else {
            print_to_stdout(format!("{}\n", decision.describe(&self.client_key, self.peek)).as_bytes())?;
        }
        Ok(decision.allowed)
    }

    fn request_body(&self) -> Result<CheckJson<'_>> {
        let mut attributes = BTreeMap::new();
        for (name, value) in &self.attributes {
            let before = attributes.insert(name.as_str(), value.as_str());
            ensure!(before.is_none(), "duplicate attribute {name}: keep one of them");
        }
        Ok(CheckJson {
            client_key: &self.client_key,
            endpoint: self.endpoint.as_deref(),
            method: self.method.as_deref(),
            ip: self.ip,
            tier: self.tier.as_deref(),
            attributes,
            cost: self.cost,
        })
    }
}

/// Parses `NAME=VALUE`.
pub(crate) fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write a name and a value: write it like tenant=acme".to_owned()),
    }
}

/// The body of a check request.
#[derive(Serialize)]
struct CheckJson<'a> {
    client_key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<&'a str, &'a str>,
    cost: u32,
}

/// The fields of a decision that are printed. A response may have more.
#[derive(Debug, Deserialize)]
struct DecisionJson {
    allowed: bool,
    /// Negative if the server's store failed and the rule fails open.
    remaining: Option<i64>,
    /// In Unix seconds.
    reset_at: Option<i64>,
    /// In seconds.
    retry_after: Option<u64>,
    rule: Option<serde_json::Value>,
    limit: Option<serde_json::Value>,
}

/// An error response.
#[derive(Deserialize)]
struct ErrorJson {
    error: ErrorDetailJson,
}

#[derive(Deserialize)]
struct ErrorDetailJson {
    message: String,
}

impl DecisionJson {
    /// Parses a response. A body with a decision counts whatever the status: denials may have a configured one.
    fn parse(reply: &ServerReply) -> Result<DecisionJson> {
        if let Ok(decision) = serde_json::from_slice(&reply.body) {
            return Ok(decision);
        }
        match (reply.status, serde_json::from_slice::<ErrorJson>(&reply.body)) {
            (401, _) => {
                bail!("the server requires a token: pass a file that contains it with --api-token-file FILE")
            }
            (429, _) => Ok(DecisionJson {
                allowed: false,
                remaining: None,
                reset_at: None,
                retry_after: reply.retry_after,
                rule: None,
                limit: None,
            }),
            (status, Ok(body)) => bail!("status {status}: {}", sanitize(&body.error.message)),
            (200, Err(_)) => bail!("the response is not a decision: is this a Ratekeeper server?"),
            (status, Err(_)) => bail!("status {status}: is this a Ratekeeper server?"),
        }
    }

    /// The decision in one line.
    fn describe(&self, key: &str, is_peek: bool) -> String {
        let mut line = match (self.allowed, is_peek) {
            (true, false) => "allowed",
            (true, true) => "would be allowed",
            (false, false) => "denied",
            (false, true) => "would be denied",
        }
        .to_owned();
        let _ = write!(line, ": {}", sanitize(key));
        let _ = match (self.allowed, self.retry_after) {
            (false, Some(seconds)) => write!(line, ", retry in {seconds} s"),
            (false, None) => write!(line, ", never allowed"),
            (true, _) => Ok(()),
        };
        let _ = match self.remaining {
            Some(remaining @ 0..) => write!(line, ", {remaining} remaining"),
            Some(_) => write!(line, ", not counted: the server's store is unreachable"),
            None => Ok(()),
        };
        let reset_at = self.reset_at.filter(|seconds| *seconds > 0).map(jiff::Timestamp::from_second);
        if let Some(Ok(reset_at)) = reset_at {
            let _ = write!(line, ", resets at {reset_at}");
        }
        for (name, value) in [("rule", &self.rule), ("limit", &self.limit)] {
            let _ = match value {
                Some(serde_json::Value::String(text)) => write!(line, ", {name} {}", sanitize(text)),
                Some(serde_json::Value::Number(number)) => write!(line, ", {name} {number}"),
                _ => Ok(()),
            };
        }
        line
    }
}

/// Text from the server for a terminal: control characters are replaced, and it is cut to 500 characters.
fn sanitize(text: &str) -> String {
    text.chars().take(500).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
