//! Checks the HTTP API against its OpenAPI document with schemathesis, which sends valid and invalid requests to a real
//! server, and reads the metrics with Prometheus's own parser.

use std::{env, process::Command};

use anyhow::{Result, ensure};

use crate::{python::Python, server::DebugServer, tool::run};

/// Requests that schemathesis generates per operation: about a minute's worth.
const EXAMPLES_PER_OPERATION: &str = "200";
/// A client key that must not appear in the metrics.
const KEY: &str = "sk_never_in_a_metric";

pub(crate) fn check() -> Result<()> {
    let python = Python::with("tests/python/requirements.txt")?;
    let program = DebugServer::build()?;
    let rules = ["--rules", "tests/python/rules.yaml", "--grpc", "off", "--resp", "off"];
    let mut server = DebugServer::start(&program, "api", &rules)?;
    let places = server.addresses().clone();
    let document = format!("{}/openapi.json", places.http);
    let mut schemathesis = python.program("schemathesis");
    schemathesis.arg("--config-file").arg(env::current_dir()?.join("tests/python/schemathesis.toml"));
    schemathesis.args([
        "run",
        &document,
        "--seed",
        "1",
        "--max-examples",
        EXAMPLES_PER_OPERATION,
        "--no-color",
    ]);
    // schemathesis stores its findings in the working directory.
    run(schemathesis.current_dir(server.folder()))?;

    let check = Command::new(program).args(["check", KEY, "--server", &places.http]).status()?;
    ensure!(check.success(), "a new client was not allowed");
    let metrics = format!("{}/metrics", places.admin);
    run(python.command().args(["tests/python/metrics.py", &metrics, &places.token, KEY]))?;
    server.kill()
}
