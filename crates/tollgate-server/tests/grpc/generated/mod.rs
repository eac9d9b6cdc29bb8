//! The messages and clients as they are generated from `proto/`, each package in a module of its name.

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

pub(crate) mod tollgate {
    pub(crate) mod v1;
}
