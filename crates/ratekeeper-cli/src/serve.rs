//! `ratekeeper serve`: the gate behind all its doors.

mod any_store;
mod banner;
mod descriptors;
mod output;

use crate::settings::{
    ClientAddress, DenyStatus, Environment, HeaderProfile, Listen, ListenerChoice, LogFormat, Reset,
    Resolved, Settings,
};
use crate::signals::{Signal, Signals};
use any_store::AnyStore;
use anyhow::{Context, Result, anyhow, bail};
use banner::{Banner, ListenAddresses};
use clap::{ArgMatches, Command};
use output::Output;
use ratekeeper::rules::RuleSet;
use ratekeeper::{Algorithm, Clock, Limit, RuleLimiter, SystemClock};
use ratekeeper_server::rule_source::{self, RuleSource};
use ratekeeper_server::tls::ListenerTls;
use ratekeeper_server::{
    AddressField, ApiOptions, BoundSocket, FieldProfile, ForwardOptions, ResetForm, ServerSetup, StatusCode,
    Token, TrustedProxies,
};
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

const EXAMPLES: &str = "\
Examples:
  ratekeeper serve
      100 requests a minute for each client key, on 127.0.0.1:8080

  ratekeeper serve --rules limits.yaml
      the rules in a file, such as
          rules:
            - id: login
              match: {path: /login, method: POST}
              key: [ip]
              limit: 5/min
            - id: orders
              match: {path: '/orders/{id}'}
              limits: [10/s, 1000/h]
          default: {limit: 100/min burst 20}
      The file is followed: what changes in it is in force within a second.
      `ratekeeper rules --help` tells how to check and explain one.

  ratekeeper serve --http 0.0.0.0:9000
      for other machines too, on port 9000

  ratekeeper serve --config ratekeeper.yaml
      all settings from a file; `ratekeeper serve --print-config > ratekeeper.yaml` makes one

  curl -d '{\"client_key\":\"alice\",\"endpoint\":\"/orders/7\"}' \\
      http://127.0.0.1:8080/check
      may alice go on? The answer is
          {\"allowed\":true,\"remaining\":95,\"reset_at\":1700000003,\"retry_after\":null}
      reset_at is when alice has everything back, in Unix seconds. retry_after is how many
      seconds to wait after a denial; null if the request may go on, or asks for more than
      the limit ever holds.

SIGHUP has the rules and the certificates read again. Ctrl-C or SIGTERM finishes what has
begun and stops; a second one stops at once.";

/// The subcommand and its arguments.
pub(crate) fn command() -> Command {
    let command = Command::new("serve").about("Answer over HTTP, gRPC and RESP: may this client go on?");
    let command = command.after_long_help(EXAMPLES).after_help("See --help for examples.");
    Settings::add_to(command)
}

/// How long the end of the process waits for the log to be written.
const LOG_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the start waits for the greeting to be written.
const GREETING_TIMEOUT: Duration = Duration::from_millis(100);

/// Serves, or only says what it would serve with.
pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let begun = Settings::resolve(matches, &Environment::of_this_process()).map_err(Into::into);
    let resolved = match begun.and_then(|resolved| print_config(matches, resolved)) {
        Ok(Some(resolved)) => resolved,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => return crate::fail(&error, crate::FAILED),
    };
    let log = match log_to_stderr(&resolved.settings) {
        Ok(log) => log,
        Err(error) => return crate::fail(&error, crate::FAILED),
    };
    warn(&resolved);
    let ended = run_server(resolved.settings, log.dropped());
    if let Err(error) = &ended {
        log.push(format!("error: {error:#}\n").as_bytes());
    }
    log.close(LOG_FLUSH_TIMEOUT);
    if ended.is_ok() { ExitCode::SUCCESS } else { crate::FAILED.into() }
}

/// Prints the settings if that is all that was asked for, or passes them on.
fn print_config(matches: &ArgMatches, resolved: Resolved) -> Result<Option<Resolved>> {
    if !matches.get_flag("print-config") {
        return Ok(Some(resolved));
    }
    for warning in &resolved.warnings {
        crate::complain(format_args!("warning: {warning}"));
    }
    crate::print(resolved.print().as_bytes()).map(|()| None)
}

fn run_server(settings: Settings, dropped_log_lines: Arc<AtomicU64>) -> Result<()> {
    descriptors::raise_limit();
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let runtime = threads.worker_threads(settings.workers).enable_all().build();
    runtime.context("cannot start threads")?.block_on(ServeArgs { settings, dropped_log_lines }.run())
}

/// Writes events to stderr from a thread of its own, so that a log that can't be written blocks no request.
fn log_to_stderr(settings: &Settings) -> Result<Output> {
    let report =
        |lines: u64| tracing::warn!(lines, "log lines dropped: the log could not be written in time");
    let output =
        Output::start("log", output::stderr(), report).context("cannot start a thread for the log")?;
    let log = tracing_subscriber::fmt().with_env_filter(settings.log.to_filter()).log_internal_errors(false);
    let log = log.with_writer(output.clone());
    match settings.log_format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    // The standard hook writes to stderr itself, and would block with it.
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(output)
}

/// Says what is probably not as it was meant.
fn warn(resolved: &Resolved) {
    for warning in &resolved.warnings {
        tracing::warn!("{warning}");
    }
}

struct ServeArgs {
    settings: Settings,
    dropped_log_lines: Arc<AtomicU64>,
}

impl ServeArgs {
    /// Serves until a signal comes, and then to the end of what has begun.
    async fn run(self) -> Result<()> {
        let settings = &self.settings;
        let clock = SystemClock::new();
        let feed = RuleSource::new(settings.rules.clone(), settings.on_store_failure, clock.now());
        let rules = self.rules(&clock)?;
        let store = AnyStore::open(settings).await?;
        let mut signals = Signals::catch().context("cannot catch signals")?;
        let (setup, greeting) = self.set_up(&rules, feed, store.words(settings)).await?;
        let gate = RuleLimiter::new(rules, store, clock);
        if let Some(quota) = settings.emergency_limit {
            let limit = Limit::new(Algorithm::TokenBucket, quota).context("emergency_limit can't be kept")?;
            gate.emergency().switch_on(limit);
            tracing::warn!(%quota, "the emergency limit is on, for every address");
        }
        // With nobody to read it, there is still somebody to serve.
        let stdout = Output::start("greeting", output::stdout(), |_| ()).context("cannot start a thread")?;
        stdout.push(greeting.to_string().as_bytes());
        stdout.close(GREETING_TIMEOUT);

        let (stop, stopped) = oneshot::channel::<()>();
        let (reload, reloads) = mpsc::channel(1);
        let stopped = async { stopped.await.unwrap_or(()) };
        let mut serving = tokio::spawn(ratekeeper_server::serve(gate, setup, reloads, stopped));
        loop {
            tokio::select! {
                ended = &mut serving => return ended.context("the server broke down"),
                signal = signals.next() => match signal {
                    Signal::Stop => break,
                    // If there is no room, somebody has asked already and is not served yet.
                    Signal::Reload => drop(reload.try_send(())),
                },
            }
        }
        tracing::info!("stopping: no one else is let in, requests that have begun are finished");
        drop(stop);
        tokio::select! {
            ended = serving => ended.context("the server broke down"),
            () = signals.stop() => bail!("stopped at once by a second signal"),
        }
    }

    fn rules(&self, clock: &SystemClock) -> Result<RuleSet> {
        match &self.settings.rules {
            Some(path) => Ok(rule_source::load(path, self.settings.on_store_failure, clock.now())?),
            None => Ok(rule_source::built_in(self.settings.on_store_failure)),
        }
    }

    async fn set_up(
        &self,
        rules: &RuleSet,
        feed: RuleSource,
        store: String,
    ) -> Result<(ServerSetup, Banner)> {
        let settings = &self.settings;
        let (token, fresh) = self.admin_token()?;
        let tls = match settings.tls_files() {
            Some(files) => Some(Arc::new(ListenerTls::load(&files)?)),
            None => None,
        };
        let http = self.door(&settings.http, ListenerChoice::Http, tls.as_ref()).await?;
        let grpc = self.door(&settings.grpc, ListenerChoice::Grpc, tls.as_ref()).await?;
        let resp = self.door(&settings.resp, ListenerChoice::Resp, tls.as_ref()).await?;
        let admin = self.door(&settings.admin, ListenerChoice::Admin, tls.as_ref()).await?;
        if [&http, &grpc, &resp, &admin].into_iter().all(Option::is_none) {
            bail!(
                "http, grpc, resp and admin are all off, so there is nothing to serve: leave one of them on"
            );
        }
        let token_for_api = match &settings.api_token_file {
            Some(path) => Some(Token::read(path)?),
            None => settings.api_token.as_ref().map(|secret| Token::parse(secret.expose())).transpose()?,
        };
        for (address, _) in [&http, &grpc, &resp].into_iter().flatten() {
            if !address.ip().is_loopback() && token_for_api.is_none() {
                tracing::warn!(
                    "whoever reaches {address} may use it all: keep strangers out, or set api_token_file"
                );
            }
        }
        let place = |door: &Option<(SocketAddr, BoundSocket)>| {
            door.as_ref().map(|(address, door)| (*address, door.tls.is_some()))
        };
        let places = ListenAddresses {
            http: place(&http),
            grpc: place(&grpc),
            resp: place(&resp),
            admin: place(&admin),
        };
        let greeting = Banner::new(settings, rules, places, store, fresh);
        let setup = ServerSetup {
            http: http.map(|(_, door)| door),
            grpc: grpc.map(|(_, door)| door),
            resp: resp.map(|(_, door)| door),
            admin: admin.map(|(_, door)| (door, token)),
            api: ApiOptions {
                fields: fields(settings),
                deny_status: match settings.deny_status {
                    DenyStatus::Ok => StatusCode::OK,
                    DenyStatus::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
                    DenyStatus::Forbidden => StatusCode::FORBIDDEN,
                },
                max_batch: settings.max_batch as usize,
                max_body: usize::try_from(settings.max_body.0).unwrap_or(usize::MAX),
                token: token_for_api,
                forward: forward(settings),
                allowed_origins: settings.allowed_origins.0.clone(),
            },
            feed,
            denials_per_second: settings.denial_log,
            max_connections: settings.max_connections as usize,
            max_open_files: descriptors::limit(),
            max_unfinished_bodies: usize::try_from(settings.max_unfinished_bodies.0).unwrap_or(usize::MAX),
            drain_delay: settings.drain_delay,
            drain_timeout: settings.drain_timeout,
            dropped_log_lines: Arc::clone(&self.dropped_log_lines),
        };
        Ok((setup, greeting))
    }

    /// The token of the admin port; if it was made just now, also in clear.
    fn admin_token(&self) -> Result<(Token, Option<String>)> {
        match (&self.settings.admin_token_file, &self.settings.admin_token) {
            (Some(path), _) => Ok((Token::read(path)?, None)),
            (None, Some(secret)) => Ok((Token::parse(secret.expose())?, None)),
            (None, None) => {
                let (token, clear) = Token::generate()?;
                Ok((token, Some(clear)))
            }
        }
    }

    async fn door(
        &self,
        listen: &Listen,
        listener: ListenerChoice,
        tls: Option<&Arc<ListenerTls>>,
    ) -> Result<Option<(SocketAddr, BoundSocket)>> {
        let Listen::At(address) = listen else { return Ok(None) };
        let (flag, other) = match listener {
            ListenerChoice::Http => ("--http", "127.0.0.1:8090"),
            ListenerChoice::Grpc => ("--grpc", "127.0.0.1:8091"),
            ListenerChoice::Resp => ("--resp", "127.0.0.1:6390"),
            ListenerChoice::Admin => ("--admin", "127.0.0.1:9091"),
        };
        let socket = TcpListener::bind(address).await.map_err(|error| {
            let advice = match error.kind() {
                io::ErrorKind::AddrInUse => {
                    format!(
                        "something else listens there: stop it, or choose another port, like {flag} {other}"
                    )
                }
                io::ErrorKind::PermissionDenied => {
                    "the system does not let you: choose a port above 1023".to_owned()
                }
                io::ErrorKind::AddrNotAvailable => {
                    "this machine has no such address: use 127.0.0.1, or 0.0.0.0 for all it has".to_owned()
                }
                _ => format!("write an address and a port, like {other}"),
            };
            anyhow!(error).context(format!("cannot listen on {address}: {advice}"))
        })?;
        let tls = tls.filter(|_| self.settings.tls_on.contains(&listener)).cloned();
        Ok(Some((socket.local_addr()?, BoundSocket { listener: socket, tls })))
    }
}

fn forward(settings: &Settings) -> ForwardOptions {
    let field = match settings.client_address {
        ClientAddress::XForwardedFor => AddressField::XForwardedFor,
        ClientAddress::XRealIp => AddressField::XRealIp,
        ClientAddress::Forwarded => AddressField::Forwarded,
    };
    let proxies = TrustedProxies { networks: settings.trusted_proxies.0.clone(), field };
    ForwardOptions { keys: settings.forward_key.clone(), proxies }
}

fn fields(settings: &Settings) -> FieldProfile {
    let has = |profile| settings.headers.0.contains(&profile);
    let reset = match settings.reset {
        Reset::Epoch => ResetForm::Epoch,
        Reset::Delta => ResetForm::Delta,
    };
    FieldProfile {
        legacy: has(HeaderProfile::XRateLimit).then_some(reset),
        ietf: has(HeaderProfile::Ietf),
        draft_7: has(HeaderProfile::Draft7),
        draft_6: has(HeaderProfile::Draft6),
    }
}
