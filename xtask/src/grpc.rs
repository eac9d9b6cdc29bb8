//! The gRPC port held to what real clients of gRPC, and a real Envoy, make of it.

use anyhow::{Context, Result};

use crate::{python::Python, server::Server, tool::run};

const REQUIREMENTS: &str = "tests/grpc/requirements.txt";
const RULES: &str = "tests/grpc/rules.yaml";

/// Google's client for Python: checks, streams, health and reflection.
pub(crate) fn clients() -> Result<()> {
    let python = Python::with(REQUIREMENTS)?;
    let mut server = Server::start(&Server::build()?, "grpc", &["--rules", RULES])?;
    let address = server.places().grpc.split("://").nth(1).context("it listens for gRPC")?.to_owned();
    let messages = server.folder().join("messages");
    run(python.command().args(["tests/grpc/clients.py", &address]).arg(messages))?;
    server.end()
}

/// Envoy, with the configuration that the documentation shows.
pub(crate) fn envoy() -> Result<()> {
    let python = Python::with(REQUIREMENTS)?;
    let program = Server::build()?;
    run(python.command().arg("tests/grpc/envoy.py").arg(program).arg("target/tmp/envoy"))
}
