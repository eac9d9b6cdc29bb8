//! A master with replicas, and three Sentinels that watch them.

use super::redis::{Brand, RedisServer, RedisSetup};
use super::resp::RespReply;
use crate::patience::{Must, PATIENCE, within};

/// What the Sentinels call what they watch.
const NAME: &str = "ratekeeper";
/// How many must agree that the master is gone.
const QUORUM: usize = 2;

/// How Sentinels are to be started.
#[derive(Clone, Debug)]
pub struct SentinelsSetup {
    brand: Brand,
    replicas: usize,
    down_after_ms: u32,
    clock: Option<f64>,
    lines: Vec<(String, String)>,
    watch: Vec<(String, String)>,
}

impl SentinelsSetup {
    /// How many replicas there are; two unless told.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> SentinelsSetup {
        self.replicas = count;
        self
    }

    /// For how long a server must be silent to be taken for gone; a second and a half unless told.
    #[must_use]
    pub fn down_after_ms(mut self, down_after_ms: u32) -> SentinelsSetup {
        self.down_after_ms = down_after_ms;
        self
    }

    /// Has the clocks of the master and its replicas differ from the machine's; the Sentinels have that one.
    #[must_use]
    pub fn clock(mut self, ahead_seconds: f64) -> SentinelsSetup {
        self.clock = Some(ahead_seconds);
        self
    }

    /// A setting of the master and its replicas, as a line of `redis.conf` has it.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> SentinelsSetup {
        self.lines.push((name.to_owned(), value.to_owned()));
        self
    }

    /// What clients of the master and its replicas must know.
    #[must_use]
    pub fn password(mut self, password: &str) -> SentinelsSetup {
        let password = format!("\"{password}\"");
        self.watch.push(("sentinel".to_owned(), format!("auth-pass {NAME} {password}")));
        self.set("requirepass", &password).set("masterauth", &password)
    }

    /// What clients of the Sentinels must know.
    #[must_use]
    pub fn sentinel_password(mut self, password: &str) -> SentinelsSetup {
        let password = format!("\"{password}\"");
        self.watch.push(("requirepass".to_owned(), password.clone()));
        self.watch.push(("sentinel".to_owned(), format!("sentinel-pass {password}")));
        self
    }

    /// Starts all of them, and waits until every Sentinel knows of all the others.
    pub fn start(self) -> Sentinels {
        let data = || {
            let plain = RedisServer::setup(self.brand);
            let plain = self.clock.into_iter().fold(plain, RedisSetup::clock);
            self.lines.iter().fold(plain, |setup, (name, value)| setup.set(name, value))
        };
        let mut servers = vec![data().start()];
        let of_master = format!("127.0.0.1 {}", servers[0].port());
        servers.extend((0..self.replicas).map(|_| data().set("replicaof", &of_master).start()));
        let sentinels = (0..3).map(|_| self.sentinel(&of_master).start()).collect();
        let started = Sentinels { servers, sentinels };
        started.await_acquaintance();
        started
    }

    fn sentinel(&self, master: &str) -> RedisSetup {
        let watch = |what: &str, value: &str| format!("{what} {NAME} {value}");
        let plain = RedisServer::setup(self.brand)
            .sentinel()
            .set("sentinel", &watch("monitor", &format!("{master} {QUORUM}")))
            .set("sentinel", &watch("down-after-milliseconds", &self.down_after_ms.to_string()))
            // After so long a failover that did not come to its end is begun anew.
            .set("sentinel", &watch("failover-timeout", "5000"));
        self.watch.iter().fold(plain, |setup, (name, value)| setup.set(name, value))
    }
}

/// A master, its replicas and three Sentinels, all killed when this is dropped.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl Sentinels {
    /// A master of Redis with two replicas.
    pub fn start() -> Sentinels {
        Sentinels::setup(Brand::Redis).start()
    }

    /// With settings.
    pub fn setup(brand: Brand) -> SentinelsSetup {
        SentinelsSetup {
            brand,
            replicas: 2,
            down_after_ms: 1500,
            clock: None,
            lines: Vec::new(),
            watch: Vec::new(),
        }
    }

    /// What the Sentinels call what they watch.
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// Where all of it is, as clients are told.
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/{NAME}", self.addresses().join(","))
    }

    /// Where the Sentinels listen.
    pub fn addresses(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::address).collect()
    }

    /// Which of the servers the running Sentinels agree to be the master, if they do and if it says so, too.
    pub fn find_master(&self) -> Option<usize> {
        let ask = ["SENTINEL", "get-master-addr-by-name", NAME];
        let mut told = self.sentinels.iter().filter_map(|sentinel| sentinel.glance(&ask));
        let first = told.next()?;
        if !told.all(|other| other == first) {
            return None;
        }
        let port = first.array().get(1)?.integer();
        let found = self.servers.iter().position(|server| i64::from(server.port()) == port)?;
        self.is_master(found).then_some(found)
    }

    /// Which of the servers is the master. Waits while they are finding a new one.
    #[track_caller]
    pub fn master(&self) -> usize {
        within(PATIENCE, "the Sentinels agree on a master", || self.find_master())
    }

    /// Kills the master, and tells which of the servers it was. The Sentinels need a while to notice.
    pub fn kill_master(&mut self) -> usize {
        let master = self.master();
        self.servers[master].kill();
        master
    }

    /// Waits until another of the servers is the master, and tells which.
    #[track_caller]
    pub fn await_other_master(&self, than: usize) -> usize {
        within(PATIENCE, "the Sentinels make another server the master", || {
            self.find_master().filter(|master| *master != than)
        })
    }

    /// Has the Sentinels make a replica the master while the old one still runs, and tells which.
    pub fn fail_over(&self) -> usize {
        let before = self.master();
        within(PATIENCE, "a Sentinel begins a failover", || {
            let answer = self.sentinels[0].command(&["SENTINEL", "failover", NAME]);
            // It refuses while it knows of no replica that is fit.
            answer.error().is_none().then_some(())
        });
        self.await_other_master(before)
    }

    /// The first master and the replicas, whatever they are now.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// One of the servers, to pause, kill or restart it.
    pub fn server(&mut self, index: usize) -> &mut RedisServer {
        &mut self.servers[index]
    }

    /// One of the Sentinels, to pause, kill or restart it.
    pub fn sentinel(&mut self, index: usize) -> &mut RedisServer {
        &mut self.sentinels[index]
    }

    fn is_master(&self, index: usize) -> bool {
        let role = self.servers[index].glance(&["ROLE"]);
        role.is_some_and(|role| role.array().first().is_some_and(|role| role.text() == "master"))
    }

    /// A Sentinel tells the others of itself every two seconds; until they are acquainted, nobody can be outvoted.
    fn await_acquaintance(&self) {
        self.set_period("publish-period", "100");
        // Asked once a second, a master that is well could seem silent for longer than that.
        self.set_period("ping-period", "200");
        let others = i64::try_from(self.sentinels.len() - 1).must("there are few of them");
        let replicas = i64::try_from(self.servers.len() - 1).must("there are few of them");
        for sentinel in &self.sentinels {
            within(PATIENCE, "a Sentinel knows all others", || {
                let told = sentinel.command(&["SENTINEL", "master", NAME]);
                let number = |name| value_of(&told, name).map(|value| value.integer());
                let knows_all = number("num-other-sentinels") == Some(others);
                (knows_all && number("num-slaves") == Some(replicas)).then_some(())
            });
        }
        self.set_period("publish-period", "2000");
        for replica in &self.servers[1..] {
            within(PATIENCE, "a replica has all that its master has", || {
                (replica.info("master_link_status") == "up").then_some(())
            });
        }
    }

    fn set_period(&self, name: &str, period_ms: &str) {
        for sentinel in &self.sentinels {
            sentinel.command(&["SENTINEL", "DEBUG", name, period_ms]).done();
        }
    }
}

/// A value in a list of names and values.
fn value_of<'a>(told: &'a RespReply, name: &str) -> Option<&'a RespReply> {
    let pairs = told.array().chunks_exact(2);
    pairs.filter(|pair| pair[0].text() == name).map(|pair| &pair[1]).next()
}
