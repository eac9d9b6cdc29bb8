//! Files that may change while the server runs.
//!
//! They are looked at ten times a second, by name. Looking costs a few microseconds, and sees what notices from the
//! kernel miss: files on network drives, a whole folder exchanged for another, and the symlink `..data` by which
//! Kubernetes swaps a ConfigMap. A change is reported once a file has looked the same twice in a row, so that one
//! being written is not read by half.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often the files are looked at.
const BEAT: Duration = Duration::from_millis(100);

/// Follows some files by name, also where the name is a symlink, and where no file has the name yet.
///
/// Make it before the files are read for the first time: what changes between making it and reading is then read
/// twice, and never missed.
#[derive(Debug)]
pub struct FileWatch {
    files: Vec<WatchedFile>,
    beat: Interval,
}

impl FileWatch {
    /// Follows these files, as they are now.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> FileWatch {
        let mut beat = interval(BEAT);
        // After a pause, one look and not all those missed: two looks at one instant would see no writer at work.
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let paths: BTreeSet<PathBuf> = paths.into_iter().collect();
        FileWatch { files: paths.into_iter().map(WatchedFile::new).collect(), beat }
    }

    /// Waits until at least one of the files is there and not as it was when it was last reported, and gives those.
    ///
    /// A file that goes away is not reported, as there is nothing to read; when it is back, it is. Dropping the
    /// future loses no change.
    pub async fn changed(&mut self) -> Vec<PathBuf> {
        loop {
            self.beat.tick().await;
            let paths: Vec<_> = self.files.iter().map(|file| file.path.clone()).collect();
            // A network drive may take its time, and nobody else should wait for it.
            let looks = spawn_blocking(move || paths.iter().map(|path| Look::at(path)).collect::<Vec<_>>());
            let Ok(looks) = looks.await else { continue };
            let files = self.files.iter_mut().zip(looks);
            let changed = files.filter_map(|(file, look)| file.has_changed(look).then(|| file.path.clone()));
            let changed: Vec<_> = changed.collect();
            if !changed.is_empty() {
                return changed;
            }
        }
    }
}

/// A file, and what is known of it.
#[derive(Debug)]
struct WatchedFile {
    path: PathBuf,
    /// How it stood when that was last told, or when it was first seen.
    told: Look,
    /// How it looked the last time.
    seen: Look,
}

impl WatchedFile {
    fn new(path: PathBuf) -> WatchedFile {
        let look = Look::at(&path);
        WatchedFile { path, told: look, seen: look }
    }

    /// Takes in how the file looks now, and says whether it is to be reported.
    fn has_changed(&mut self, look: Look) -> bool {
        let is_still = look == self.seen;
        self.seen = look;
        if !is_still || look == self.told {
            return false;
        }
        self.told = look;
        if look == Look::Missing {
            tracing::warn!(file = %self.path.display(), "a file is gone: what it last said stays in force");
        }
        look != Look::Missing
    }
}

/// How a file looks from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    There(Signature),
    /// Not there, or hidden from us.
    Missing,
}

impl Look {
    /// Follows symlinks: what counts is the file that would be read.
    fn at(path: &Path) -> Look {
        fs::metadata(path).map_or(Look::Missing, |metadata| Look::There(Signature::of(&metadata)))
    }
}

/// What can hardly stay the same when a file is written to or exchanged: which file it is, how long, and the times in
/// nanoseconds at which its content and its record were changed. The second can't be set back by a program that
/// restores the first.
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

/// What can hardly stay the same when a file is written to or exchanged: how long it is, and when it was changed.
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

    /// A folder with the file `rules` in it, which says `one`, and a watch over it.
    fn watched() -> (TempDir, PathBuf, FileWatch) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules");
        fs::write(&path, "one").unwrap();
        let watch = FileWatch::new([path.clone()]);
        (folder, path, watch)
    }

    /// The clock is paused and jumps whenever nothing else is to be done, so a second here takes no time.
    async fn is_quiet(watch: &mut FileWatch) -> bool {
        timeout(Duration::from_secs(1), watch.changed()).await.is_err()
    }

    #[track_caller]
    fn same(reported: &[PathBuf], path: &Path) {
        assert_eq!(reported, [path.to_owned()]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_stays_as_it_is_is_never_reported() {
        let (_folder, path, mut watch) = watched();
        assert!(is_quiet(&mut watch).await);
        File::open(&path).unwrap();
        assert!(is_quiet(&mut watch).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rewrite_in_place_is_reported_once() {
        let (_folder, path, mut watch) = watched();
        fs::write(&path, "one and two").unwrap();
        same(&watch.changed().await, &path);
        assert!(is_quiet(&mut watch).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rewrite_of_the_same_size_with_the_old_time_is_reported() {
        let (_folder, path, mut watch) = watched();
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let was = Look::at(&path);
        // The system stamps times a few milliseconds coarse, so it may take some writes until it stamps another.
        while Look::at(&path) == was {
            fs::write(&path, "two").unwrap();
            File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        }
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), modified);
        same(&watch.changed().await, &path);
    }

    #[tokio::test(start_paused = true)]
    async fn an_atomic_rename_is_reported() {
        let (folder, path, mut watch) = watched();
        let new = folder.path().join("rules.new");
        fs::write(&new, "two").unwrap();
        fs::rename(&new, &path).unwrap();
        same(&watch.changed().await, &path);
        assert!(is_quiet(&mut watch).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_is_reported_when_it_is_back_and_not_while_it_is_gone() {
        let (_folder, path, mut watch) = watched();
        fs::remove_file(&path).unwrap();
        assert!(is_quiet(&mut watch).await);
        fs::write(&path, "one").unwrap();
        same(&watch.changed().await, &path);
        assert!(is_quiet(&mut watch).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_may_come_later() {
        let (folder, _, _) = watched();
        let path = folder.path().join("later");
        let mut watch = FileWatch::new([path.clone(), path.clone()]);
        assert!(is_quiet(&mut watch).await);
        fs::write(&path, "here").unwrap();
        same(&watch.changed().await, &path);
    }

    /// What the kubelet does: the files of each version lie in a folder of their own, and one symlink says which.
    #[cfg(unix)]
    #[tokio::test(start_paused = true)]
    async fn a_config_map_that_is_swapped_is_reported() {
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
        same(&watch.changed().await, &at("rules"));
        assert_eq!(fs::read_to_string(at("rules")).unwrap(), "two");
        assert!(is_quiet(&mut watch).await);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_files_that_changed_are_reported() {
        let (folder, path, _) = watched();
        let other = folder.path().join("other");
        fs::write(&other, "one").unwrap();
        let mut watch = FileWatch::new([path.clone(), other.clone()]);
        fs::write(&other, "one and two").unwrap();
        same(&watch.changed().await, &other);
        fs::write(&path, "1").unwrap();
        fs::write(&other, "2").unwrap();
        let mut reported = watch.changed().await;
        reported.sort();
        assert_eq!(reported, [other, path]);
    }

    /// Looks are handed in, because a real writer would have to be stopped in the middle.
    #[test]
    fn a_file_being_written_is_left_alone_until_it_stands_still() {
        let (_folder, path, _watch) = {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let _guard = runtime.enter();
            watched()
        };
        let mut file = WatchedFile::new(path);
        let Look::There(first) = file.told else { panic!("the file is there") };
        let written = |bytes| Look::There(Signature { bytes, ..first });
        for bytes in 10..20 {
            assert!(!file.has_changed(written(bytes)));
        }
        assert!(!file.has_changed(Look::Missing));
        assert!(!file.has_changed(written(30)), "it has been seen like this only once");
        assert!(file.has_changed(written(30)));
        assert!(!file.has_changed(written(30)));
        assert!(!file.has_changed(written(3)));
        assert!(!file.has_changed(written(30)), "back to what was reported");
        assert!(!file.has_changed(written(30)));
        assert!(!file.has_changed(Look::Missing) && !file.has_changed(Look::Missing));
        assert!(!file.has_changed(written(30)));
        assert!(file.has_changed(written(30)), "the same file, but it was away for long");
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_reported_within_three_looks_and_not_lost_when_nobody_waits() {
        let (_folder, path, mut watch) = watched();
        assert!(is_quiet(&mut watch).await);
        fs::write(&path, "one and two").unwrap();
        for _ in 0..3 {
            // Given up at once, in the middle of a look.
            let _ = timeout(Duration::ZERO, watch.changed()).await;
        }
        let begun = Instant::now();
        same(&watch.changed().await, &path);
        assert!(begun.elapsed() <= 3 * BEAT, "{:?}", begun.elapsed());
    }
}
