//! nginx, Traefik and Caddy ask a real Ratekeeper for their clients, each with the configuration that the documentation shows.

use anyhow::Result;

use crate::{debian, python::Python, server::DebugServer, tool::run};

pub(crate) fn check() -> Result<()> {
    let nginx = debian::program("nginx", "nginx")?;
    // Traefik and Caddy are published as Python packages too, which have nothing in them but the program.
    let python = Python::with("tests/proxies/requirements.txt")?;
    let program = DebugServer::build()?;
    let folder = std::env::current_dir()?.join("target/tmp/proxies");
    run(python.command().args(["-B", "tests/proxies/check.py"]).arg(program).arg(nginx).arg(folder))
}
