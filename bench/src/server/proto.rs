//! The gRPC messages that are sent, and the parts of the responses that are read.

/// Envoy's request.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RateLimitRequest {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Entry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// The response to Envoy.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    pub(crate) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<DescriptorStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DescriptorStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) current_limit: Option<CurrentLimit>,
    #[prost(uint32, tag = "3")]
    pub(crate) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) duration_until_reset: Option<Span>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CurrentLimit {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub(crate) unit: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Span {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

/// throttlecrab's request.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ThrottleRequest {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(int32, tag = "2")]
    pub(crate) max_burst: i32,
    #[prost(int32, tag = "3")]
    pub(crate) count_per_period: i32,
    #[prost(int32, tag = "4")]
    pub(crate) period: i32,
    #[prost(int32, tag = "5")]
    pub(crate) quantity: i32,
}

/// The first field of the response to a unary call: Envoy's is a code, where 1 is OK and 2 is over the limit;
/// throttlecrab's is a boolean. On the wire, true is 1.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CallResult {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
}

/// Ratekeeper's request.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CheckRequest {
    #[prost(string, tag = "1")]
    pub(crate) client_key: String,
    #[prost(string, tag = "2")]
    pub(crate) endpoint: String,
    #[prost(uint32, optional, tag = "7")]
    pub(crate) cost: Option<u32>,
}

/// The same on a stream.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CheckStreamRequest {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(message, optional, tag = "2")]
    pub(crate) check: Option<CheckRequest>,
}

/// The lower bound's response: all fields that Ratekeeper fills in for a matching limit.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CheckStreamResponse {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(message, optional, tag = "2")]
    pub(crate) result: Option<CheckResponse>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CheckResponse {
    #[prost(bool, tag = "1")]
    pub(crate) allowed: bool,
    #[prost(uint32, optional, tag = "2")]
    pub(crate) remaining: Option<u32>,
    #[prost(uint64, optional, tag = "3")]
    pub(crate) reset_at: Option<u64>,
    #[prost(uint32, optional, tag = "5")]
    pub(crate) limit: Option<u32>,
    #[prost(uint64, optional, tag = "6")]
    pub(crate) window: Option<u64>,
    #[prost(string, tag = "7")]
    pub(crate) rule: String,
    #[prost(int32, tag = "8")]
    pub(crate) reason: i32,
}

/// The fields of a response on a stream that are read; the rest is skipped, which allocates nothing.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StreamResult {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(message, optional, tag = "2")]
    pub(crate) result: Option<Allowed>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Allowed {
    #[prost(bool, tag = "1")]
    pub(crate) allowed: bool,
}
