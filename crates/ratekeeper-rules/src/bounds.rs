//! The bounds of a rule file, each defined once: the reader, the schema and the importers use these.

/// The maximum number of rules in a file.
pub const MAX_RULES: usize = 100_000;

/// The maximum length of a rule's id and of an attribute's name, in bytes.
pub const MAX_ID_BYTES: usize = 64;

/// The maximum length of any other name or value, in bytes.
pub const MAX_TEXT_BYTES: usize = 4096;

/// The maximum number of dimensions in a rule's key. Together with the parts that stores add, they stay below the
/// maximum number of parts of a key.
pub const MAX_DIMENSIONS: usize = 8;

/// The maximum number of entries in a descriptor that a rule matches.
pub const MAX_DESCRIPTOR_ENTRIES: usize = 16;

/// The maximum `store_timeout`, in milliseconds. It is short because requests wait for the store.
pub const MAX_TIMEOUT_MS: u16 = 1_000;
