//! The arithmetic of Ratekeeper: values and laws, and nothing that touches the world.
//!
//! A *quota* is how much per how long; a *law* is the algorithm; a *limit* is a quota under a law. A *draw* asks a
//! limit for units under a key; a *reading* is what that limit said; a *decision* is what the client hears.
//!
//! This crate does no I/O, reads no clock and starts no thread. Every number is an integer below 2^53, so that the
//! same step runs unchanged inside a store whose only number is a double. What could overflow is refused when a
//! [`Limit`] is built; afterwards nothing can fail.
//!
//! ```
//! use ratekeeper_core::{Ask, Law, Limit, Micros, Quota};
//!
//! let quota: Quota = "10/s burst 3".parse()?;
//! let limit = Limit::new(Law::TokenBucket, quota)?;
//! let now = Micros::new(1_700_000_000_000_000);
//!
//! let step = limit.step(None, now, Ask::exactly(2));
//! assert_eq!(step.granted, Some(2));
//! assert_eq!(limit.read(step, now, Ask::exactly(2)).remaining(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod ask;
mod decision;
mod draw;
mod figures;
mod former;
mod key;
mod law;
mod lease;
mod limit;
mod quota;
mod reading;
mod state;
mod terms;
mod time;

pub use ask::{Act, Ask, PermitId};
pub use decision::Decision;
pub use draw::{Draw, Draws, Failure, MAX_DRAWS};
pub use figures::{Figures, WindowStart};
pub use former::Former;
pub use key::{Key, KeyError, KeyRef, MAX_KEY_BYTES, MAX_KEY_PARTS, Scope};
pub use law::{Align, Earlier, Holders, Law, Leak, Log, LogSize, Roll, Zone, ZoneError};
pub use lease::{Held, Lent, Loan, Report, TERM, Wish};
pub use limit::{Limit, LimitError, Step};
pub use quota::{Quota, QuotaError};
pub use reading::{Answer, Outcome, Outlook, Reading, Retry};
pub use state::State;
pub use terms::{Consistency, FailureMode, Terms};
pub use time::{Clock, MOST_BACK, Micros, Span};
