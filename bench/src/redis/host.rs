//! The Redis that everybody asks: as Debian builds it, with nothing kept on a disk.

use crate::server::process::{Process, free_address};
use crate::server::program::{self, Program};
use anyhow::{Context, Result, bail, ensure};
use ratekeeper::SystemClock;
use ratekeeper::redis::{RedisOptions, RedisStore, StoreUrl};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// How long anything may take. It is long, because the machine may take a core away for a while, and then nobody is to
/// blame.
const PATIENCE: Duration = Duration::from_secs(10);

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

    /// As Ratekeeper is told of it.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// A store on it, on the runtime that this is called on.
    pub(crate) async fn store(&self) -> Result<RedisStore> {
        store_at(&self.url()).await
    }

    /// Has it carry out a command that answers with one text.
    pub(crate) fn command(&self, words: &[&str]) -> Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
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
            _ => bail!("Redis answers {:?} to {}", line.trim_end(), words[0]),
        }
    }

    /// A number of a section of what it tells of itself.
    pub(crate) fn info(&self, section: &str, field: &str) -> Result<u64> {
        let text = self.command(&["INFO", section])?;
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.with_context(|| format!("Redis does not tell {field}"))?.parse().map_err(Into::into)
    }

    /// How often it has carried out a command.
    pub(crate) fn calls(&self, command: &str) -> Result<u64> {
        self.calls_of(&[command])
    }

    /// How often it has carried out these commands together.
    pub(crate) fn calls_of(&self, commands: &[&str]) -> Result<u64> {
        let text = self.command(&["INFO", "commandstats"])?;
        // A command that never came is not told of.
        let lines = text.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
        let calls = lines.filter(|(name, _)| commands.contains(name));
        calls.map(|(_, rest)| Ok(rest.split(',').next().unwrap_or_default().parse::<u64>()?)).sum()
    }
}

/// A store there, on the runtime that this is called on.
pub(crate) async fn store_at(url: &str) -> Result<RedisStore> {
    let StoreUrl::Redis(url) = url.parse()? else { bail!("Redis is not taken for Redis") };
    let options = RedisOptions { timeout: PATIENCE, ..RedisOptions::default() };
    let store = RedisStore::connect(&url, &options, Arc::new(SystemClock::new()))?;
    ensure!(store.ready(PATIENCE).await, "Redis can't be reached: {:?}", store.describe());
    Ok(store)
}
