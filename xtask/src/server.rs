//! A real server for other people's programs to talk to.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use crate::tool::{cargo, run};

/// A debug build on ports of its own, killed when it is dropped.
pub(crate) struct DebugServer {
    child: Child,
    places: ServerAddresses,
    folder: PathBuf,
}

/// Where a server listens, as it says itself; empty where it does not.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerAddresses {
    /// The main port, as a URL.
    pub(crate) http: String,
    /// The port that speaks gRPC, as a URL.
    pub(crate) grpc: String,
    /// The port that speaks RESP: an address and a port.
    pub(crate) resp: String,
    /// The admin port, as a URL.
    pub(crate) admin: String,
    /// What opens the admin port.
    pub(crate) token: String,
}

impl DebugServer {
    /// Builds the program, and gives where it is.
    pub(crate) fn build() -> Result<PathBuf> {
        run(cargo().args(["build", "--locked", "--package", "ratekeeper-cli"]))?;
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
        let name = format!("ratekeeper{}", env::consts::EXE_SUFFIX);
        Ok(env::current_dir()?.join(target).join("debug").join(name))
    }

    /// Starts `serve` with these arguments, each port that they don't mention on whatever is free. Its log goes to a folder
    /// of this name.
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
        let output = child.stdout.take().context("its output is ours")?;
        let mut server = DebugServer { child, places: ServerAddresses::default(), folder };
        server.places = ServerAddresses::read(output)
            .with_context(|| format!("the server did not start: see {}/log", server.folder.display()))?;
        Ok(server)
    }

    /// Where it listens.
    pub(crate) fn places(&self) -> &ServerAddresses {
        &self.places
    }

    /// Where it logs, and where whoever asks it may leave things.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Kills it, without a chance to say goodbye, and fails if it broke anywhere on the way.
    pub(crate) fn end(&mut self) -> Result<()> {
        ensure!(self.child.try_wait()?.is_none(), "the server ended by itself");
        self.child.kill()?;
        self.child.wait()?;
        let log = fs::read_to_string(self.folder.join("log"))?;
        let broken = log.lines().find(|line| line.contains("panicked"));
        ensure!(broken.is_none(), "the server panicked: {}", broken.unwrap_or_default());
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
    /// Reads what a server says when it starts, as far as it tells where it listens.
    fn read(output: ChildStdout) -> Result<ServerAddresses> {
        let mut places = ServerAddresses::default();
        for line in BufReader::new(output).lines() {
            let line = line?;
            let url = line.split_whitespace().find(|word| word.contains("://")).unwrap_or_default();
            if line.contains(" listens") {
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
        bail!("it ended before it had told where it listens")
    }
}
