//! A master with replicas, and three Sentinels that monitor them.

use super::redis::{Brand, RedisServer, RedisSetup};
use super::resp::RespReply;
use crate::wait::{OrFail, TEST_TIMEOUT, wait_for};

/// The master's name in the Sentinels' configuration.
const MASTER_NAME: &str = "ratekeeper";
/// How many Sentinels must agree that the master is down.
const QUORUM: usize = 2;

/// The settings of Sentinels to start.
#[derive(Clone, Debug)]
pub struct SentinelsSetup {
    brand: Brand,
    replicas: usize,
    down_after_ms: u32,
    clock_offset: Option<f64>,
    config: Vec<(String, String)>,
    sentinel_config: Vec<(String, String)>,
}

impl SentinelsSetup {
    /// The number of replicas; two by default.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> SentinelsSetup {
        self.replicas = count;
        self
    }

    /// How long a server must be silent to count as down; 1.5 s by default.
    #[must_use]
    pub fn down_after_ms(mut self, down_after_ms: u32) -> SentinelsSetup {
        self.down_after_ms = down_after_ms;
        self
    }

    /// The offset of the clocks of the master and its replicas from the machine's, in seconds; Sentinels use the
    /// machine's.
    #[must_use]
    pub fn clock(mut self, ahead_seconds: f64) -> SentinelsSetup {
        self.clock_offset = Some(ahead_seconds);
        self
    }

    /// A `redis.conf` setting of the master and its replicas.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> SentinelsSetup {
        self.config.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The password of the master and its replicas.
    #[must_use]
    pub fn password(mut self, password: &str) -> SentinelsSetup {
        let password = format!("\"{password}\"");
        self.sentinel_config.push(("sentinel".to_owned(), format!("auth-pass {MASTER_NAME} {password}")));
        self.set("requirepass", &password).set("masterauth", &password)
    }

    /// The password of the Sentinels.
    #[must_use]
    pub fn sentinel_password(mut self, password: &str) -> SentinelsSetup {
        let password = format!("\"{password}\"");
        self.sentinel_config.push(("requirepass".to_owned(), password.clone()));
        self.sentinel_config.push(("sentinel".to_owned(), format!("sentinel-pass {password}")));
        self
    }

    /// Starts all servers, and waits until every Sentinel knows all others.
    pub fn start(self) -> Sentinels {
        let data = || {
            let plain = RedisServer::setup(self.brand);
            let plain = self.clock_offset.into_iter().fold(plain, RedisSetup::clock);
            self.config.iter().fold(plain, |setup, (name, value)| setup.set(name, value))
        };
        let mut servers = vec![data().start()];
        let of_master = format!("127.0.0.1 {}", servers[0].port());
        servers.extend((0..self.replicas).map(|_| data().set("replicaof", &of_master).start()));
        let sentinels = (0..3).map(|_| self.sentinel_setup(&of_master).start()).collect();
        let started = Sentinels { servers, sentinels };
        started.wait_until_all_known();
        started
    }

    fn sentinel_setup(&self, master: &str) -> RedisSetup {
        let watch = |what: &str, value: &str| format!("{what} {MASTER_NAME} {value}");
        let plain = RedisServer::setup(self.brand)
            .sentinel()
            .set("sentinel", &watch("monitor", &format!("{master} {QUORUM}")))
            .set("sentinel", &watch("down-after-milliseconds", &self.down_after_ms.to_string()))
            // After this long an unfinished failover is started again.
            .set("sentinel", &watch("failover-timeout", "5000"));
        self.sentinel_config.iter().fold(plain, |setup, (name, value)| setup.set(name, value))
    }
}

/// A master, its replicas and three Sentinels, all killed when this is dropped.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl Sentinels {
    /// Starts a Redis master with two replicas.
    pub fn start() -> Sentinels {
        Sentinels::setup(Brand::Redis).start()
    }

    /// Settings for Sentinels, to be changed before they start.
    pub fn setup(brand: Brand) -> SentinelsSetup {
        SentinelsSetup {
            brand,
            replicas: 2,
            down_after_ms: 1500,
            clock_offset: None,
            config: Vec::new(),
            sentinel_config: Vec::new(),
        }
    }

    /// The master's name in the Sentinels' configuration.
    pub fn master_name(&self) -> &'static str {
        MASTER_NAME
    }

    /// The store URL, which names the Sentinels and the master's name.
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/{MASTER_NAME}", self.addresses().join(","))
    }

    /// The addresses of the Sentinels.
    pub fn addresses(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::address).collect()
    }

    /// The index of the master. Returns `None` unless all running Sentinels agree and the server itself reports that
    /// role.
    pub fn find_master(&self) -> Option<usize> {
        let ask = ["SENTINEL", "get-master-addr-by-name", MASTER_NAME];
        let mut views = self.sentinels.iter().filter_map(|sentinel| sentinel.probe(&ask));
        let first = views.next()?;
        if !views.all(|other| other == first) {
            return None;
        }
        let port = first.array().get(1)?.integer();
        let found = self.servers.iter().position(|server| i64::from(server.port()) == port)?;
        self.is_master(found).then_some(found)
    }

    /// The index of the master. Waits during a failover.
    #[track_caller]
    pub fn master(&self) -> usize {
        wait_for(TEST_TIMEOUT, "the Sentinels agree on a master", || self.find_master())
    }

    /// Kills the master, and returns its index. The Sentinels take a while to notice.
    pub fn kill_master(&mut self) -> usize {
        let master = self.master();
        self.servers[master].kill();
        master
    }

    /// Waits until another server is the master, and returns its index.
    #[track_caller]
    pub fn wait_for_other_master(&self, than: usize) -> usize {
        wait_for(TEST_TIMEOUT, "the Sentinels promote another server", || {
            self.find_master().filter(|master| *master != than)
        })
    }

    /// Has the Sentinels promote a replica while the master runs, and returns its index.
    pub fn fail_over(&self) -> usize {
        let before = self.master();
        wait_for(TEST_TIMEOUT, "a Sentinel starts a failover", || {
            let answer = self.sentinels[0].command(&["SENTINEL", "failover", MASTER_NAME]);
            // It answers with an error while it knows no suitable replica.
            answer.error().is_none().then_some(())
        });
        self.wait_for_other_master(before)
    }

    /// The initial master and its replicas, whatever their roles are now.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// One of the servers, to pause, kill or restart.
    pub fn server(&mut self, index: usize) -> &mut RedisServer {
        &mut self.servers[index]
    }

    /// One of the Sentinels, to pause, kill or restart.
    pub fn sentinel(&mut self, index: usize) -> &mut RedisServer {
        &mut self.sentinels[index]
    }

    fn is_master(&self, index: usize) -> bool {
        let role = self.servers[index].probe(&["ROLE"]);
        role.is_some_and(|role| role.array().first().is_some_and(|role| role.text() == "master"))
    }

    /// Waits until all Sentinels know each other and all replicas; until then they have no majority. Speeds up their
    /// announcements, sent every two seconds by default, for the time being.
    fn wait_until_all_known(&self) {
        self.set_period("publish-period", "100");
        // Pinged once a second, a healthy master could seem silent for longer than the timeout.
        self.set_period("ping-period", "200");
        let others = i64::try_from(self.sentinels.len() - 1).or_fail("too many servers");
        let replicas = i64::try_from(self.servers.len() - 1).or_fail("too many servers");
        for sentinel in &self.sentinels {
            wait_for(TEST_TIMEOUT, "a Sentinel knows all others", || {
                let state = sentinel.command(&["SENTINEL", "master", MASTER_NAME]);
                let number = |name| value_of(&state, name).map(|value| value.integer());
                let knows_all = number("num-other-sentinels") == Some(others);
                (knows_all && number("num-slaves") == Some(replicas)).then_some(())
            });
        }
        self.set_period("publish-period", "2000");
        for replica in &self.servers[1..] {
            wait_for(TEST_TIMEOUT, "a replica is in sync with its master", || {
                (replica.info("master_link_status") == "up").then_some(())
            });
        }
    }

    fn set_period(&self, name: &str, period_ms: &str) {
        for sentinel in &self.sentinels {
            sentinel.command(&["SENTINEL", "DEBUG", name, period_ms]).expect_ok();
        }
    }
}

/// The value after a name in a flat list of names and values.
fn value_of<'a>(reply: &'a RespReply, name: &str) -> Option<&'a RespReply> {
    let pairs = reply.array().chunks_exact(2);
    pairs.filter(|pair| pair[0].text() == name).map(|pair| &pair[1]).next()
}
