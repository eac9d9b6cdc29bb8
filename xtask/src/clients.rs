//! Checks the RESP listener with real Redis clients: the command line tools, and the most used libraries.
//!
//! Each talks to a real server, in both protocol versions if it supports both; authenticates to another with a token;
//! and reconnects after the first was killed and restarted. A library's script prints `restart` when it is ready for
//! that, and reads a line when it is done.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::{debian, node::NodeJs, python::Python, server::DebugServer, tool::run};

const RULES: [&str; 2] = ["--rules", "tests/clients/rules.yaml"];
const TOKEN: &str = "rk_for_clients_that_are_tried";
/// How many commands the benchmark sends: a multiple of the pipeline depth, so that it sends exactly this many.
const BENCHMARK_COMMANDS: u32 = 64 * 500;

pub(crate) fn check() -> Result<()> {
    let tools = Tools {
        cli: debian::program("redis-cli", "redis-tools")?,
        benchmark: debian::program("redis-benchmark", "redis-tools")?,
    };
    let python = Python::with("tests/clients/requirements.txt")?;
    let node = NodeJs::with("tests/clients")?;
    let mut servers = ClientServers::new()?;
    tools.check(&servers)?;
    servers.run_script(python.command().arg("tests/clients/redis_py.py"))?;
    servers.run_script(&mut node.script("tests/clients/ioredis.mjs")?)?;
    servers.run_script(&mut node.script("tests/clients/node_redis.mjs")?)?;
    servers.stop()
}

/// The servers that clients talk to: one open to all, one that requires a token.
struct ClientServers {
    program: PathBuf,
    open: DebugServer,
    with_token: DebugServer,
}

impl ClientServers {
    fn new() -> Result<ClientServers> {
        let program = DebugServer::build()?;
        let open = DebugServer::start(&program, "clients", &RULES)?;
        let token = open.folder().join("token");
        std::fs::write(&token, TOKEN)?;
        let token = token.to_str().context("the folder's path is not UTF-8")?;
        let arguments = [&RULES[..], &["--api-token-file", token]].concat();
        let guarded = DebugServer::start(&program, "clients-with-token", &arguments)?;
        Ok(ClientServers { program, open, with_token: guarded })
    }

    /// Runs a library's script to its end, and restarts the server when the script asks for it.
    fn run_script(&mut self, script: &mut Command) -> Result<()> {
        script.args([&self.open.addresses().resp, &self.with_token.addresses().resp, TOKEN]);
        let name = script.get_args().next().unwrap_or_default().display().to_string();
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut input = child.stdin.take().context("stdin is not piped")?;
        let output = child.stdout.take().context("stdout is not piped")?;
        let mut has_restarted = false;
        for line in BufReader::new(output).lines() {
            match line?.as_str() {
                "restart" => {
                    self.restart()?;
                    writeln!(input, "restarted")?;
                    has_restarted = true;
                }
                output => println!("{output}"),
            }
        }
        let status = child.wait()?;
        ensure!(status.success() && has_restarted, "{name} exited with {status}");
        Ok(())
    }

    /// Kills the server without a token, and starts another at the same address.
    fn restart(&mut self) -> Result<()> {
        let address = self.open.addresses().resp.clone();
        self.open.kill()?;
        self.open =
            DebugServer::start(&self.program, "clients", &[&RULES[..], &["--resp", &address]].concat())?;
        Ok(())
    }

    fn stop(mut self) -> Result<()> {
        self.open.kill()?;
        self.with_token.kill()
    }
}

/// The command line tools of Redis.
struct Tools {
    cli: PathBuf,
    benchmark: PathBuf,
}

impl Tools {
    fn check(&self, servers: &ClientServers) -> Result<()> {
        self.check_cli(&servers.open.addresses().resp)?;
        self.check_token(&servers.with_token.addresses().resp)?;
        self.check_benchmark(&servers.open.addresses().resp)
    }

    fn check_cli(&self, address: &str) -> Result<()> {
        let cli = |arguments: &[&str]| stdout_of(tool_at(&self.cli, address).args(arguments));
        for (protocol, name) in [("-2", "two"), ("-3", "three")] {
            expect_output(&cli(&[protocol, "PING"])?, "PONG\n")?;
            expect_output(&cli(&[protocol, "CL.THROTTLE", name, "15", "30", "60"])?, "0\n16\n15\n-1\n2\n")?;
            let never = format!("never:{name}");
            expect_output(
                &cli(&[protocol, "cl.throttle", &never, "9", "10", "60", "11"])?,
                "1\n10\n10\n-1\n0\n",
            )?;
            expect_output(&cli(&[protocol, "RK.CHECK", name, "/", "100"])?, "0\n100\n0\n-1\n86400\n")?;
            let hello = cli(&[protocol, "HELLO"])?;
            ensure!(hello.starts_with("server") && hello.contains("ratekeeper"), "{hello}");
        }
        // With -e an error also sets the exit code.
        let failed = tool_at(&self.cli, address).args(["-e", "CL.THROTTLE", "a", "1", "0", "60"]).output()?;
        let output =
            String::from_utf8_lossy(&failed.stderr).into_owned() + &String::from_utf8_lossy(&failed.stdout);
        ensure!(!failed.status.success() && output.contains("ERR zero rates are not supported"), "{output}");
        ensure!(cli(&["INFO", "server"])?.contains("ratekeeper_version:"), "INFO has no ratekeeper_version");

        // Many commands in one stream, as `--pipe` sends them.
        let commands = "CL.THROTTLE piped 9999 1 86400\r\n".repeat(5000);
        let mut child =
            tool_at(&self.cli, address).arg("--pipe").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        child.stdin.take().context("stdin is not piped")?.write_all(commands.as_bytes())?;
        let output = String::from_utf8(child.wait_with_output()?.stdout)?;
        ensure!(output.contains("errors: 0, replies: 5000"), "{output}");
        let left = cli(&["CL.THROTTLE", "piped", "9999", "1", "86400", "0"])?;
        ensure!(left.starts_with("0\n10000\n5000\n-1\n"), "{left}");
        println!("{}", stdout_of(Command::new(&self.cli).arg("--version"))?.trim());
        Ok(())
    }

    fn check_token(&self, address: &str) -> Result<()> {
        let ask = |password: &[&str]| {
            stdout_of(tool_at(&self.cli, address).arg("--no-auth-warning").args(password).arg("PING"))
        };
        expect_output(&ask(&["-a", TOKEN])?, "PONG\n")?;
        expect_output(&ask(&["--user", "default", "-a", TOKEN])?, "PONG\n")?;
        expect_output(&ask(&[])?, "NOAUTH Authentication required.\n\n")?;
        let failed =
            tool_at(&self.cli, address).args(["--no-auth-warning", "-a", "wrong", "PING"]).output()?;
        let output = String::from_utf8_lossy(&failed.stderr);
        ensure!(output.contains("AUTH failed: WRONGPASS"), "{output}");
        Ok(())
    }

    /// Counts the commands that redis-benchmark sends, each of which takes one unit.
    fn check_benchmark(&self, address: &str) -> Result<()> {
        let count = BENCHMARK_COMMANDS.to_string();
        let limit = ["CL.THROTTLE", "bench", "99999", "1", "3600"];
        let mut benchmark = tool_at(&self.benchmark, address);
        benchmark.args(["-n", &count, "-P", "64", "-c", "20", "--csv"]).args(limit);
        let output = stdout_of(&mut benchmark)?;
        ensure!(output.lines().count() == 2 && output.contains("CL.THROTTLE bench"), "{output}");
        let left = stdout_of(tool_at(&self.cli, address).args(limit).arg("0"))?;
        ensure!(left.starts_with(&format!("0\n100000\n{}\n", 100_000 - BENCHMARK_COMMANDS)), "{left}");
        run(tool_at(&self.benchmark, address)
            .args(["-t", "ping", "-n", "1000", "-q"])
            .stdout(Stdio::null()))?;
        println!("redis-benchmark: {count} commands sent, {count} units taken");
        Ok(())
    }
}

/// A command for a tool, with the server's host and port.
fn tool_at(program: &Path, address: &str) -> Command {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let mut command = Command::new(program);
    command.args(["-h", host, "-p", port]).env_remove("REDISCLI_AUTH").stdin(Stdio::null());
    command
}

/// The standard output of a command.
fn stdout_of(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    Ok(String::from_utf8(output.stdout)?)
}

fn expect_output(actual: &str, expected: &str) -> Result<()> {
    ensure!(actual == expected, "{actual:?} instead of {expected:?}");
    Ok(())
}
