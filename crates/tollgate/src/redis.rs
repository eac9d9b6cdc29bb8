//! State kept in Redis or Valkey, where other processes see it too.

#[cfg(test)]
mod parity;
mod script;
mod stored_key;
#[allow(dead_code, reason = "the store that fills parcels is assembled elsewhere")]
mod wire;
