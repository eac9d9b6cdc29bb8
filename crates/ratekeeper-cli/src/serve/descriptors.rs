//! The limit on open files.

/// Raises the limit on open files as far as possible without privileges. Shells and init systems leave it at 1024 for
/// the sake of programs that use `select`, which this one does not.
#[cfg(unix)]
pub(super) fn raise_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    /// The value requested if there is no hard limit: Linux and macOS both reject an unlimited soft limit.
    const MAX_WITHOUT_HARD_LIMIT: u64 = 1 << 20;

    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let target = maximum.unwrap_or(MAX_WITHOUT_HARD_LIMIT);
    if current.is_some_and(|current| current < target)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(target), maximum })
    {
        tracing::warn!(%error, "cannot raise the open file limit to {target}");
    }
}

/// The limit on open files, or `None` if there is none.
#[cfg(unix)]
pub(super) fn limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

#[cfg(not(unix))]
pub(super) fn raise_limit() {}

#[cfg(not(unix))]
pub(super) fn limit() -> Option<u64> {
    None
}
