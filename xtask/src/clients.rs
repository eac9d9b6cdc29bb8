//! The RESP port held to what real clients of Redis make of it: the command line tools, and the libraries that most
//! programs use.
//!
//! Each talks to a real server, in both versions of the protocol where it speaks both; shows a token to another; and goes on
//! after the first was killed and started anew. A library's script says `restart` when it is ready for that, and reads a
//! line when it is done.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::{debian, node::NodeJs, python::Python, server::DebugServer, tool::run};

const RULES: [&str; 2] = ["--rules", "tests/clients/rules.yaml"];
const TOKEN: &str = "rk_for_clients_that_are_tried";
/// How many commands a benchmark sends: a multiple of what it pipelines, so that it sends no more than these.
const BENCHMARKED: u32 = 64 * 500;

pub(crate) fn check() -> Result<()> {
    let tools = Tools {
        cli: debian::program("redis-cli", "redis-tools")?,
        benchmark: debian::program("redis-benchmark", "redis-tools")?,
    };
    let python = Python::with("tests/clients/requirements.txt")?;
    let node = NodeJs::with("tests/clients")?;
    let mut ground = ClientServers::new()?;
    tools.check(&ground)?;
    ground.hear(python.command().arg("tests/clients/redis_py.py"))?;
    ground.hear(&mut node.script("tests/clients/ioredis.mjs")?)?;
    ground.hear(&mut node.script("tests/clients/node_redis.mjs")?)?;
    ground.leave()
}

/// The servers that clients talk to.
struct ClientServers {
    program: PathBuf,
    open: DebugServer,
    guarded: DebugServer,
}

impl ClientServers {
    fn new() -> Result<ClientServers> {
        let program = DebugServer::build()?;
        let open = DebugServer::start(&program, "clients", &RULES)?;
        let token = open.folder().join("token");
        std::fs::write(&token, TOKEN)?;
        let token = token.to_str().context("the folder's name is text")?;
        let arguments = [&RULES[..], &["--api-token-file", token]].concat();
        let guarded = DebugServer::start(&program, "clients-with-token", &arguments)?;
        Ok(ClientServers { program, open, guarded })
    }

    /// Runs a library's script to its end, and starts the server anew when it says so.
    fn hear(&mut self, script: &mut Command) -> Result<()> {
        script.args([&self.open.places().resp, &self.guarded.places().resp, TOKEN]);
        let name = script.get_args().next().unwrap_or_default().display().to_string();
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut input = child.stdin.take().context("its input is ours")?;
        let output = child.stdout.take().context("its output is ours")?;
        let mut has_restarted = false;
        for line in BufReader::new(output).lines() {
            match line?.as_str() {
                "restart" => {
                    self.restart()?;
                    writeln!(input, "restarted")?;
                    has_restarted = true;
                }
                said => println!("{said}"),
            }
        }
        let status = child.wait()?;
        ensure!(status.success() && has_restarted, "{name} ended with {status}");
        Ok(())
    }

    /// Kills the server without token, and has another in its place.
    fn restart(&mut self) -> Result<()> {
        let address = self.open.places().resp.clone();
        self.open.end()?;
        self.open =
            DebugServer::start(&self.program, "clients", &[&RULES[..], &["--resp", &address]].concat())?;
        Ok(())
    }

    fn leave(mut self) -> Result<()> {
        self.open.end()?;
        self.guarded.end()
    }
}

/// What comes with Redis.
struct Tools {
    cli: PathBuf,
    benchmark: PathBuf,
}

impl Tools {
    fn check(&self, ground: &ClientServers) -> Result<()> {
        self.check_cli(&ground.open.places().resp)?;
        self.check_token(&ground.guarded.places().resp)?;
        self.check_benchmark(&ground.open.places().resp)
    }

    fn check_cli(&self, address: &str) -> Result<()> {
        let cli = |arguments: &[&str]| said(at(&self.cli, address).args(arguments));
        for (protocol, name) in [("-2", "two"), ("-3", "three")] {
            expect(&cli(&[protocol, "PING"])?, "PONG\n")?;
            expect(&cli(&[protocol, "CL.THROTTLE", name, "15", "30", "60"])?, "0\n16\n15\n-1\n2\n")?;
            let never = format!("never:{name}");
            expect(&cli(&[protocol, "cl.throttle", &never, "9", "10", "60", "11"])?, "1\n10\n10\n-1\n0\n")?;
            expect(&cli(&[protocol, "RK.CHECK", name, "/", "100"])?, "0\n100\n0\n-1\n86400\n")?;
            let greeting = cli(&[protocol, "HELLO"])?;
            ensure!(greeting.starts_with("server") && greeting.contains("ratekeeper"), "{greeting}");
        }
        // With -e an error is also told by how the program ends.
        let refused = at(&self.cli, address).args(["-e", "CL.THROTTLE", "a", "1", "0", "60"]).output()?;
        let told =
            String::from_utf8_lossy(&refused.stderr).into_owned() + &String::from_utf8_lossy(&refused.stdout);
        ensure!(!refused.status.success() && told.contains("ERR zero rates are not supported"), "{told}");
        ensure!(cli(&["INFO", "server"])?.contains("ratekeeper_version:"), "INFO tells who answers");

        // Many commands in one stream, as `--pipe` sends them.
        let commands = "CL.THROTTLE piped 9999 1 86400\r\n".repeat(5000);
        let mut child =
            at(&self.cli, address).arg("--pipe").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        child.stdin.take().context("its input is ours")?.write_all(commands.as_bytes())?;
        let told = String::from_utf8(child.wait_with_output()?.stdout)?;
        ensure!(told.contains("errors: 0, replies: 5000"), "{told}");
        let left = cli(&["CL.THROTTLE", "piped", "9999", "1", "86400", "0"])?;
        ensure!(left.starts_with("0\n10000\n5000\n-1\n"), "{left}");
        println!("{}", said(Command::new(&self.cli).arg("--version"))?.trim());
        Ok(())
    }

    fn check_token(&self, address: &str) -> Result<()> {
        let ask = |password: &[&str]| {
            said(at(&self.cli, address).arg("--no-auth-warning").args(password).arg("PING"))
        };
        expect(&ask(&["-a", TOKEN])?, "PONG\n")?;
        expect(&ask(&["--user", "default", "-a", TOKEN])?, "PONG\n")?;
        expect(&ask(&[])?, "NOAUTH Authentication required.\n\n")?;
        let refused = at(&self.cli, address).args(["--no-auth-warning", "-a", "wrong", "PING"]).output()?;
        let told = String::from_utf8_lossy(&refused.stderr);
        ensure!(told.contains("AUTH failed: WRONGPASS"), "{told}");
        Ok(())
    }

    /// Every command that it sends takes one unit, and so it can be counted.
    fn check_benchmark(&self, address: &str) -> Result<()> {
        let count = BENCHMARKED.to_string();
        let limit = ["CL.THROTTLE", "bench", "99999", "1", "3600"];
        let mut benchmark = at(&self.benchmark, address);
        benchmark.args(["-n", &count, "-P", "64", "-c", "20", "--csv"]).args(limit);
        let told = said(&mut benchmark)?;
        ensure!(told.lines().count() == 2 && told.contains("CL.THROTTLE bench"), "{told}");
        let left = said(at(&self.cli, address).args(limit).arg("0"))?;
        ensure!(left.starts_with(&format!("0\n100000\n{}\n", 100_000 - BENCHMARKED)), "{left}");
        run(at(&self.benchmark, address).args(["-t", "ping", "-n", "1000", "-q"]).stdout(Stdio::null()))?;
        println!("redis-benchmark: {count} commands sent, {count} units taken");
        Ok(())
    }
}

/// A tool, told where the server is.
fn at(program: &Path, address: &str) -> Command {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let mut command = Command::new(program);
    command.args(["-h", host, "-p", port]).env_remove("REDISCLI_AUTH").stdin(Stdio::null());
    command
}

/// What a command prints.
fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    Ok(String::from_utf8(output.stdout)?)
}

fn expect(said: &str, expected: &str) -> Result<()> {
    ensure!(said == expected, "{said:?} instead of {expected:?}");
    Ok(())
}
