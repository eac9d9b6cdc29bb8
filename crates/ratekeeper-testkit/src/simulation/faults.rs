//! What goes wrong between nodes and server, and how often.

/// Faults and message delays. Times are in seconds; `INFINITY` means never.
#[derive(Clone, Copy, Debug)]
pub struct FaultPlan {
    /// Range of the delay of a message.
    pub delay: (f64, f64),
    /// Probability that a message is lost.
    pub loss: f64,
    /// Probability that a message is so late that the node may have stopped waiting.
    pub late: f64,
    /// Probability that a renewal can't be sent.
    pub unsent: f64,
    /// Probability that a caller that has waited until the timeout abandons its request.
    pub abandon: f64,
    /// Mean time between stalls of each node.
    pub stall: f64,
    /// Mean time between crashes of each node.
    pub crash: f64,
    /// Mean time between orderly shutdowns of each node.
    pub stop: f64,
    /// Mean time between short outages of the server. It keeps its state.
    pub outage: f64,
    /// The largest drift of the nodes' clocks.
    pub drift: f64,
    /// How long a node waits for a reply.
    pub timeout: f64,
}

impl FaultPlan {
    /// No faults, and a round trip of about a millisecond.
    pub const NO_FAULTS: FaultPlan = FaultPlan {
        delay: (0.000_4, 0.000_6),
        loss: 0.0,
        late: 0.0,
        unsent: 0.0,
        abandon: 0.0,
        stall: f64::INFINITY,
        crash: f64::INFINITY,
        stop: f64::INFINITY,
        outage: f64::INFINITY,
        drift: 0.0,
        timeout: f64::INFINITY,
    };
}
