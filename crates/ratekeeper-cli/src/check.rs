//! `ratekeeper check`: asks a running server, and tells by its exit code.
//!
//! A script needs no more than that: 0 is allowed, 1 denied, 2 neither, because no server could be asked.

mod client;

use crate::print;
use anyhow::{Context, Result, bail, ensure};
use clap::builder::OsStringValueParser;
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueHint};
use client::{ServerReply, ServerTarget};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where a server listens unless it was told otherwise.
const NEAR: &str = "http://127.0.0.1:8080";
/// How the process ends after a denial.
const DENIED: u8 = 1;
/// How it ends if nobody could say.
const UNKNOWN: u8 = 2;
/// The most bytes of a file with a token, as for servers.
const MOST_TOKEN_BYTES: u64 = 4096;

const EXAMPLES: &str = "\
Examples:
  ratekeeper check alice
      may alice go on? It takes one unit, as any check does

  ratekeeper check alice --cost 5 --endpoint /orders --method POST
      may alice spend 5 on POST /orders?

  ratekeeper check alice --peek
      what would the answer be? It takes nothing

  ratekeeper check alice --json --server https://limits.example.com --ca ca.crt
      ask a server elsewhere, over TLS, and print its answer as it came

  ratekeeper check backup --cost 1 && ./backup.sh
      do it only if it is allowed

The exit code is 0 if it is allowed, 1 if it is denied, 2 if there was no answer.";

/// Ask a running server whether a client may go on
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES, after_help = "See --help for examples.")]
struct CheckArgs {
    /// Whom to ask for: what the server knows the client by
    #[arg(value_name = "KEY")]
    client_key: String,

    /// What the client wants: a path, without its host
    #[arg(long, value_name = "PATH")]
    endpoint: Option<String>,

    /// The HTTP method it wants it by, like POST
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,

    /// The address it comes from
    #[arg(long, value_name = "IP")]
    ip: Option<IpAddr>,

    /// The tier it belongs to
    #[arg(long, value_name = "TIER")]
    tier: Option<String>,

    /// Anything else that rules ask for; can be there several times
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = attribute)]
    attributes: Vec<(String, String)>,

    /// How many units it takes
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u32,

    /// Only look: take nothing
    #[arg(long)]
    peek: bool,

    /// Print the server's answer as it came, in JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    reach: ServerArgs,
}

/// How the server is reached.
#[derive(Args, Debug)]
#[command(next_help_heading = "Server")]
struct ServerArgs {
    /// The server to ask
    #[arg(long, value_name = "URL", env = "RATEKEEPER_SERVER", default_value = NEAR, value_hint = ValueHint::Url)]
    server: String,

    /// The authorities to trust, in PEM [default: those the system trusts]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    ca: Option<PathBuf>,

    /// The certificate to show to the server, in PEM
    #[arg(long, value_name = "FILE", requires = "key", value_hint = ValueHint::FilePath)]
    cert: Option<PathBuf>,

    /// The key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "cert", value_hint = ValueHint::FilePath)]
    key: Option<PathBuf>,

    /// A file with nothing in it but the token that the server asks for
    ///
    /// The token itself can also be in RATEKEEPER_API_TOKEN; there is no flag for it, because other users of the machine
    /// see the flags of a process.
    #[arg(long, value_name = "FILE", env = "RATEKEEPER_API_TOKEN_FILE", value_hint = ValueHint::FilePath)]
    #[arg(value_parser = OsStringValueParser::new())]
    api_token_file: Option<OsString>,
}

impl ServerArgs {
    /// The token to send, if there is one. An empty variable says nothing, as compose files leave them so.
    fn token(&self) -> Result<Option<String>> {
        let Some(path) = self.api_token_file.as_deref().filter(|path| !path.is_empty()) else {
            let token = std::env::var("RATEKEEPER_API_TOKEN").unwrap_or_default();
            return Ok(Some(token.trim().to_owned()).filter(|token| !token.is_empty()));
        };
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(MOST_TOKEN_BYTES).read_to_string(&mut text));
        read.with_context(|| format!("cannot read the token in {}", Path::new(path).display()))?;
        Ok(Some(text.trim().to_owned()))
    }
}

/// The subcommand and its arguments.
pub(crate) fn command() -> Command {
    CheckArgs::augment_args(Command::new("check"))
}

/// Asks, prints the answer, and tells how the process ends.
pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let check = CheckArgs::from_arg_matches(matches).expect("the arguments are those of this command");
    match check.run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => DENIED.into(),
        Err(error) => crate::fail(&error, UNKNOWN),
    }
}

impl CheckArgs {
    /// Whether it is allowed.
    fn run(&self) -> Result<bool> {
        let server = ServerTarget::new(&self.reach)?;
        let question = serde_json::to_vec(&self.question()?)?;
        // However the server tells others of a denial, we read it from a decision.
        let path = if self.peek { "/v1/peek?deny_status=200" } else { "/v1/check?deny_status=200" };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot start the network")?;
        let reply = runtime.block_on(server.ask(path, question));
        // A name server that was given up on may still be waited for, but not by us.
        runtime.shutdown_background();
        let reply = reply?;
        let answer =
            DecisionJson::read(&reply).with_context(|| format!("cannot use the answer of {server}"))?;
        if self.json {
            print(&[reply.body.trim_ascii_end(), b"\n"].concat())?;
        } else {
            print(format!("{}\n", answer.tell(&self.client_key, self.peek)).as_bytes())?;
        }
        Ok(answer.allowed)
    }

    fn question(&self) -> Result<CheckJson<'_>> {
        let mut attributes = BTreeMap::new();
        for (name, value) in &self.attributes {
            let before = attributes.insert(name.as_str(), value.as_str());
            ensure!(before.is_none(), "the attribute {name} is there twice: keep one of them");
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

fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write a name and a value, like country=NL".to_owned()),
    }
}

/// A check on the wire.
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

/// What of a decision on the wire is told. There may be more in it.
#[derive(Debug, Deserialize)]
struct DecisionJson {
    allowed: bool,
    /// Below zero if the server could not count and let it pass.
    remaining: Option<i64>,
    /// In Unix seconds.
    reset_at: Option<i64>,
    /// In seconds.
    retry_after: Option<u64>,
    rule: Option<serde_json::Value>,
    limit: Option<serde_json::Value>,
}

/// An error on the wire.
#[derive(Deserialize)]
struct ErrorJson {
    error: ErrorDetailJson,
}

#[derive(Deserialize)]
struct ErrorDetailJson {
    message: String,
}

impl DecisionJson {
    /// Whatever its status, an answer that says whether it is allowed is a decision: a denial may have one of its own.
    fn read(reply: &ServerReply) -> Result<DecisionJson> {
        if let Ok(answer) = serde_json::from_slice(&reply.body) {
            return Ok(answer);
        }
        match (reply.status, serde_json::from_slice::<ErrorJson>(&reply.body)) {
            (401, _) => bail!("it asks for a token: name a file with it, with --api-token-file FILE"),
            (429, _) => Ok(DecisionJson {
                allowed: false,
                remaining: None,
                reset_at: None,
                retry_after: reply.retry_after,
                rule: None,
                limit: None,
            }),
            (status, Ok(body)) => bail!("it answers with status {status}: {}", shown(&body.error.message)),
            (200, Err(_)) => bail!("it is no decision: is this a Ratekeeper?"),
            (status, Err(_)) => bail!("it answers with status {status}: is this a Ratekeeper?"),
        }
    }

    /// The answer in one line.
    fn tell(&self, key: &str, is_peek: bool) -> String {
        let mut told = match (self.allowed, is_peek) {
            (true, false) => "allowed",
            (true, true) => "would be allowed",
            (false, false) => "denied",
            (false, true) => "would be denied",
        }
        .to_owned();
        let _ = write!(told, ": {}", shown(key));
        let _ = match (self.allowed, self.retry_after) {
            (false, Some(seconds)) => write!(told, " can come back in {seconds} s"),
            (false, None) => write!(told, " asks for what is never allowed"),
            (true, _) => write!(told, " may go on"),
        };
        let _ = match self.remaining {
            Some(left @ 0..) => write!(told, ", {left} left"),
            Some(_) => write!(told, ", uncounted because the server's store is away"),
            None => Ok(()),
        };
        let reset_at = self.reset_at.filter(|seconds| *seconds > 0).map(jiff::Timestamp::from_second);
        if let Some(Ok(reset_at)) = reset_at {
            let _ = write!(told, ", all back at {reset_at}");
        }
        for (name, value) in [("rule", &self.rule), ("limit", &self.limit)] {
            let _ = match value {
                Some(serde_json::Value::String(text)) => write!(told, ", {name} {}", shown(text)),
                Some(serde_json::Value::Number(number)) => write!(told, ", {name} {number}"),
                _ => Ok(()),
            };
        }
        told
    }
}

/// Text from elsewhere, without what could move a terminal's cursor, and not too much of it.
fn shown(text: &str) -> String {
    text.chars().take(500).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
