//! Checks the gRPC listener with real gRPC clients and a real Envoy.

use anyhow::{Context, Result};

use crate::{python::Python, server::DebugServer, tool::run};

/// Runs Google's Python client: checks, streams, health and reflection.
pub(crate) fn clients() -> Result<()> {
    let python = Python::with("tests/grpc/requirements.txt")?;
    let mut server =
        DebugServer::start(&DebugServer::build()?, "grpc", &["--rules", "docs/envoy-rules.yaml"])?;
    let address =
        server.addresses().grpc.split("://").nth(1).context("the server has no gRPC listener")?.to_owned();
    let messages = server.folder().join("messages");
    run(python.command().args(["tests/grpc/clients.py", &address]).arg(messages))?;
    server.kill()
}

/// Runs Envoy with the configuration from the documentation.
pub(crate) fn envoy() -> Result<()> {
    let python = Python::with("tests/envoy/requirements.txt")?;
    let program = DebugServer::build()?;
    run(python.command().arg("tests/envoy/edge.py").arg(program).arg("target/tmp/envoy"))
}
