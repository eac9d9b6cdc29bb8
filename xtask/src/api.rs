//! The API held to its own description: schemathesis asks a real server whatever its OpenAPI document allows and
//! forbids, and Prometheus's own parser reads its metrics.

use std::{env, process::Command};

use anyhow::{Result, ensure};

use crate::{python::Python, server::DebugServer, tool::run};

/// So many requests are made up for each operation: a minute's worth.
const EXAMPLES: &str = "200";
/// A key that must not turn up where keys don't belong.
const KEY: &str = "sk_never_in_a_metric";

pub(crate) fn check() -> Result<()> {
    let python = Python::with("tests/python/requirements.txt")?;
    let program = DebugServer::build()?;
    let rules = ["--rules", "tests/python/rules.yaml", "--grpc", "off", "--resp", "off"];
    let mut server = DebugServer::start(&program, "api", &rules)?;
    let places = server.places().clone();
    let document = format!("{}/openapi.json", places.http);
    let mut schemathesis = python.program("schemathesis");
    schemathesis.arg("--config-file").arg(env::current_dir()?.join("tests/python/schemathesis.toml"));
    schemathesis.args(["run", &document, "--seed", "1", "--max-examples", EXAMPLES, "--no-color"]);
    // It remembers what it found in the folder that it runs in.
    run(schemathesis.current_dir(server.folder()))?;

    let check = Command::new(program).args(["check", KEY, "--server", &places.http]).status()?;
    ensure!(check.success(), "a fresh client is allowed");
    let metrics = format!("{}/metrics", places.admin);
    run(python.command().args(["tests/python/metrics.py", &metrics, &places.token, KEY]))?;
    server.end()
}
