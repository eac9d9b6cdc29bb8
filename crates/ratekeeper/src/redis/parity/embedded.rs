//! The very script in a Lua of our own, whose clock the test sets.

use super::fake::{FakeData, FakeReply, SharedFake};
use crate::redis::script;
use crate::redis::script_call::ScriptCall;
use mlua::{Function, Lua, Result, Table, Value, Variadic};
use std::cell::RefCell;
use std::rc::Rc;

/// Lua 5.1 with the script in it and what Redis lends to scripts.
#[derive(Debug)]
pub(super) struct Embedded {
    lua: Lua,
    script: Function,
    pub(super) fake: SharedFake,
}

impl Embedded {
    pub(super) fn new(grace_ms: Option<u64>) -> Embedded {
        let lua = Lua::new();
        let fake: SharedFake = Rc::new(RefCell::new(FakeData { grace_ms, ..FakeData::default() }));
        lend(&lua, &fake).expect("Lua takes what it is lent");
        let script =
            lua.load(script::SOURCE).set_name("draw.lua").into_function().expect("the script can be read");
        // Like a server, which lets no script make or read a variable that it did not declare.
        lua.load(
            "setmetatable(_G, {__index = function(_, name) error('no variable ' .. name, 2) end,
             __newindex = function(_, name) error('undeclared variable ' .. name, 2) end})",
        )
        .exec()
        .expect("Lua can be told to be strict");
        Embedded { lua, script, fake }
    }

    /// Runs the script on a parcel.
    pub(super) fn run(&self, parcel: &ScriptCall, now_micros: u64) -> Vec<u8> {
        {
            let mut fake = self.fake.borrow_mut();
            fake.now_micros = now_micros;
            fake.forget_lapsed();
            fake.has_written = false;
        }
        let texts = |texts: &mut dyn Iterator<Item = &[u8]>| {
            self.lua.create_sequence_from(texts.map(|text| self.lua.create_string(text).unwrap())).unwrap()
        };
        self.lua.globals().raw_set("KEYS", texts(&mut parcel.key_names())).unwrap();
        self.lua.globals().raw_set("ARGV", texts(&mut parcel.arguments())).unwrap();
        let reply: mlua::String = self.script.call(()).unwrap_or_else(|error| panic!("{error}"));
        reply.as_bytes().to_vec()
    }
}

fn lend(lua: &Lua, fake: &SharedFake) -> Result<()> {
    let redis = lua.create_table()?;
    for (name, raises) in [("call", true), ("pcall", false)] {
        let fake = Rc::clone(fake);
        let call = lua.create_function(move |lua, args: Variadic<Value>| {
            let command: Vec<Vec<u8>> = args.iter().map(argument).collect();
            match fake.borrow_mut().call(&command) {
                FakeReply::WrongType if raises => Err(mlua::Error::runtime("WRONGTYPE")),
                FakeReply::Refused(refusal) if raises => Err(mlua::Error::runtime(refusal)),
                said => answer(lua, said),
            }
        })?;
        redis.set(name, call)?;
    }
    lua.globals().set("redis", redis)?;
    let library = lua.create_table()?;
    library.set("pack", lua.create_function(|lua, args: Variadic<Value>| pack(lua, &args))?)?;
    library.set("unpack", lua.create_function(|lua, args: Variadic<Value>| unpack(lua, &args))?)?;
    lua.globals().set("struct", library)
}

fn argument(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        number => format!("{:.0}", whole(number)).into_bytes(),
    }
}

/// A number that a server may take for an integer.
fn whole(value: &Value) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "Lua has no other numbers")]
    let number = match value {
        Value::Integer(number) => *number as f64,
        Value::Number(number) => *number,
        other => panic!("{other:?} is no number"),
    };
    assert!(number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0, "{number} is not exact");
    number
}

fn answer(lua: &Lua, said: FakeReply) -> Result<Value> {
    Ok(match said {
        FakeReply::Nil => Value::Boolean(false),
        #[expect(clippy::cast_precision_loss, reason = "Lua has no other numbers")]
        FakeReply::Number(number) => Value::Number(number as f64),
        FakeReply::Text(text) => Value::String(lua.create_string(text)?),
        FakeReply::Many(many) => {
            let table: Table = lua.create_table()?;
            for (index, said) in many.into_iter().enumerate() {
                table.raw_set(index + 1, answer(lua, said)?)?;
            }
            Value::Table(table)
        }
        FakeReply::Ok => Value::Table(lua.create_table_from([("ok", "OK")])?),
        FakeReply::WrongType => Value::Table(lua.create_table_from([("err", "WRONGTYPE")])?),
        FakeReply::Refused(refusal) => Value::Table(lua.create_table_from([("err", refusal)])?),
    })
}

/// One item of a form: its letter and its size.
fn items(form: &[u8]) -> Vec<(u8, usize)> {
    let mut items = Vec::new();
    assert_eq!(form[0], b'>', "the script writes the highest byte first");
    let mut rest = &form[1..];
    while let Some((letter, behind)) = rest.split_first() {
        let digits = behind.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let size = std::str::from_utf8(&behind[..digits]).unwrap().parse().ok();
        rest = &behind[digits..];
        items.push(match letter {
            b'B' => (b'I', 1),
            b'H' => (b'I', 2),
            b'I' | b'c' => (*letter, size.expect("the script says how long")),
            _ => panic!("the script uses the form {letter}"),
        });
    }
    items
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it was found to be whole and is not negative"
)]
fn pack(lua: &Lua, args: &[Value]) -> Result<mlua::String> {
    let mut packed = Vec::new();
    let form = argument(&args[0]);
    let items = items(&form);
    assert_eq!(items.len(), args.len() - 1, "{form:?}");
    for ((letter, size), value) in items.into_iter().zip(&args[1..]) {
        if letter == b'c' {
            let text = argument(value);
            assert!(text.len() >= size);
            packed.extend_from_slice(&text[..size]);
        } else {
            let number = whole(value);
            assert!(
                number >= 0.0 && number < 256_f64.powi(i32::try_from(size).unwrap()),
                "{number} in {size} bytes"
            );
            packed.extend_from_slice(&(number as u64).to_be_bytes()[8 - size..]);
        }
    }
    lua.create_string(packed)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "lengths and places are small, and Lua has no other numbers"
)]
fn unpack(lua: &Lua, args: &[Value]) -> Result<Variadic<Value>> {
    let (form, data) = (argument(&args[0]), argument(&args[1]));
    let mut at = args.get(2).map_or(0, |place| whole(place) as usize - 1);
    let mut values = Vec::new();
    for (letter, mut size) in items(&form) {
        if letter == b'c' && size == 0 {
            size = whole(&values.pop().expect("a length comes first")) as usize;
        }
        let bytes = data.get(at..at + size).unwrap_or_else(|| panic!("data string too short"));
        at += size;
        values.push(match letter {
            b'c' => Value::String(lua.create_string(bytes)?),
            _ => Value::Number(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)) as f64),
        });
    }
    values.push(Value::Number((at + 1) as f64));
    Ok(values.into_iter().collect())
}
