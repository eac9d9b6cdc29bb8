//! Authentication: passwords and ACL users.

use super::{AMPLE_TIMEOUT, connect, connected, only_node, take};
use ratekeeper_testkit::servers::{Brand, RedisServer};

/// The ACL rules that these tests' commands need.
const ACL_RULES: &str = "on >s3cret/@ resetkeys ~* resetchannels -@all +evalsha +script|load +incrby +time +role \
                     +client|setname +info";

pub(super) async fn connection_error(url: &str) -> String {
    let server_set = connect(url);
    assert!(!server_set.wait_until_ready(AMPLE_TIMEOUT).await, "{url}");
    only_node(&server_set).failure().map(|failure| failure.message).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_needs_few_permissions() {
    for brand in Brand::ALL {
        let server = RedisServer::setup(brand).user("default", "off").user("gate", ACL_RULES).start();
        let server_set = connected(&format!("redis://gate:s3cret%2F%40@{}", server.address())).await;
        assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Ok(1));
        let error = connection_error(&format!("redis://gate:wr0ng@{}", server.address())).await;
        assert!(error.contains("authentication failed for user gate") && !error.contains("wr0ng"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_without_a_user_is_the_default_users() {
    let server = RedisServer::setup(Brand::Redis).password("s3cret").start();
    let server_set = connected(&server.url()).await;
    assert_eq!(take(&server_set, "a", AMPLE_TIMEOUT).await, Ok(1));
    let error = connection_error(&format!("redis://{}", server.address())).await;
    assert!(error.contains("NOAUTH") || error.contains("uthentication"), "{error}");
}
