//! Collects the errors in all settings, so that they are reported at once.

use super::SettingOrigin;
use anyhow::{Result, bail};
use ratekeeper::rules::{Diagnostic, Diagnostics};

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

    /// `report` formats the errors in the config file.
    ///
    /// # Errors
    /// Returns a report of all errors, if there are any.
    pub(super) fn finish(self, report: impl FnOnce(&[Diagnostic]) -> Option<String>) -> Result<()> {
        let in_file = report(&self.in_file.finish()).unwrap_or_default();
        let report = in_file + &self.elsewhere.join("\n");
        if report.is_empty() { Ok(()) } else { bail!("{}", report.trim_end()) }
    }
}
