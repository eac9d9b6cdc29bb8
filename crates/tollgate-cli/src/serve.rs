//! `tollgate serve`: the limiter behind HTTP.

use crate::settings::{Listen, LogFormat, Resolved, Settings, Surroundings};
use crate::signals::Signals;
use anyhow::{Context, Result, anyhow, bail};
use clap::{ArgMatches, Command};
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tollgate::{Cap, Limiter, MemoryStore, SystemClock};
use tollgate_server::Rules;

/// The settings that the server acts on so far. Of the others it says that it does not.
const IN_FORCE: [&str; 7] = ["rules", "http", "store", "max_keys", "workers", "log", "log_format"];

const EXAMPLES: &str = "\
Examples:
  tollgate serve
      100 requests a minute for each client key, on 127.0.0.1:8080

  tollgate serve --rules limits.yaml
      the limits in a file, such as
          rules:
            - id: per-key
              limits: [100/s, 10000/h]
            - id: smooth
              limit: 5000/h
              algorithm: sliding_window_counter
      Every request must pass all of them. A limit is an amount and a period, and under
      token_bucket or leaky_bucket perhaps a burst: 100/s, 5000/h burst 200, 3 per 90s.
      algorithm is token_bucket (if left out), leaky_bucket, fixed_window,
      sliding_window_counter or sliding_window_log.

  tollgate serve --http 0.0.0.0:9000
      for other machines too, on port 9000

  tollgate serve --config tollgate.yaml
      all settings from a file; `tollgate serve --print-config > tollgate.yaml` makes one

  curl -d '{\"client_key\":\"alice\",\"cost\":5}' \\
      http://127.0.0.1:8080/check
      may alice spend 5? The answer is
          {\"allowed\":true,\"remaining\":95,\"reset_at\":1700000003,\"retry_after\":null}
      reset_at is when alice has everything back, in Unix seconds. retry_after is how many
      seconds to wait after a denial; null if the request may go on, or asks for more than
      the limit ever holds.

Ctrl-C or SIGTERM finishes what has begun and stops; a second one stops at once.";

/// The subcommand and its arguments.
pub(crate) fn command() -> Command {
    let command = Command::new("serve").about("Answer `POST /check` over HTTP: may this client go on?");
    let command = command.after_long_help(EXAMPLES).after_help("See --help for examples.");
    Settings::add_to(command)
}

/// Serves, or only says what it would serve with.
pub(crate) fn run(matches: &ArgMatches) -> Result<()> {
    let resolved = Settings::resolve(matches, &Surroundings::of_this_process())?;
    if matches.get_flag("print-config") {
        for warning in &resolved.warnings {
            eprintln!("warning: {warning}");
        }
        return crate::print(resolved.print().as_bytes());
    }
    log_to_stderr(&resolved.settings);
    warn(&resolved);
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let runtime = threads.worker_threads(resolved.settings.workers).enable_all().build();
    runtime.context("cannot start threads")?.block_on(Serve(resolved.settings).run())
}

fn log_to_stderr(settings: &Settings) {
    let log = tracing_subscriber::fmt().with_env_filter(settings.log.to_filter()).with_writer(io::stderr);
    match settings.log_format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
}

/// Says what is probably not as it was meant.
fn warn(resolved: &Resolved) {
    for warning in &resolved.warnings {
        tracing::warn!("{warning}");
    }
    for (name, origin) in resolved.set().filter(|(name, _)| !IN_FORCE.contains(name)) {
        tracing::warn!("{name}, from {origin}, is not in force: this version does not act on it yet");
    }
}

struct Serve(Settings);

impl Serve {
    /// Serves until a signal comes, and then to the end of what has begun.
    async fn run(self) -> Result<()> {
        let Serve(settings) = &self;
        let rules = settings.rules.as_deref().map_or_else(|| Ok(Rules::built_in()), Rules::read)?;
        let store = MemoryStore::with(SystemClock::new(), Cap::keys(settings.max_keys))?;
        let limiter = Limiter::with_store(rules.limits(), store)?;
        let mut signals = Signals::catch().context("cannot catch signals")?;
        let listener = self.listen().await?;
        self.greet(listener.local_addr()?, &rules);

        let (stop, stopped) = oneshot::channel::<()>();
        let mut serving =
            tokio::spawn(tollgate_server::serve(listener, limiter, async { stopped.await.unwrap_or(()) }));
        tokio::select! {
            ended = &mut serving => return ended.context("the server broke down"),
            () = signals.next() => tracing::info!("stopping: no one else is let in, requests that have begun are finished"),
        }
        drop(stop);
        tokio::select! {
            ended = serving => ended.context("the server broke down"),
            () = signals.next() => bail!("stopped at once by a second signal"),
        }
    }

    async fn listen(&self) -> Result<TcpListener> {
        let Listen::At(address) = &self.0.http else {
            bail!("http is off, and this version listens for nothing else: leave it on");
        };
        TcpListener::bind(address).await.map_err(|error| {
            let advice = match error.kind() {
                io::ErrorKind::AddrInUse => {
                    "something else listens there: stop it, or choose another port, like --http 127.0.0.1:8081"
                }
                io::ErrorKind::PermissionDenied => "the system does not let you: choose a port above 1023",
                io::ErrorKind::AddrNotAvailable => "this machine has no such address: use 127.0.0.1, or 0.0.0.0 for all it has",
                _ => "write an address and a port, like 127.0.0.1:8080",
            };
            anyhow!(error).context(format!("cannot listen on {address}: {advice}"))
        })
    }

    /// Says where it listens, what holds, and what to type. The first line is for scripts too.
    fn greet(&self, address: SocketAddr, rules: &Rules) {
        let mut greeting = format!("tollgate {} listens on http://{address}\n", env!("CARGO_PKG_VERSION"));
        let _ = match &self.0.rules {
            Some(path) => writeln!(greeting, "limits for each client key, from {}:", path.display()),
            None => writeln!(greeting, "limits for each client key, built in (your own with --rules FILE):"),
        };
        for rule in rules.all() {
            for limit in rule.limits() {
                let _ = writeln!(greeting, "  {}: {limit}", rule.id());
            }
        }
        let _ = writeln!(
            greeting,
            "try it:\n  curl -d '{{\"client_key\":\"alice\"}}' http://{}/check",
            reachable(address)
        );
        // With nobody to read it, there is still somebody to serve.
        let _ = io::stdout().write_all(greeting.as_bytes());
    }
}

/// An address to type: of a server that listens on all its addresses, the one that is sure to be near.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
