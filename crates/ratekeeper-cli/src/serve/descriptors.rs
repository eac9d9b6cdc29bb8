//! How many files this process may have open.

/// Raises the limit on open files as far as that is possible without privileges. Shells and init systems leave it at 1024 for
/// the sake of programs that use `select`, which this is not.
#[cfg(unix)]
pub(super) fn raise_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    /// What is asked for where there is no hard limit: Linux and macOS both refuse to have no soft one.
    const MOST: u64 = 1 << 20;

    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(MOST);
    if current.is_some_and(|current| current < wanted)
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
    {
        tracing::warn!(%error, "the limit on open files can't be raised to {wanted}");
    }
}

/// How many files may be open; `None` if that is not bounded.
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
