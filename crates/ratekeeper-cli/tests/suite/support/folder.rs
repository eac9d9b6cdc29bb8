//! Rule files in a temporary folder, and the output of `ratekeeper rules` on them.

use std::fs;
use tempfile::TempDir;

use super::{CommandOutput, ratekeeper, run};

/// A temporary folder with files. Commands run inside it, so that messages contain short file names.
pub(crate) struct Folder(pub(crate) TempDir);

impl Folder {
    pub(crate) fn new(files: &[(&str, &str)]) -> Folder {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        Folder(folder)
    }

    pub(crate) fn rules(&self, arguments: &[&str]) -> CommandOutput {
        run(ratekeeper(&["rules"]).current_dir(self.0.path()).args(arguments))
    }
}

/// Fails unless the command ended with this exit code and stdout, and an empty stderr.
#[track_caller]
pub(crate) fn assert_output(output: &CommandOutput, code: i32, stdout: &str) {
    assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), (Some(code), stdout, ""));
}
