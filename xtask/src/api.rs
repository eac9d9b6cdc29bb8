//! The API held to its own description: schemathesis asks a real server whatever its OpenAPI document allows and
//! forbids, and Prometheus's own parser reads its metrics.
//!
//! Their packages go into a virtual environment below `target/tools`, named after what they are, so that nothing outside
//! the project changes and a raised version is a new folder.

use std::{
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::tool::{cargo, run};

const REQUIREMENTS: &str = "tests/python/requirements.txt";
/// So many requests are made up for each operation: a minute's worth.
const EXAMPLES: &str = "200";
/// A key that must not turn up where keys don't belong.
const KEY: &str = "sk_never_in_a_metric";

pub(crate) fn check() -> Result<()> {
    let python = python()?;
    run(cargo().args(["build", "--locked", "--package", "tollgate-cli"]))?;
    let mut server = Server::start()?;
    let document = format!("{}/openapi.json", server.http);
    let mut schemathesis = Command::new(python.join("schemathesis"));
    schemathesis.arg("--config-file").arg(env::current_dir()?.join("tests/python/schemathesis.toml"));
    schemathesis.args(["run", &document, "--seed", "1", "--max-examples", EXAMPLES, "--no-color"]);
    // It remembers what it found in the folder that it runs in.
    run(schemathesis.current_dir(&server.folder))?;

    let check = Command::new(program()?).args(["check", KEY, "--server", &server.http]).status()?;
    ensure!(check.success(), "a fresh client is allowed");
    let metrics = format!("{}/metrics", server.admin);
    run(Command::new(python.join("python3")).args([
        "tests/python/metrics.py",
        &metrics,
        &server.token,
        KEY,
    ]))?;
    server.end()
}

/// The folder of a Python that has what is needed.
fn python() -> Result<PathBuf> {
    let wanted = fs::read_to_string(REQUIREMENTS).with_context(|| format!("cannot read {REQUIREMENTS}"))?;
    let mut hasher = DefaultHasher::new();
    wanted.hash(&mut hasher);
    let folder = env::current_dir()?.join(format!("target/tools/python-{:016x}", hasher.finish()));
    let (programs, ready) = (folder.join("bin"), folder.join("ready"));
    if !ready.is_file() {
        println!("installing schemathesis");
        make_environment(&folder)?;
        let mut pip = Command::new(programs.join("python3"));
        run(pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-r",
            REQUIREMENTS,
        ]))?;
        fs::write(&ready, "")?;
    }
    Ok(programs)
}

/// Debian keeps what it takes to make an environment in a package of its own, and a bare machine may have no Python.
fn make_environment(folder: &Path) -> Result<()> {
    let make = || run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder));
    if make().is_ok() {
        return Ok(());
    }
    println!("installing python3-venv");
    let apt = |arguments: &[&str]| {
        run(Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    apt(&["update", "-qq"])
        .and_then(|()| apt(&["install", "-y", "-qq", "python3-venv"]))
        .context("the tests of the API need Python 3 with venv: install them")?;
    make()
}

/// The debug binary.
fn program() -> Result<PathBuf> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    Ok(env::current_dir()?.join(target).join("debug").join(format!("tollgate{}", env::consts::EXE_SUFFIX)))
}

/// A server on ports of its own, killed when it is dropped.
struct Server {
    child: Child,
    http: String,
    admin: String,
    token: String,
    /// Where it logs, and where whoever asks it may leave things.
    folder: PathBuf,
}

impl Server {
    fn start() -> Result<Server> {
        let folder = env::current_dir()?.join("target/tmp/api");
        fs::create_dir_all(&folder)?;
        let log = fs::File::create(folder.join("log"))?;
        let mut command = Command::new(program()?);
        command.args(["serve", "--rules", "tests/python/rules.yaml", "--http", "127.0.0.1:0"]);
        command.args(["--grpc", "off", "--resp", "off"]);
        command.args(["--admin", "127.0.0.1:0", "--log-format", "json"]).stderr(log).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start the server")?;
        let mut lines = BufReader::new(child.stdout.take().context("its output is ours")?).lines();
        let mut line = |what: &str| -> Result<String> {
            let line =
                lines.next().with_context(|| format!("the server ended before it told its {what}"))??;
            let word =
                line.split_whitespace().find(|word| word.starts_with("http://") || word.starts_with("tg_"));
            Ok(word.with_context(|| format!("there is no {what} in {line:?}"))?.to_owned())
        };
        let (http, admin, token) = (line("address")?, line("admin address")?, line("token")?);
        Ok(Server { child, http, admin, token, folder })
    }

    /// Ends it, and fails if it broke anywhere on the way.
    fn end(&mut self) -> Result<()> {
        ensure!(self.child.try_wait()?.is_none(), "the server ended by itself");
        self.child.kill()?;
        let mut log = String::new();
        fs::File::open(self.folder.join("log"))?.read_to_string(&mut log)?;
        let broken = log.lines().find(|line| line.contains("panicked"));
        ensure!(broken.is_none(), "the server panicked: {}", broken.unwrap_or_default());
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
