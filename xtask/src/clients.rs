//! The RESP port held to what real clients of Redis make of it.

use std::process::Command;

use anyhow::Result;

use crate::{debian, node::Node, python::Python, tool::run};

pub(crate) fn check() -> Result<()> {
    let (cli, python) =
        (debian::program("redis-cli", "redis-tools")?, Python::with("tests/clients/requirements.txt")?);
    let node = Node::with("tests/clients")?;
    run(Command::new(cli).arg("--version"))?;
    run(python.command().args(["-c", "import redis; print('redis-py', redis.__version__)"]))?;
    run(&mut node.script("tests/clients/versions.mjs")?)
}
