//! The gRPC port held to what real clients of gRPC, and a real Envoy, make of it.

use anyhow::{Context, Result};

use crate::{python::Python, server::DebugServer, tool::run};

/// Google's client for Python: checks, streams, health and reflection.
pub(crate) fn clients() -> Result<()> {
    let python = Python::with("tests/grpc/requirements.txt")?;
    let mut server =
        DebugServer::start(&DebugServer::build()?, "grpc", &["--rules", "docs/envoy-rules.yaml"])?;
    let address = server.places().grpc.split("://").nth(1).context("it listens for gRPC")?.to_owned();
    let messages = server.folder().join("messages");
    run(python.command().args(["tests/grpc/clients.py", &address]).arg(messages))?;
    server.end()
}

/// Envoy, with the configuration that the documentation shows.
pub(crate) fn envoy() -> Result<()> {
    let python = Python::with("tests/envoy/requirements.txt")?;
    let program = DebugServer::build()?;
    run(python.command().arg("tests/envoy/edge.py").arg(program).arg("target/tmp/envoy"))
}
