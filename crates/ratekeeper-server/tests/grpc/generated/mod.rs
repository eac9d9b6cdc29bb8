//! The messages and clients as they are generated from `proto/`, each package in a module of its name.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    clippy::trivially_copy_pass_by_ref,
    reason = "it is generated, and not everybody uses all of it"
)]

pub(crate) mod envoy {
    pub(crate) mod config {
        pub(crate) mod core {
            pub(crate) mod v3;
        }
    }
    pub(crate) mod extensions {
        pub(crate) mod common {
            pub(crate) mod ratelimit {
                pub(crate) mod v3;
            }
        }
    }
    pub(crate) mod service {
        pub(crate) mod ratelimit {
            pub(crate) mod v3;
        }
    }
    pub(crate) mod r#type {
        pub(crate) mod v3;
    }
}

pub(crate) mod ratekeeper {
    pub(crate) mod v1;
}
