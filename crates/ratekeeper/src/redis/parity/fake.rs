//! The few commands that the script calls, over maps in memory and a clock that the test sets.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// What a server keeps, and the time there.
#[derive(Clone, Debug, Default)]
pub(super) struct FakeData {
    pub(super) now_micros: u64,
    /// For how many milliseconds a key whose time is up stays; nothing if for ever.
    pub(super) grace_ms: Option<u64>,
    pub(super) kept: BTreeMap<Vec<u8>, FakeValue>,
    /// The error that writes are refused with, if they are.
    pub(super) refuses: Option<&'static str>,
    /// Whether the script has written something.
    pub(super) has_written: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct FakeValue {
    pub(super) data: FakeValueKind,
    pub(super) lapses_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum FakeValueKind {
    Text(Vec<u8>),
    List(VecDeque<Vec<u8>>),
    /// By score, then by member.
    Sorted(Vec<(u64, Vec<u8>)>),
}

/// What a command answers.
pub(super) enum FakeReply {
    Nil,
    Number(i64),
    Text(Vec<u8>),
    Many(Vec<FakeReply>),
    Ok,
    WrongType,
    Refused(&'static str),
}

pub(super) type SharedFake = Rc<RefCell<FakeData>>;

impl FakeData {
    /// Drops what has lapsed, as a server does when it is asked for it.
    pub(super) fn forget_lapsed(&mut self) {
        let now_ms = self.now_micros / 1000;
        if let Some(grace_ms) = self.grace_ms {
            self.kept.retain(|_, kept| kept.lapses_ms.is_none_or(|at| now_ms <= at + grace_ms));
        }
    }

    pub(super) fn call(&mut self, command: &[Vec<u8>]) -> FakeReply {
        let name = String::from_utf8(command[0].to_ascii_uppercase()).unwrap();
        let args = &command[1..];
        if let Some(refusal) = self.refuse(&name) {
            return FakeReply::Refused(refusal);
        }
        match name.as_str() {
            "TIME" => {
                let text = |number: u64| FakeReply::Text(number.to_string().into_bytes());
                FakeReply::Many(vec![text(self.now_micros / 1_000_000), text(self.now_micros % 1_000_000)])
            }
            "MGET" => FakeReply::Many(args.iter().map(|key| self.text(key)).collect()),
            "PSETEX" => {
                let lapses_ms = Some(self.now_micros / 1000 + number(&args[1]));
                assert!(number(&args[1]) > 0, "a server takes no such time to live");
                self.kept.insert(
                    args[0].clone(),
                    FakeValue { data: FakeValueKind::Text(args[2].clone()), lapses_ms },
                );
                FakeReply::Ok
            }
            "DEL" => FakeReply::Number(i64::from(self.kept.remove(&args[0]).is_some())),
            "PEXPIRE" => {
                let at = self.now_micros / 1000 + number(&args[1]);
                let kept = self.kept.get_mut(&args[0]).expect("it was just written");
                kept.lapses_ms = Some(at);
                FakeReply::Number(1)
            }
            name if name.starts_with('Z') => self.call_sorted(name, args),
            name => self.call_list(name, args),
        }
    }

    /// Refuses a write as servers do: without memory only what could grow, and only as the first write of a script.
    fn refuse(&mut self, name: &str) -> Option<&'static str> {
        let may_grow = matches!(name, "PSETEX" | "LSET" | "RPUSH" | "ZADD");
        let is_write = may_grow || matches!(name, "DEL" | "PEXPIRE" | "LTRIM" | "ZREM");
        let refusal = self.refuses.filter(|refusal| match refusal.starts_with("OOM") {
            true => may_grow && !self.has_written,
            false => is_write,
        });
        self.has_written |= is_write && refusal.is_none();
        refusal
    }

    fn text(&self, key: &[u8]) -> FakeReply {
        match self.kept.get(key).map(|kept| &kept.data) {
            Some(FakeValueKind::Text(text)) => FakeReply::Text(text.clone()),
            _ => FakeReply::Nil,
        }
    }

    fn call_list(&mut self, name: &str, args: &[Vec<u8>]) -> FakeReply {
        let is_new = !self.kept.contains_key(&args[0]);
        let mut spare = VecDeque::new();
        let list = match self.kept.get_mut(&args[0]).map(|kept| &mut kept.data) {
            None if name == "RPUSH" => {
                let kept = FakeValue { data: FakeValueKind::List(VecDeque::new()), lapses_ms: None };
                let FakeValueKind::List(list) = &mut self.kept.entry(args[0].clone()).or_insert(kept).data
                else {
                    unreachable!()
                };
                list
            }
            None => &mut spare,
            Some(FakeValueKind::List(list)) => list,
            Some(_) => return FakeReply::WrongType,
        };
        let index = |text: &[u8], length: usize| -> usize {
            let index = signed(text);
            let length = i64::try_from(length).unwrap();
            usize::try_from(if index < 0 { (length + index).max(0) } else { index }).unwrap()
        };
        let said = match name {
            "LLEN" => FakeReply::Number(i64::try_from(list.len()).unwrap()),
            "LINDEX" => list
                .get(index(&args[1], list.len()))
                .map_or(FakeReply::Nil, |entry| FakeReply::Text(entry.clone())),
            "LRANGE" => {
                let (from, to) = (index(&args[1], list.len()), index(&args[2], list.len()));
                let range = list.iter().skip(from).take((to + 1).saturating_sub(from));
                FakeReply::Many(range.map(|entry| FakeReply::Text(entry.clone())).collect())
            }
            "LTRIM" => {
                let (from, to) = (index(&args[1], list.len()), index(&args[2], list.len()));
                list.truncate(to + 1);
                list.drain(..from.min(list.len()));
                FakeReply::Ok
            }
            "LSET" => {
                let at = index(&args[1], list.len());
                *list.get_mut(at).expect("the entry is there") = args[2].clone();
                FakeReply::Ok
            }
            "RPUSH" => {
                list.extend(args[1..].iter().cloned());
                FakeReply::Number(i64::try_from(list.len()).unwrap())
            }
            name => panic!("the script called {name}"),
        };
        if list.is_empty() && !is_new {
            self.kept.remove(&args[0]);
        }
        said
    }

    fn call_sorted(&mut self, name: &str, args: &[Vec<u8>]) -> FakeReply {
        let mut set = match self.kept.get(&args[0]) {
            None => Vec::new(),
            Some(FakeValue { data: FakeValueKind::Sorted(set), .. }) => set.clone(),
            Some(_) => return FakeReply::WrongType,
        };
        let said =
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
                    FakeReply::Many(found.into_iter().map(FakeReply::Text).collect())
                }
                name => panic!("the script called {name}"),
            };
        set.sort();
        if set.is_empty() {
            self.kept.remove(&args[0]);
        } else {
            let kept = FakeValue { data: FakeValueKind::Sorted(Vec::new()), lapses_ms: None };
            self.kept.entry(args[0].clone()).or_insert(kept).data = FakeValueKind::Sorted(set);
        }
        said
    }
}

fn signed(text: &[u8]) -> i64 {
    std::str::from_utf8(text).unwrap().parse().unwrap()
}

fn number(text: &[u8]) -> u64 {
    u64::try_from(signed(text)).unwrap()
}
