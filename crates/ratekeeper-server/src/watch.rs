//! Watches files for changes by polling.
//!
//! Each path is polled ten times a second, following symlinks. A poll costs a few microseconds and notices changes that
//! kernel notifications miss: files on network drives, a whole directory exchanged for another, and the symlink
//! `..data` by which Kubernetes swaps a ConfigMap. A change is reported once two polls in a row see the same state, so
//! that a file is not read while it is being written.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often the files are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Watches files by path. A path may be a symlink, and need not exist yet.
///
/// Create the watch before the files are first read: a change between creating it and reading is then read twice, and
/// never missed.
#[derive(Debug)]
pub struct FileWatch {
    files: Vec<WatchedFile>,
    poll_timer: Interval,
}

impl FileWatch {
    /// Watches these paths for changes from their current state.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> FileWatch {
        let mut poll_timer = interval(POLL_INTERVAL);
        // After a stall, poll once, not once for each missed tick: two polls at one instant would not see a write in
        // progress.
        poll_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let paths: BTreeSet<PathBuf> = paths.into_iter().collect();
        FileWatch { files: paths.into_iter().map(WatchedFile::new).collect(), poll_timer }
    }

    /// Waits until at least one file exists and differs from its last reported state, and returns all such files.
    ///
    /// A file that disappears is not reported, as there is nothing to read; it is when it is back. Cancel safe:
    /// dropping the future loses no change.
    pub async fn changed(&mut self) -> Vec<PathBuf> {
        loop {
            self.poll_timer.tick().await;
            let paths: Vec<_> = self.files.iter().map(|file| file.path.clone()).collect();
            // A network drive may be slow, so keep it off the runtime's worker threads.
            let states =
                spawn_blocking(move || paths.iter().map(|path| FileState::read(path)).collect::<Vec<_>>());
            let Ok(states) = states.await else { continue };
            let files = self.files.iter_mut().zip(states);
            let changed = files.filter_map(|(file, state)| file.observe(state).then(|| file.path.clone()));
            let changed: Vec<_> = changed.collect();
            if !changed.is_empty() {
                return changed;
            }
        }
    }
}

/// A watched path, and the states seen of it.
#[derive(Debug)]
struct WatchedFile {
    path: PathBuf,
    /// The last reported state; the first one seen if none was reported.
    reported: FileState,
    /// The state at the last poll.
    last_seen: FileState,
}

impl WatchedFile {
    fn new(path: PathBuf) -> WatchedFile {
        let state = FileState::read(&path);
        WatchedFile { path, reported: state, last_seen: state }
    }

    /// Records the file's current state, and returns whether it is to be reported.
    fn observe(&mut self, state: FileState) -> bool {
        let is_stable = state == self.last_seen;
        self.last_seen = state;
        if !is_stable || state == self.reported {
            return false;
        }
        self.reported = state;
        if state == FileState::Missing {
            tracing::warn!(file = %self.path.display(), "a watched file is gone, keeping its last content in use");
        }
        state != FileState::Missing
    }
}

/// The state of a file, as its metadata shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileState {
    Present(Signature),
    /// It does not exist, or its metadata can't be read.
    Missing,
}

impl FileState {
    /// Follows symlinks: what counts is the file that would be read.
    fn read(path: &Path) -> FileState {
        fs::metadata(path).map_or(FileState::Missing, |metadata| FileState::Present(Signature::of(&metadata)))
    }
}

/// Metadata that changes when a file is written or replaced: device, inode, size, mtime and ctime in nanoseconds.
/// Unlike mtime, ctime can't be set back by a program.
#[cfg(unix)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signature {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

#[cfg(unix)]
impl Signature {
    fn of(metadata: &Metadata) -> Signature {
        use std::os::unix::fs::MetadataExt;
        Signature {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Metadata that changes when a file is written or replaced: its size and times.
#[cfg(not(unix))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signature {
    bytes: u64,
    modified: Option<std::time::SystemTime>,
    created: Option<std::time::SystemTime>,
}

#[cfg(not(unix))]
impl Signature {
    fn of(metadata: &Metadata) -> Signature {
        let (modified, created) = (metadata.modified().ok(), metadata.created().ok());
        Signature { bytes: metadata.len(), modified, created }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use tempfile::TempDir;
    use tokio::time::{Instant, timeout};

    /// A directory with the file `rules`, whose content is `one`, and a watch on it.
    fn watched_file() -> (TempDir, PathBuf, FileWatch) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules");
        fs::write(&path, "one").unwrap();
        let watch = FileWatch::new([path.clone()]);
        (folder, path, watch)
    }

    /// Whether no change is reported for a second. Time is paused, so the second passes at once.
    async fn is_quiet(watch: &mut FileWatch) -> bool {
        timeout(Duration::from_secs(1), watch.changed()).await.is_err()
    }

    #[track_caller]
    fn assert_reported(reported: &[PathBuf], path: &Path) {
        assert_eq!(reported, [path.to_owned()]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unchanged_file_is_never_reported() {
        let (_folder, path, mut watch) = watched_file();
        assert!(is_quiet(&mut watch).await);
        File::open(&path).unwrap();
        assert!(is_quiet(&mut watch).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rewrite_in_place_is_reported_once() {
        let (_folder, path, mut watch) = watched_file();
        fs::write(&path, "one and two").unwrap();
        assert_reported(&watch.changed().await, &path);
        assert!(is_quiet(&mut watch).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rewrite_of_the_same_size_with_the_old_time_is_reported() {
        let (_folder, path, mut watch) = watched_file();
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let before = FileState::read(&path);
        // The kernel's timestamps are a few milliseconds coarse, so it may take several writes until one differs.
        while FileState::read(&path) == before {
            fs::write(&path, "two").unwrap();
            File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        }
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), modified);
        assert_reported(&watch.changed().await, &path);
    }

    #[tokio::test(start_paused = true)]
    async fn an_atomic_rename_is_reported() {
        let (folder, path, mut watch) = watched_file();
        let new = folder.path().join("rules.new");
        fs::write(&new, "two").unwrap();
        fs::rename(&new, &path).unwrap();
        assert_reported(&watch.changed().await, &path);
        assert!(is_quiet(&mut watch).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deleted_file_is_reported_only_when_it_is_back() {
        let (_folder, path, mut watch) = watched_file();
        fs::remove_file(&path).unwrap();
        assert!(is_quiet(&mut watch).await);
        fs::write(&path, "one").unwrap();
        assert_reported(&watch.changed().await, &path);
        assert!(is_quiet(&mut watch).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_may_be_created_later() {
        let (folder, _, _) = watched_file();
        let path = folder.path().join("later");
        let mut watch = FileWatch::new([path.clone(), path.clone()]);
        assert!(is_quiet(&mut watch).await);
        fs::write(&path, "here").unwrap();
        assert_reported(&watch.changed().await, &path);
    }

    /// Like the kubelet: each version's files are in their own directory, and a symlink points to the current one.
    #[cfg(unix)]
    #[tokio::test(start_paused = true)]
    async fn a_swapped_config_map_is_reported() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (version, text) in [("..v1", "one"), ("..v2", "two")] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("rules"), text).unwrap();
        }
        symlink("..v1", at("..data")).unwrap();
        symlink("..data/rules", at("rules")).unwrap();
        let mut watch = FileWatch::new([at("rules")]);
        assert!(is_quiet(&mut watch).await);
        symlink("..v2", at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        fs::remove_dir_all(at("..v1")).unwrap();
        assert_reported(&watch.changed().await, &at("rules"));
        assert_eq!(fs::read_to_string(at("rules")).unwrap(), "two");
        assert!(is_quiet(&mut watch).await);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_files_that_changed_are_reported() {
        let (folder, path, _) = watched_file();
        let other = folder.path().join("other");
        fs::write(&other, "one").unwrap();
        let mut watch = FileWatch::new([path.clone(), other.clone()]);
        fs::write(&other, "one and two").unwrap();
        assert_reported(&watch.changed().await, &other);
        fs::write(&path, "1").unwrap();
        fs::write(&other, "2").unwrap();
        let mut reported = watch.changed().await;
        reported.sort();
        assert_eq!(reported, [other, path]);
    }

    /// States are passed in, because a real writer would have to be stopped half-way.
    #[test]
    fn a_file_being_written_is_not_reported_until_it_is_stable() {
        let (_folder, path, _watch) = {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let _guard = runtime.enter();
            watched_file()
        };
        let mut file = WatchedFile::new(path);
        let FileState::Present(first) = file.reported else { panic!("the file exists") };
        let written = |bytes| FileState::Present(Signature { bytes, ..first });
        for bytes in 10..20 {
            assert!(!file.observe(written(bytes)));
        }
        assert!(!file.observe(FileState::Missing));
        assert!(!file.observe(written(30)), "seen only once");
        assert!(file.observe(written(30)));
        assert!(!file.observe(written(30)));
        assert!(!file.observe(written(3)));
        assert!(!file.observe(written(30)), "back to the reported state");
        assert!(!file.observe(written(30)));
        assert!(!file.observe(FileState::Missing) && !file.observe(FileState::Missing));
        assert!(!file.observe(written(30)));
        assert!(file.observe(written(30)), "the same file, but it was missing for two polls");
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_reported_within_three_polls_and_survives_cancellation() {
        let (_folder, path, mut watch) = watched_file();
        assert!(is_quiet(&mut watch).await);
        fs::write(&path, "one and two").unwrap();
        for _ in 0..3 {
            // Cancelled at once, in the middle of a poll.
            let _ = timeout(Duration::ZERO, watch.changed()).await;
        }
        let begun = Instant::now();
        assert_reported(&watch.changed().await, &path);
        assert!(begun.elapsed() <= 3 * POLL_INTERVAL, "{:?}", begun.elapsed());
    }
}
