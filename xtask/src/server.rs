//! A real server for third-party clients to talk to.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use crate::tool::{cargo, run};

/// A running debug build on free ports, killed when this is dropped.
pub(crate) struct DebugServer {
    child: Child,
    addresses: ServerAddresses,
    folder: PathBuf,
}

/// The addresses in a server's banner; empty for listeners that are off.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerAddresses {
    /// The HTTP listener, as a URL.
    pub(crate) http: String,
    /// The gRPC listener, as a URL.
    pub(crate) grpc: String,
    /// The RESP listener, as `host:port`.
    pub(crate) resp: String,
    /// The admin listener, as a URL.
    pub(crate) admin: String,
    /// The admin token.
    pub(crate) token: String,
}

impl DebugServer {
    /// Builds the program, and returns its path.
    pub(crate) fn build() -> Result<PathBuf> {
        run(cargo().args(["build", "--locked", "--package", "ratekeeper-cli"]))?;
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
        let name = format!("ratekeeper{}", env::consts::EXE_SUFFIX);
        Ok(env::current_dir()?.join(target).join("debug").join(name))
    }

    /// Starts `serve` with these arguments, with every other listener on a free port. Its log goes to
    /// `target/tmp/NAME/log`.
    pub(crate) fn start(program: &Path, name: &str, arguments: &[&str]) -> Result<DebugServer> {
        let folder = env::current_dir()?.join("target/tmp").join(name);
        fs::create_dir_all(&folder)?;
        let log = fs::File::create(folder.join("log"))?;
        let mut command = Command::new(program);
        for port in ["HTTP", "GRPC", "RESP", "ADMIN"] {
            command.env(format!("RATEKEEPER_{port}"), "127.0.0.1:0");
        }
        command.args(["serve", "--log-format", "json"]).args(arguments).stderr(log).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start the server")?;
        let output = child.stdout.take().context("stdout is not piped")?;
        let mut server = DebugServer { child, addresses: ServerAddresses::default(), folder };
        server.addresses = ServerAddresses::read(output)
            .with_context(|| format!("the server did not start: see {}/log", server.folder.display()))?;
        Ok(server)
    }

    /// The addresses of its listeners.
    pub(crate) fn addresses(&self) -> &ServerAddresses {
        &self.addresses
    }

    /// The folder of its log, which tests may also write to.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Kills the server with SIGKILL. Fails if it had exited by itself or if its log contains a panic.
    pub(crate) fn kill(&mut self) -> Result<()> {
        ensure!(self.child.try_wait()?.is_none(), "the server exited by itself");
        self.child.kill()?;
        self.child.wait()?;
        let log = fs::read_to_string(self.folder.join("log"))?;
        let panic = log.lines().find(|line| line.contains("panicked"));
        ensure!(panic.is_none(), "the server panicked: {}", panic.unwrap_or_default());
        Ok(())
    }
}

impl Drop for DebugServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ServerAddresses {
    /// Reads the addresses from the banner that a server prints when it starts.
    fn read(output: ChildStdout) -> Result<ServerAddresses> {
        let mut places = ServerAddresses::default();
        for line in BufReader::new(output).lines() {
            let line = line?;
            let url = line.split_whitespace().find(|word| word.contains("://")).unwrap_or_default();
            if line.contains(" listening on ") {
                places.http = url.to_owned();
            } else if line.starts_with("gRPC") {
                places.grpc = url.to_owned();
            } else if line.starts_with("RESP") {
                places.resp = url.split("://").nth(1).unwrap_or_default().to_owned();
            } else if line.starts_with("admin: ") {
                places.admin = url.to_owned();
            } else if let Some((_, token)) = line.split_once("not shown again: ") {
                places.token = token.to_owned();
            } else if line == "try it:" {
                return Ok(places);
            }
        }
        bail!("the server exited before it printed its addresses")
    }
}
