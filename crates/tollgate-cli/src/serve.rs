//! `tollgate serve`: the limiter behind HTTP.

use crate::signals::Signals;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tollgate::{Cap, Limiter, MemoryStore, SystemClock};
use tollgate_server::Rules;

/// How many keys are remembered at once. Their table takes 300 MB when it is full, and next to nothing before.
const KEYS: Cap = Cap::keys(10_000_000);

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

  curl -d '{\"client_key\":\"alice\",\"cost\":5}' \\
      http://127.0.0.1:8080/check
      may alice spend 5? The answer is
          {\"allowed\":true,\"remaining\":95,\"reset_at\":1700000003,\"retry_after\":null}
      reset_at is when alice has everything back, in Unix seconds. retry_after is how many
      seconds to wait after a denial; null if the request may go on, or asks for more than
      the limit ever holds.

Ctrl-C or SIGTERM finishes what has begun and stops; a second one stops at once.";

/// Answer `POST /check` over HTTP: may this client go on?
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES, after_help = "See --help for examples.")]
pub(crate) struct Serve {
    /// The limits to enforce, in YAML [default: 100/min for each client key]
    #[arg(long, value_name = "FILE", env = "TOLLGATE_RULES")]
    rules: Option<PathBuf>,

    /// Where to listen for HTTP; port 0 takes any free one
    #[arg(long, value_name = "ADDR", env = "TOLLGATE_HTTP", default_value = "127.0.0.1:8080")]
    http: String,
}

impl Serve {
    /// Serves until a signal comes, and then to the end of what has begun.
    pub(crate) async fn run(self) -> Result<()> {
        let rules = self.rules.as_deref().map_or_else(|| Ok(Rules::built_in()), Rules::read)?;
        let limiter = Limiter::with_store(rules.limits(), MemoryStore::with(SystemClock::new(), KEYS)?)?;
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
        let address = &self.http;
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
        let _ = match &self.rules {
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
