//! `ratekeeper serve`: runs the server with all its listeners.

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
    AddressHeader, ApiOptions, BoundSocket, ForwardOptions, RateLimitHeaders, ResetForm, ServerSetup,
    StatusCode, Token, TrustedProxies,
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
      100 requests per minute for each client key, on 127.0.0.1:8080

  ratekeeper serve --rules limits.yaml
      rules from a file, such as
          rules:
            - id: login
              match: {path: /login, method: POST}
              key: [ip]
              limit: 5/min
            - id: orders
              match: {path: '/orders/{id}'}
              limits: [10/s, 1000/h]
          default: {limit: 100/min burst 20}
      The file is watched: changes take effect within a second.
      `ratekeeper rules --help` shows how to check and explain rule files.

  ratekeeper serve --http 0.0.0.0:9000
      accept connections from other machines, on port 9000

  ratekeeper serve --config ratekeeper.yaml
      settings from a file; `ratekeeper serve --print-config > ratekeeper.yaml` writes one

  curl -d '{\"client_key\":\"alice\",\"endpoint\":\"/orders/7\"}' \\
      http://127.0.0.1:8080/check
      is alice allowed? The response is
          {\"allowed\":true,\"remaining\":95,\"reset_at\":1700000003,\"retry_after\":null}
      reset_at is when alice's full quota is available again, in Unix seconds. retry_after is
      the number of seconds to wait after a denial; null if the request is allowed, or costs
      more than the limit ever allows.

SIGHUP reloads the rules and the certificates. Ctrl-C or SIGTERM finishes requests in flight
and stops; a second one stops immediately.";

/// The subcommand and its arguments.
pub(crate) fn command() -> Command {
    let command = Command::new("serve").about("Run the server: answer checks over HTTP, gRPC and RESP");
    let command = command.after_long_help(EXAMPLES).after_help("See --help for examples.");
    Settings::add_to(command)
}

/// How long shutdown waits for the log to be written.
const LOG_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// How long start-up waits for the banner to be written.
const BANNER_TIMEOUT: Duration = Duration::from_millis(100);

/// Runs the server, or only prints its settings.
pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    let settings = Settings::resolve(matches, &Environment::current());
    let resolved = match settings.and_then(|resolved| print_config(matches, resolved)) {
        Ok(Some(resolved)) => resolved,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => return crate::fail(&error, crate::EXIT_FAILURE),
    };
    let log = match log_to_stderr(&resolved.settings) {
        Ok(log) => log,
        Err(error) => return crate::fail(&error, crate::EXIT_FAILURE),
    };
    log_warnings(&resolved);
    let outcome = run_server(resolved.settings, log.dropped());
    if let Err(error) = &outcome {
        log.push(format!("error: {error:#}\n").as_bytes());
    }
    log.close(LOG_FLUSH_TIMEOUT);
    if outcome.is_ok() { ExitCode::SUCCESS } else { crate::EXIT_FAILURE.into() }
}

/// With `--print-config`, prints the settings and returns `None`; otherwise passes them on.
fn print_config(matches: &ArgMatches, resolved: Resolved) -> Result<Option<Resolved>> {
    if !matches.get_flag("print-config") {
        return Ok(Some(resolved));
    }
    for warning in &resolved.warnings {
        crate::print_to_stderr(format_args!("warning: {warning}"));
    }
    crate::print_to_stdout(resolved.print().as_bytes()).map(|()| None)
}

fn run_server(settings: Settings, dropped_log_lines: Arc<AtomicU64>) -> Result<()> {
    descriptors::raise_limit();
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let runtime = threads.worker_threads(settings.workers).enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(ServeArgs { settings, dropped_log_lines }.run())
}

/// Logs to stderr from a separate thread, so that a blocked stderr blocks no request.
fn log_to_stderr(settings: &Settings) -> Result<Output> {
    let report = |lines: u64| tracing::warn!(lines, "log lines dropped: stderr was blocked or failed");
    let output = Output::start("log", output::stderr(), report).context("cannot start the log thread")?;
    let log = tracing_subscriber::fmt().with_env_filter(settings.log.to_filter()).log_internal_errors(false);
    let log = log.with_writer(output.clone());
    match settings.log_format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    // The default hook writes to stderr directly, and would block with it.
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(output)
}

/// Logs the warnings about the settings.
fn log_warnings(resolved: &Resolved) {
    for warning in &resolved.warnings {
        tracing::warn!("{warning}");
    }
}

struct ServeArgs {
    settings: Settings,
    dropped_log_lines: Arc<AtomicU64>,
}

impl ServeArgs {
    /// Serves until a stop signal, then drains.
    async fn run(self) -> Result<()> {
        let settings = &self.settings;
        let clock = SystemClock::new();
        let rule_source = RuleSource::new(settings.rules.clone(), settings.on_store_failure, clock.now());
        let rules = self.load_rules(&clock)?;
        let store = AnyStore::open(settings).await?;
        let mut signals = Signals::catch().context("cannot install signal handlers")?;
        let (setup, banner) = self.build_setup(&rules, rule_source, store.describe(settings)).await?;
        let limiter = RuleLimiter::new(rules, store, clock);
        if let Some(quota) = settings.emergency_limit {
            let limit = Limit::new(Algorithm::TokenBucket, quota).context("invalid emergency_limit")?;
            limiter.emergency().switch_on(limit);
            tracing::warn!(%quota, "emergency limit enabled for every client address");
        }
        // A stdout that is not read must not keep the server from serving.
        let stdout =
            Output::start("banner", output::stdout(), |_| ()).context("cannot start the banner thread")?;
        stdout.push(banner.to_string().as_bytes());
        stdout.close(BANNER_TIMEOUT);

        let (stop, stopped) = oneshot::channel::<()>();
        let (reload, reloads) = mpsc::channel(1);
        let stopped = async { stopped.await.unwrap_or(()) };
        let mut serving = tokio::spawn(ratekeeper_server::serve(limiter, setup, reloads, stopped));
        loop {
            tokio::select! {
                outcome = &mut serving => return outcome.context("the server task failed"),
                signal = signals.next() => match signal {
                    Signal::Stop => break,
                    // If the channel is full, a reload is pending already.
                    Signal::Reload => drop(reload.try_send(())),
                },
            }
        }
        tracing::info!("shutting down: finishing requests in flight");
        drop(stop);
        tokio::select! {
            outcome = serving => outcome.context("the server task failed"),
            () = signals.stop() => bail!("stopped by a second signal before requests in flight were finished"),
        }
    }

    fn load_rules(&self, clock: &SystemClock) -> Result<RuleSet> {
        match &self.settings.rules {
            Some(path) => Ok(rule_source::load(path, self.settings.on_store_failure, clock.now())?),
            None => Ok(rule_source::built_in(self.settings.on_store_failure)),
        }
    }

    async fn build_setup(
        &self,
        rules: &RuleSet,
        rule_source: RuleSource,
        store: String,
    ) -> Result<(ServerSetup, Banner)> {
        let settings = &self.settings;
        let (token, generated_token) = self.admin_token()?;
        let tls = match settings.tls_files() {
            Some(files) => Some(Arc::new(ListenerTls::load(&files)?)),
            None => None,
        };
        let http = self.bind(&settings.http, ListenerChoice::Http, tls.as_ref()).await?;
        let grpc = self.bind(&settings.grpc, ListenerChoice::Grpc, tls.as_ref()).await?;
        let resp = self.bind(&settings.resp, ListenerChoice::Resp, tls.as_ref()).await?;
        let admin = self.bind(&settings.admin, ListenerChoice::Admin, tls.as_ref()).await?;
        if [&http, &grpc, &resp, &admin].into_iter().all(Option::is_none) {
            bail!("http, grpc, resp and admin are all off: enable at least one listener");
        }
        let api_token = match &settings.api_token_file {
            Some(path) => Some(Token::read(path)?),
            None => settings.api_token.as_ref().map(|secret| Token::parse(secret.expose())).transpose()?,
        };
        for (address, _) in [&http, &grpc, &resp].into_iter().flatten() {
            if !address.ip().is_loopback() && api_token.is_none() {
                tracing::warn!(
                    "listener {address} requires no token: restrict access to it, or set api_token_file"
                );
            }
        }
        let address_of = |bound: &Option<(SocketAddr, BoundSocket)>| {
            bound.as_ref().map(|(address, socket)| (*address, socket.tls.is_some()))
        };
        let addresses = ListenAddresses {
            http: address_of(&http),
            grpc: address_of(&grpc),
            resp: address_of(&resp),
            admin: address_of(&admin),
        };
        let banner = Banner::new(settings, rules, addresses, store, generated_token);
        let setup = ServerSetup {
            http: http.map(|(_, socket)| socket),
            grpc: grpc.map(|(_, socket)| socket),
            resp: resp.map(|(_, socket)| socket),
            admin: admin.map(|(_, socket)| (socket, token)),
            api: ApiOptions {
                headers: fields(settings),
                deny_status: match settings.deny_status {
                    DenyStatus::Ok => StatusCode::OK,
                    DenyStatus::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
                    DenyStatus::Forbidden => StatusCode::FORBIDDEN,
                },
                max_batch: settings.max_batch as usize,
                max_body: usize::try_from(settings.max_body.0).unwrap_or(usize::MAX),
                token: api_token,
                forward: forward(settings),
                allowed_origins: settings.allowed_origins.0.clone(),
            },
            rule_source,
            denials_per_second: settings.denial_log,
            max_connections: settings.max_connections as usize,
            max_open_files: descriptors::limit(),
            max_unfinished_bodies: usize::try_from(settings.max_unfinished_bodies.0).unwrap_or(usize::MAX),
            drain_delay: settings.drain_delay,
            drain_timeout: settings.drain_timeout,
            dropped_log_lines: Arc::clone(&self.dropped_log_lines),
        };
        Ok((setup, banner))
    }

    /// The token of the admin listener; if it was generated just now, also in plain text.
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

    /// Binds a listener. Returns `None` if it is off.
    async fn bind(
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
                        "another process uses this port: stop it, or choose another port, like {flag} {other}"
                    )
                }
                io::ErrorKind::PermissionDenied => {
                    "ports up to 1023 need privileges: choose a port above 1023".to_owned()
                }
                io::ErrorKind::AddrNotAvailable => {
                    "this machine has no such address: use 127.0.0.1, or 0.0.0.0 for all interfaces"
                        .to_owned()
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
        ClientAddress::XForwardedFor => AddressHeader::XForwardedFor,
        ClientAddress::XRealIp => AddressHeader::XRealIp,
        ClientAddress::Forwarded => AddressHeader::Forwarded,
    };
    let proxies = TrustedProxies { networks: settings.trusted_proxies.0.clone(), header: field };
    ForwardOptions { keys: settings.forward_key.clone(), proxies }
}

fn fields(settings: &Settings) -> RateLimitHeaders {
    let has = |profile| settings.headers.0.contains(&profile);
    let reset = match settings.reset {
        Reset::Epoch => ResetForm::Epoch,
        Reset::Delta => ResetForm::Delta,
    };
    RateLimitHeaders {
        legacy: has(HeaderProfile::XRateLimit).then_some(reset),
        ietf: has(HeaderProfile::Ietf),
        draft_7: has(HeaderProfile::Draft7),
        draft_6: has(HeaderProfile::Draft6),
    }
}
