//! Collects the errors in all settings, so that they are reported at once.

use super::SettingOrigin;
use super::file::ConfigFile;
use anyhow::{Result, bail};
use ratekeeper::rules::Diagnostics;

/// The errors in settings from all sources.
#[derive(Debug, Default)]
pub(super) struct SettingErrors {
    /// The errors in the config file, which are shown with their lines.
    pub(super) in_file: Diagnostics,
    /// The errors in flags and variables, one line each.
    elsewhere: Vec<String>,
}

impl SettingErrors {
    /// Adds an error in a value, with what to write instead.
    pub(super) fn add(&mut self, origin: &SettingOrigin, message: impl Into<String>) {
        let message = message.into();
        match origin {
            SettingOrigin::File(_, place) => self.in_file.error(*place, message),
            SettingOrigin::Default | SettingOrigin::Variable(_) | SettingOrigin::Flag(_) => {
                self.elsewhere.push(format!("{message} (from {origin})"));
            }
        }
    }

    /// # Errors
    /// Returns a report of all errors, if there are any.
    pub(super) fn finish(self, file: Option<&ConfigFile>) -> Result<()> {
        let in_file = self.in_file.finish();
        let report = file.map(|file| file.report(&in_file)).unwrap_or_default() + &self.elsewhere.join("\n");
        if report.is_empty() { Ok(()) } else { bail!("{}", report.trim_end()) }
    }
}
