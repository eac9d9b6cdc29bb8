//! The measured programs: Ratekeeper from this tree, the others from where they are published.
//!
//! Missing programs are put below `target/tools`, in a folder named after their version; the rest of the machine stays
//! as it is. Debian's packages are unpacked there, not installed: an installed nginx would be started as a service.

use crate::run::bench_folder;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const THROTTLECRAB: &str = "0.4.40";

/// All programs.
pub(crate) struct Programs {
    pub(crate) ratekeeper: Program,
    pub(crate) throttlecrab: Program,
    pub(crate) nginx: Program,
    pub(crate) redis: Program,
}

impl Programs {
    /// This may compile and download, so it is done before any server starts.
    pub(crate) fn find() -> Result<Programs> {
        Ok(Programs {
            ratekeeper: ratekeeper()?,
            throttlecrab: throttlecrab()?,
            nginx: nginx()?,
            redis: redis()?,
        })
    }
}

/// A program and its version.
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) version: String,
    /// Where it finds libraries that the machine lacks.
    pub(crate) libraries: Option<PathBuf>,
}

impl Program {
    fn new(path: PathBuf, version: &str) -> Program {
        Program { path, version: version.trim().to_owned(), libraries: None }
    }

    /// This program, which also contains servers.
    pub(crate) fn this() -> Result<Program> {
        let path = env::current_exe().context("can't find this program's executable")?;
        Ok(Program::new(path, env!("CARGO_PKG_VERSION")))
    }
}

/// Ratekeeper's release build.
pub(crate) fn ratekeeper() -> Result<Program> {
    let root = root()?;
    run(cargo().args(["build", "--release", "--locked", "--target-dir", "target"]).current_dir(&root))?;
    let path = root.join("target/release/ratekeeper");
    let text = output(Command::new(&path).arg("--version"))?;
    Ok(Program::new(path, text.trim_start_matches("ratekeeper ")))
}

/// throttlecrab's server, built with its own lock file and with Ratekeeper's optimisation settings.
fn throttlecrab() -> Result<Program> {
    let folder = tools()?.join(format!("throttlecrab-server-{THROTTLECRAB}"));
    let path = folder.join("bin/throttlecrab-server");
    if !path.is_file() {
        let mut command = cargo();
        command.args(["install", "--quiet", "--locked", "--root"]).arg(&folder);
        command.arg(format!("throttlecrab-server@{THROTTLECRAB}"));
        command.env("CARGO_PROFILE_RELEASE_LTO", "thin").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
        // Its build script needs protoc even for a server without gRPC.
        if find("protoc").is_none() {
            let folder = unpack("protobuf-compiler", &["libproto"])?;
            command.env("PROTOC", folder.join("usr/bin/protoc"));
            command.env("LD_LIBRARY_PATH", libraries(&folder)?);
        }
        println!("installing throttlecrab-server {THROTTLECRAB}");
        run(&mut command)?;
    }
    Ok(Program::new(path, THROTTLECRAB))
}

/// Debian's nginx.
fn nginx() -> Result<Program> {
    let path = match find("nginx") {
        Some(path) => path,
        None => unpack("nginx", &[])?.join("usr/sbin/nginx"),
    };
    let text = Command::new(&path).arg("-v").output().context("can't start nginx")?;
    let text = String::from_utf8_lossy(&text.stderr).into_owned();
    Ok(Program::new(path, text.rsplit_once('/').map_or("", |(_, version)| version)))
}

/// Debian's Redis.
pub(crate) fn redis() -> Result<Program> {
    let (path, libraries) = match find("redis-server") {
        Some(path) => (path, None),
        None => {
            let folder = unpack("redis-server", &["redis-tools", "libatomic", "libjemalloc", "liblzf"])?;
            (folder.join("usr/bin/redis-server"), Some(libraries(&folder)?))
        }
    };
    let mut command = Command::new(&path);
    command.arg("--version").envs(libraries.iter().map(|folder| ("LD_LIBRARY_PATH", folder)));
    let text = output(&mut command)?;
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or_default();
    Ok(Program { libraries, ..Program::new(path, version) })
}

/// The load generator that comes with Redis.
pub(crate) fn redis_benchmark(redis: &Program) -> Result<Program> {
    let path = redis.path.with_file_name("redis-benchmark");
    ensure!(path.is_file(), "redis-benchmark is missing: install Debian's redis-tools");
    Ok(Program { libraries: redis.libraries.clone(), ..Program::new(path, &redis.version) })
}

/// A folder for the files that a subject reads.
pub(crate) fn scratch() -> Result<PathBuf> {
    let folder = root()?.join("target/bench-server");
    fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    Ok(folder)
}

fn root() -> Result<PathBuf> {
    let folder = bench_folder().join("..");
    folder.canonicalize().with_context(|| format!("can't find {}", folder.display()))
}

fn tools() -> Result<PathBuf> {
    Ok(root()?.join("target/tools"))
}

/// Finds an installed program. The folders for administrators are not in every user's `PATH`.
fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Unpacks a Debian package, and those of its dependencies whose names begin with one of `also`; the others are on
/// every machine.
fn unpack(package: &str, also: &[&str]) -> Result<PathBuf> {
    let folder = tools()?.join(format!("debian-{package}"));
    let done = folder.join("unpacked");
    if done.is_file() {
        return Ok(folder);
    }
    println!("unpacking Debian's {package}");
    fs::create_dir_all(&folder)?;
    let advice = || format!("{package} is missing and can't be fetched: run `apt-get update`, or install it");
    let only = ["recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"];
    let mut depends = Command::new("apt-cache");
    depends.args(["depends", "--recurse"]).args(only.map(|kind| format!("--no-{kind}"))).arg(package);
    let depends = output(&mut depends).with_context(advice)?;
    let is_wanted = |name: &&str| *name == package || also.iter().any(|also| name.starts_with(also));
    let packages = depends.lines().filter(is_wanted);
    run(Command::new("apt-get").args(["-q", "download"]).args(packages).current_dir(&folder))
        .with_context(advice)?;
    for entry in fs::read_dir(&folder)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            run(Command::new("dpkg-deb").arg("-x").arg(file).arg(&folder))?;
        }
    }
    fs::write(done, "")?;
    Ok(folder)
}

/// The library folder of an unpacked package, which is named after the architecture.
fn libraries(unpacked: &Path) -> Result<PathBuf> {
    let folders = fs::read_dir(unpacked.join("usr/lib"))?;
    let mut folders = folders.filter_map(|entry| Some(entry.ok()?.path()));
    folders.find(|path| path.to_string_lossy().contains("-linux-")).context("a package has no libraries")
}

fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().display().to_string();
    let status = command.status().with_context(|| format!("can't start {name}"))?;
    ensure!(status.success(), "{name} ended with {status}");
    Ok(())
}

/// Runs a program and returns its output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("can't start {name}"))?;
    ensure!(output.status.success(), "{name} ended with {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
