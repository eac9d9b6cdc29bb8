//! The Redis server under test: Debian's build, without persistence.

use crate::server::process::{Process, free_address};
use crate::server::program::{self, Program};
use anyhow::{Context, Result, bail, ensure};
use ratekeeper::{Leased, Store, SystemClock};
use ratekeeper_redis::{RedisOptions, RedisStore, StoreUrl};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Upper bound for every operation. It is long because the machine may suspend a core for a while.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The store as the server uses it.
pub(crate) type LeasedRedis = Leased<RedisStore, Arc<SystemClock>>;

/// The most keys of which units are leased, as in the server.
const MAX_LEASED_KEYS: usize = 1 << 18;

/// A running Redis.
pub(crate) struct Host {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

impl Host {
    pub(crate) fn start(program: &Program, cores: &[usize]) -> Result<Host> {
        let address = free_address()?;
        let port = address.port().to_string();
        let settings = ["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no", "--dir"];
        let mut arguments: Vec<OsString> = settings.map(Into::into).to_vec();
        arguments.push(program::scratch()?.into());
        Ok(Host { process: Process::start_at(address, program, &arguments, cores)?, address })
    }

    /// Its URL for Ratekeeper.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Connects a store, on the current runtime.
    pub(crate) async fn store(&self) -> Result<LeasedRedis> {
        store_at(&self.url()).await
    }

    /// Runs a command that replies with one string.
    pub(crate) fn command(&self, words: &[&str]) -> Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command += &format!("${}\r\n{word}\r\n", word.len());
        }
        stream.write_all(command.as_bytes())?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match (line.get(..1), line.trim_end().get(1..)) {
            (Some("+" | ":"), Some(text)) => Ok(text.to_owned()),
            (Some("$"), Some(length)) => {
                let mut text = vec![0; length.parse()?];
                reader.read_exact(&mut text)?;
                Ok(String::from_utf8(text)?)
            }
            _ => bail!("Redis replied {:?} to {}", line.trim_end(), words[0]),
        }
    }

    /// A number of an `INFO` section.
    pub(crate) fn info(&self, section: &str, field: &str) -> Result<u64> {
        let text = self.command(&["INFO", section])?;
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.with_context(|| format!("INFO has no field {field}"))?.parse().map_err(Into::into)
    }

    /// How often a command has been called.
    pub(crate) fn calls(&self, command: &str) -> Result<u64> {
        self.calls_of(&[command])
    }

    /// How often these commands have been called in total.
    pub(crate) fn calls_of(&self, commands: &[&str]) -> Result<u64> {
        let text = self.command(&["INFO", "commandstats"])?;
        // A command that was never called is not listed.
        let lines = text.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
        let calls = lines.filter(|(name, _)| commands.contains(name));
        calls.map(|(_, rest)| Ok(rest.split(',').next().unwrap_or_default().parse::<u64>()?)).sum()
    }
}

/// Connects a store, on the current runtime.
pub(crate) async fn store_at(url: &str) -> Result<LeasedRedis> {
    let StoreUrl::Redis(url) = url.parse()? else { bail!("{url} is not the URL of a Redis") };
    let options = RedisOptions { timeout: TIMEOUT, ..RedisOptions::default() };
    let clock = Arc::new(SystemClock::new());
    let store = RedisStore::connect(&url, &options, Arc::clone(&clock))?;
    ensure!(store.ready(TIMEOUT).await, "Redis can't be reached: {:?}", store.health());
    Ok(Leased::new(store, clock, MAX_LEASED_KEYS))
}
