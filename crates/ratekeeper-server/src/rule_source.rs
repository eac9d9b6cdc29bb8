//! Rules on their way from a file into force.
//!
//! A file that is in order takes effect whole; one that is not changes nothing, and what is wrong with it is told in the
//! log, in a metric and by `/readyz` until it is mended.

use crate::file;
use crate::watch::FileWatch;
use parking_lot::Mutex;
use ratekeeper::rules::{RuleSet, read};
use ratekeeper::{FailureMode, Micros, RuleLimiter, Store};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

/// The most bytes of a file of rules.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Where rules come from, and how the last attempt went.
#[derive(Debug)]
pub struct RuleSource {
    path: Option<PathBuf>,
    /// For rules that do not say it themselves.
    on_store_failure: FailureMode,
    /// Over the file, until somebody follows it.
    watch: Mutex<Option<FileWatch>>,
    /// What was wrong at the last attempt, if anything was.
    trouble: Mutex<Option<String>>,
    failures: AtomicU64,
    loaded_at: AtomicU64,
}

/// Why there are no rules to enforce.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuleSourceError {
    /// The file could not be read.
    #[error("cannot read the rules in {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file was read, and what it says can't be enforced. Nothing of it is.
    #[error("{report}")]
    Invalid {
        /// All that is wrong with it, as people read it.
        report: String,
    },
}

impl RuleSource {
    /// A feed of the rules in a file, or of none at all; `on_store_failure` is for those that do not say it themselves.
    ///
    /// Make it before the file is first read, so that no change to it goes unseen.
    ///
    /// # Panics
    /// With a file, outside of a Tokio runtime.
    pub fn new(path: Option<PathBuf>, on_store_failure: FailureMode, now: Micros) -> RuleSource {
        RuleSource {
            on_store_failure,
            watch: Mutex::new(path.clone().map(|path| FileWatch::new([path]))),
            path,
            trouble: Mutex::new(None),
            failures: AtomicU64::new(0),
            loaded_at: AtomicU64::new(now.get() / 1_000_000),
        }
    }

    /// The file.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// What is wrong with the file, if the rules in force are not those in it.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// How often a file could not take effect.
    pub fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    /// When rules last took effect, in Unix seconds.
    pub fn loaded_at(&self) -> u64 {
        self.loaded_at.load(Relaxed)
    }

    /// Follows the file, and does what `reload` is told to, for ever.
    pub async fn follow<S: Store>(&self, gate: &RuleLimiter<S>, mut reload: mpsc::Receiver<()>) {
        let watch = self.watch.lock().take();
        let (Some(path), Some(mut watch)) = (&self.path, watch) else { return std::future::pending().await };
        loop {
            let is_asked = tokio::select! {
                _ = watch.changed() => false,
                Some(()) = reload.recv() => true,
            };
            let (file, usual, now) = (path.clone(), self.on_store_failure, gate.clock().now());
            // Thousands of rules take a while to compile, and no request should wait for that.
            let loaded = spawn_blocking(move || load(&file, usual, now)).await;
            let broken =
                |error| RuleSourceError::Invalid { report: format!("the file can't be read: {error}") };
            self.put_in_force(loaded.map_err(broken).flatten(), path, gate, is_asked);
        }
    }

    fn put_in_force<S: Store>(
        &self,
        loaded: Result<RuleSet, RuleSourceError>,
        path: &Path,
        gate: &RuleLimiter<S>,
        is_asked: bool,
    ) {
        match loaded {
            Ok(rules) => {
                let count = rules.rules().len();
                gate.install(rules);
                self.loaded_at.store(gate.clock().now().get() / 1_000_000, Relaxed);
                *self.trouble.lock() = None;
                tracing::info!(file = %path.display(), rules = count, is_asked, "the rules have changed");
            }
            Err(error) => {
                self.failures.fetch_add(1, Relaxed);
                let said = describe(&error);
                tracing::error!(file = %path.display(), "the rules stay as they were:\n{said}");
                *self.trouble.lock() = Some(said);
            }
        }
    }
}

/// The error and its cause in one.
fn describe(error: &RuleSourceError) -> String {
    match error {
        RuleSourceError::Unreadable { source, .. } => format!("{error}: {source}"),
        RuleSourceError::Invalid { report } => report.clone(),
    }
}

/// Reads a file of rules and compiles it. Warnings go to the log. `on_store_failure` is for rules that do not say it
/// themselves.
///
/// # Errors
/// If it can't be read, or with all that is wrong with what it says.
pub fn load(path: &Path, on_store_failure: FailureMode, now: Micros) -> Result<RuleSet, RuleSourceError> {
    let unreadable = |source| RuleSourceError::Unreadable { path: path.into(), source };
    let text = file::read(path, MAX_FILE_BYTES).map_err(unreadable)?;
    let text =
        String::from_utf8(text).map_err(|_| unreadable(io::Error::other("it is not text in UTF-8")))?;
    let name = path.display().to_string();
    let review = read(&text, now);
    let report = review.report(&name, &text).trim_end().to_owned();
    let Some(mut spec) = review.spec else { return Err(RuleSourceError::Invalid { report }) };
    if !report.is_empty() {
        tracing::warn!("{report}");
    }
    spec.on_store_failure.get_or_insert(on_store_failure);
    RuleSet::compile(&spec)
        .map_err(|error| RuleSourceError::Invalid { report: format!("{name}: error: {error}") })
}

/// The rules for those who wrote none: a hundred a minute for each key.
///
/// # Panics
/// Never: every law can honour a quota so round.
pub fn built_in(on_store_failure: FailureMode) -> RuleSet {
    let review = read("default: {limit: 100/min}", Micros::EPOCH);
    let mut spec = review.spec.expect("the built-in rules are in order");
    spec.on_store_failure = Some(on_store_failure);
    RuleSet::compile(&spec).expect("one limit is not too many")
}
