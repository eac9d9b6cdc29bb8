//! Loads rules from a file and reloads them when it changes.
//!
//! A valid file takes effect as a whole. An invalid one changes nothing: the previous rules stay in force, and the log,
//! a metric and `/readyz` report the errors until the file is fixed.

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

/// The maximum size of a rule file.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// The rule file, and the result of the last attempt to load it.
#[derive(Debug)]
pub struct RuleSource {
    path: Option<PathBuf>,
    /// The default for rules without `on_store_failure`.
    on_store_failure: FailureMode,
    /// The watch on the file, until [`RuleSource::watch_and_reload`] takes it.
    watch: Mutex<Option<FileWatch>>,
    /// Why the last load failed; `None` if it succeeded.
    last_error: Mutex<Option<String>>,
    failures: AtomicU64,
    loaded_at: AtomicU64,
}

/// Why rules could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuleSourceError {
    /// The file could not be read.
    #[error("cannot read the rules in {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The file has errors, so none of its rules takes effect.
    #[error("{report}")]
    Invalid {
        /// All diagnostics, as shown to users.
        report: String,
    },
}

impl RuleSource {
    /// A source that reads rules from `path`, or never loads any if it is `None`. `on_store_failure` is the default for
    /// rules that do not set it.
    ///
    /// Create it before the file is first read, so that no change goes unnoticed.
    ///
    /// # Panics
    /// If `path` is given outside of a Tokio runtime.
    pub fn new(path: Option<PathBuf>, on_store_failure: FailureMode, now: Micros) -> RuleSource {
        RuleSource {
            on_store_failure,
            watch: Mutex::new(path.clone().map(|path| FileWatch::new([path]))),
            path,
            last_error: Mutex::new(None),
            failures: AtomicU64::new(0),
            loaded_at: AtomicU64::new(now.get() / 1_000_000),
        }
    }

    /// The path of the rule file.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Why the last load failed. Returns `None` if the rules in force are those in the file.
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }

    /// How many loads have failed.
    pub fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    /// When rules were last put in force, in Unix seconds.
    pub fn loaded_at(&self) -> u64 {
        self.loaded_at.load(Relaxed)
    }

    /// Reloads the rules when the file changes and on every message from `reload`. Never returns.
    pub async fn watch_and_reload<S: Store>(&self, limiter: &RuleLimiter<S>, mut reload: mpsc::Receiver<()>) {
        let watch = self.watch.lock().take();
        let (Some(path), Some(mut watch)) = (&self.path, watch) else { return std::future::pending().await };
        loop {
            let is_requested = tokio::select! {
                _ = watch.changed() => false,
                Some(()) = reload.recv() => true,
            };
            let (file, default, now) = (path.clone(), self.on_store_failure, limiter.clock().now());
            // Thousands of rules take a while to compile, so do it off the threads that answer requests.
            let loaded = spawn_blocking(move || load(&file, default, now)).await;
            let panicked =
                |error| RuleSourceError::Invalid { report: format!("the file can't be read: {error}") };
            self.apply(loaded.map_err(panicked).flatten(), path, limiter, is_requested);
        }
    }

    fn apply<S: Store>(
        &self,
        loaded: Result<RuleSet, RuleSourceError>,
        path: &Path,
        limiter: &RuleLimiter<S>,
        is_requested: bool,
    ) {
        match loaded {
            Ok(rules) => {
                let count = rules.rules().len();
                limiter.install(rules);
                self.loaded_at.store(limiter.clock().now().get() / 1_000_000, Relaxed);
                *self.last_error.lock() = None;
                tracing::info!(file = %path.display(), rules = count, is_requested, "rules reloaded");
            }
            Err(error) => {
                self.failures.fetch_add(1, Relaxed);
                let report = describe(&error);
                tracing::error!(file = %path.display(), "rule reload failed, keeping the previous rules: {report}");
                *self.last_error.lock() = Some(report);
            }
        }
    }
}

/// The error followed by its cause.
fn describe(error: &RuleSourceError) -> String {
    match error {
        RuleSourceError::Unreadable { source, .. } => format!("{error}: {source}"),
        RuleSourceError::Invalid { report } => report.clone(),
    }
}

/// Reads a rule file and compiles it. Warnings go to the log. `on_store_failure` is the default for rules that do not
/// set it.
///
/// # Errors
/// If the file can't be read or is invalid.
pub fn load(path: &Path, on_store_failure: FailureMode, now: Micros) -> Result<RuleSet, RuleSourceError> {
    let unreadable = |source| RuleSourceError::Unreadable { path: path.into(), source };
    let text = file::read(path, MAX_FILE_BYTES).map_err(unreadable)?;
    let text = String::from_utf8(text).map_err(|_| unreadable(io::Error::other("it is not UTF-8 text")))?;
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

/// The built-in rules, used without a rule file: 100 requests a minute per key.
///
/// # Panics
/// Never: the built-in rules are valid.
pub fn built_in(on_store_failure: FailureMode) -> RuleSet {
    let review = read("default: {limit: 100/min}", Micros::EPOCH);
    let mut spec = review.spec.expect("the built-in rules are valid");
    spec.on_store_failure = Some(on_store_failure);
    RuleSet::compile(&spec).expect("the built-in rules have one limit")
}
