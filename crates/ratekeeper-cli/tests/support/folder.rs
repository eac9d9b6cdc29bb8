//! Files of rules in a folder of their own, and what `ratekeeper rules` says of them.

use std::fs;
use tempfile::TempDir;

use super::{Told, ratekeeper, told};

/// A folder with files in it, and the command run there, so that files have short names.
pub(crate) struct Folder(pub(crate) TempDir);

impl Folder {
    pub(crate) fn new(files: &[(&str, &str)]) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        Folder(folder)
    }

    pub(crate) fn rules(&self, arguments: &[&str]) -> Told {
        told(ratekeeper(&["rules"]).current_dir(self.0.path()).args(arguments))
    }
}

/// It ended in this code, printed this, and complained of nothing.
#[track_caller]
pub(crate) fn said(told: &Told, code: i32, stdout: &str) {
    assert_eq!((told.code, told.stdout.as_str(), told.stderr.as_str()), (Some(code), stdout, ""));
}
