//! A fake Redis: the few commands that the script calls, on a map in memory, with a clock that the test controls.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// The keys and the clock of a fake server.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeData {
    pub(crate) now_micros: u64,
    /// How many milliseconds an expired key stays. `None` means forever.
    pub(crate) grace_ms: Option<u64>,
    pub(crate) values: BTreeMap<Vec<u8>, FakeValue>,
    /// The error with which writes are rejected. `None` if they are accepted.
    pub(crate) write_error: Option<&'static str>,
    /// Whether the current call has written anything.
    pub(crate) has_written: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FakeValue {
    pub(crate) data: FakeValueKind,
    pub(crate) expires_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FakeValueKind {
    Text(Vec<u8>),
    List(VecDeque<Vec<u8>>),
    /// Score and member, sorted.
    Sorted(Vec<(u64, Vec<u8>)>),
}

/// The reply to a command.
pub(crate) enum FakeReply {
    Nil,
    Number(i64),
    Text(Vec<u8>),
    Array(Vec<FakeReply>),
    Ok,
    WrongType,
    Error(&'static str),
}

pub(crate) type SharedFake = Rc<RefCell<FakeData>>;

impl FakeData {
    /// Removes expired keys, as a server does on access.
    pub(crate) fn remove_expired(&mut self) {
        let now_ms = self.now_micros / 1000;
        if let Some(grace_ms) = self.grace_ms {
            self.values.retain(|_, value| value.expires_ms.is_none_or(|at| now_ms <= at + grace_ms));
        }
    }

    pub(crate) fn call(&mut self, command: &[Vec<u8>]) -> FakeReply {
        let name = String::from_utf8(command[0].to_ascii_uppercase()).unwrap();
        let args = &command[1..];
        if let Some(error) = self.check_write(&name) {
            return FakeReply::Error(error);
        }
        match name.as_str() {
            "TIME" => {
                let text = |number: u64| FakeReply::Text(number.to_string().into_bytes());
                FakeReply::Array(vec![text(self.now_micros / 1_000_000), text(self.now_micros % 1_000_000)])
            }
            "MGET" => FakeReply::Array(args.iter().map(|key| self.text(key)).collect()),
            "PSETEX" => {
                let lapses_ms = Some(self.now_micros / 1000 + number(&args[1]));
                assert!(number(&args[1]) > 0, "a server rejects a time to live of zero");
                self.values.insert(
                    args[0].clone(),
                    FakeValue { data: FakeValueKind::Text(args[2].clone()), expires_ms: lapses_ms },
                );
                FakeReply::Ok
            }
            "DEL" => FakeReply::Number(i64::from(self.values.remove(&args[0]).is_some())),
            "PEXPIRE" => {
                let at = self.now_micros / 1000 + number(&args[1]);
                let value = self.values.get_mut(&args[0]).expect("the key exists");
                value.expires_ms = Some(at);
                FakeReply::Number(1)
            }
            name if name.starts_with('Z') => self.call_sorted(name, args),
            name => self.call_list(name, args),
        }
    }

    /// The error for a rejected write, as servers return it: `OOM` only for commands that may grow memory, and only
    /// for the first write of a script.
    fn check_write(&mut self, name: &str) -> Option<&'static str> {
        let may_grow = matches!(name, "PSETEX" | "LSET" | "RPUSH" | "ZADD");
        let is_write = may_grow || matches!(name, "DEL" | "PEXPIRE" | "LTRIM" | "ZREM");
        let error = self
            .write_error
            .filter(|error| if error.starts_with("OOM") { may_grow && !self.has_written } else { is_write });
        self.has_written |= is_write && error.is_none();
        error
    }

    fn text(&self, key: &[u8]) -> FakeReply {
        match self.values.get(key).map(|value| &value.data) {
            Some(FakeValueKind::Text(text)) => FakeReply::Text(text.clone()),
            _ => FakeReply::Nil,
        }
    }

    fn call_list(&mut self, name: &str, args: &[Vec<u8>]) -> FakeReply {
        let is_new = !self.values.contains_key(&args[0]);
        let mut missing = VecDeque::new();
        let list = match self.values.get_mut(&args[0]).map(|value| &mut value.data) {
            None if name == "RPUSH" => {
                let empty = FakeValue { data: FakeValueKind::List(VecDeque::new()), expires_ms: None };
                let FakeValueKind::List(list) = &mut self.values.entry(args[0].clone()).or_insert(empty).data
                else {
                    unreachable!()
                };
                list
            }
            None => &mut missing,
            Some(FakeValueKind::List(list)) => list,
            Some(_) => return FakeReply::WrongType,
        };
        let index = |text: &[u8], length: usize| -> usize {
            let index = signed(text);
            let length = i64::try_from(length).unwrap();
            usize::try_from(if index < 0 { (length + index).max(0) } else { index }).unwrap()
        };
        let reply = match name {
            "LLEN" => FakeReply::Number(i64::try_from(list.len()).unwrap()),
            "LINDEX" => list
                .get(index(&args[1], list.len()))
                .map_or(FakeReply::Nil, |entry| FakeReply::Text(entry.clone())),
            "LRANGE" => {
                let (from, to) = (index(&args[1], list.len()), index(&args[2], list.len()));
                let range = list.iter().skip(from).take((to + 1).saturating_sub(from));
                FakeReply::Array(range.map(|entry| FakeReply::Text(entry.clone())).collect())
            }
            "LTRIM" => {
                let (from, to) = (index(&args[1], list.len()), index(&args[2], list.len()));
                list.truncate(to + 1);
                list.drain(..from.min(list.len()));
                FakeReply::Ok
            }
            "LSET" => {
                let at = index(&args[1], list.len());
                *list.get_mut(at).expect("the entry exists") = args[2].clone();
                FakeReply::Ok
            }
            "RPUSH" => {
                list.extend(args[1..].iter().cloned());
                FakeReply::Number(i64::try_from(list.len()).unwrap())
            }
            name => panic!("the script called the unsupported command {name}"),
        };
        if list.is_empty() && !is_new {
            self.values.remove(&args[0]);
        }
        reply
    }

    fn call_sorted(&mut self, name: &str, args: &[Vec<u8>]) -> FakeReply {
        let mut set = match self.values.get(&args[0]) {
            None => Vec::new(),
            Some(FakeValue { data: FakeValueKind::Sorted(set), .. }) => set.clone(),
            Some(_) => return FakeReply::WrongType,
        };
        let reply =
            match name {
                "ZCARD" => FakeReply::Number(i64::try_from(set.len()).unwrap()),
                "ZSCORE" => match set.iter().find(|(_, member)| *member == args[1]) {
                    Some((score, _)) => FakeReply::Text(score.to_string().into_bytes()),
                    None => FakeReply::Nil,
                },
                "ZADD" => {
                    let is_new_only = args[1] == b"NX";
                    let mut added = 0;
                    for pair in args[1 + usize::from(is_new_only)..].chunks(2) {
                        let known = set.iter().position(|(_, member)| *member == pair[1]);
                        match known {
                            Some(_) if is_new_only => {}
                            Some(index) => set[index].0 = number(&pair[0]),
                            None => {
                                added += 1;
                                set.push((number(&pair[0]), pair[1].clone()));
                            }
                        }
                    }
                    FakeReply::Number(added)
                }
                "ZREM" => {
                    let before = set.len();
                    set.retain(|(_, member)| !args[1..].contains(member));
                    FakeReply::Number(i64::try_from(before - set.len()).unwrap())
                }
                "ZRANGEBYLEX" | "ZREVRANGEBYLEX" => {
                    let is_back = name.starts_with("ZREV");
                    let (low, high) = if is_back { (&args[2], &args[1]) } else { (&args[1], &args[2]) };
                    let mut found: Vec<_> =
                        set.iter()
                            .map(|(_, member)| member)
                            .filter(|member| {
                                if low[0] == b'[' { member[..] >= low[1..] } else { member[..] > low[1..] }
                            })
                            .filter(|member| {
                                if high[0] == b'[' { member[..] <= high[1..] } else { member[..] < high[1..] }
                            })
                            .cloned()
                            .collect();
                    if is_back {
                        found.reverse();
                    }
                    if let Some([word, offset, count]) = args.get(3..6) {
                        assert_eq!(word, b"LIMIT");
                        let (offset, count) = (number(offset), number(count));
                        found = found
                            .into_iter()
                            .skip(usize::try_from(offset).unwrap())
                            .take(usize::try_from(count).unwrap())
                            .collect();
                    }
                    FakeReply::Array(found.into_iter().map(FakeReply::Text).collect())
                }
                name => panic!("the script called the unsupported command {name}"),
            };
        set.sort();
        if set.is_empty() {
            self.values.remove(&args[0]);
        } else {
            let empty = FakeValue { data: FakeValueKind::Sorted(Vec::new()), expires_ms: None };
            self.values.entry(args[0].clone()).or_insert(empty).data = FakeValueKind::Sorted(set);
        }
        reply
    }
}

fn signed(text: &[u8]) -> i64 {
    std::str::from_utf8(text).unwrap().parse().unwrap()
}

fn number(text: &[u8]) -> u64 {
    u64::try_from(signed(text)).unwrap()
}
