//! The real script in an embedded Lua, whose clock the test controls.

use super::fake::{FakeData, FakeReply, SharedFake};
use crate::batch::codec::ScriptCall;
use crate::batch::script;
use mlua::{Function, Lua, Result, Table, Value, Variadic};
use ratekeeper_core::Draws;
use std::cell::RefCell;
use std::rc::Rc;

/// Lua 5.1 with the script and the API that Redis offers to scripts.
#[derive(Debug)]
pub(crate) struct EmbeddedLua {
    lua: Lua,
    script: Function,
    pub(crate) fake: SharedFake,
}

impl EmbeddedLua {
    pub(crate) fn new(grace_ms: Option<u64>) -> EmbeddedLua {
        let lua = Lua::new();
        let fake: SharedFake = Rc::new(RefCell::new(FakeData { grace_ms, ..FakeData::default() }));
        install_redis_api(&lua, &fake).expect("the Redis API can be installed");
        let script =
            lua.load(script::SOURCE).set_name("draw.lua").into_function().expect("the script compiles");
        // Like a server, forbid scripts to read or create global variables.
        lua.load(
            "setmetatable(_G, {__index = function(_, name) error('no variable ' .. name, 2) end,
             __newindex = function(_, name) error('undeclared variable ' .. name, 2) end})",
        )
        .exec()
        .expect("the metatable can be set");
        EmbeddedLua { lua, script, fake }
    }

    /// Runs the script on a call.
    pub(crate) fn run(&self, call: &ScriptCall, draws: &Draws, now_micros: u64) -> Vec<u8> {
        {
            let mut fake = self.fake.borrow_mut();
            fake.now_micros = now_micros;
            fake.remove_expired();
            fake.has_written = false;
        }
        let texts = |texts: &mut dyn Iterator<Item = &[u8]>| {
            self.lua.create_sequence_from(texts.map(|text| self.lua.create_string(text).unwrap())).unwrap()
        };
        self.lua
            .globals()
            .raw_set("KEYS", texts(&mut call.key_names(draws).iter().map(Vec::as_slice)))
            .unwrap();
        self.lua.globals().raw_set("ARGV", texts(&mut call.arguments())).unwrap();
        let reply: mlua::String = self.script.call(()).unwrap_or_else(|error| panic!("{error}"));
        reply.as_bytes().to_vec()
    }
}

/// Installs the `redis` and `struct` tables.
fn install_redis_api(lua: &Lua, fake: &SharedFake) -> Result<()> {
    let redis = lua.create_table()?;
    for (name, raises) in [("call", true), ("pcall", false)] {
        let fake = Rc::clone(fake);
        let call = lua.create_function(move |lua, args: Variadic<Value>| {
            let command: Vec<Vec<u8>> = args.iter().map(argument_bytes).collect();
            match fake.borrow_mut().call(&command) {
                FakeReply::WrongType if raises => Err(mlua::Error::runtime("WRONGTYPE")),
                FakeReply::Error(error) if raises => Err(mlua::Error::runtime(error)),
                reply => reply_to_lua(lua, reply),
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

fn argument_bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        number => format!("{:.0}", exact_integer(number)).into_bytes(),
    }
}

/// The value of a Lua number, which must be an exact integer.
fn exact_integer(value: &Value) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "Lua has no other numbers")]
    let number = match value {
        Value::Integer(number) => *number as f64,
        Value::Number(number) => *number,
        other => panic!("{other:?} is not a number"),
    };
    assert!(number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0, "{number} is not exact");
    number
}

fn reply_to_lua(lua: &Lua, reply: FakeReply) -> Result<Value> {
    Ok(match reply {
        FakeReply::Nil => Value::Boolean(false),
        #[expect(clippy::cast_precision_loss, reason = "Lua has no other numbers")]
        FakeReply::Number(number) => Value::Number(number as f64),
        FakeReply::Text(text) => Value::String(lua.create_string(text)?),
        FakeReply::Array(replies) => {
            let table: Table = lua.create_table()?;
            for (index, reply) in replies.into_iter().enumerate() {
                table.raw_set(index + 1, reply_to_lua(lua, reply)?)?;
            }
            Value::Table(table)
        }
        FakeReply::Ok => Value::Table(lua.create_table_from([("ok", "OK")])?),
        FakeReply::WrongType => Value::Table(lua.create_table_from([("err", "WRONGTYPE")])?),
        FakeReply::Error(error) => Value::Table(lua.create_table_from([("err", error)])?),
    })
}

/// The items of a `struct` format: letter and size of each.
fn format_items(format: &[u8]) -> Vec<(u8, usize)> {
    let mut items = Vec::new();
    assert_eq!(format[0], b'>', "the script uses big-endian formats");
    let mut rest = &format[1..];
    while let Some((letter, tail)) = rest.split_first() {
        let digits = tail.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let size = std::str::from_utf8(&tail[..digits]).unwrap().parse().ok();
        rest = &tail[digits..];
        items.push(match letter {
            b'B' => (b'I', 1),
            b'H' => (b'I', 2),
            b'I' | b'c' => (*letter, size.expect("the script gives a size")),
            _ => panic!("the script uses the unsupported format {letter}"),
        });
    }
    items
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number was checked to be whole and not negative"
)]
fn pack(lua: &Lua, args: &[Value]) -> Result<mlua::String> {
    let mut packed = Vec::new();
    let format = argument_bytes(&args[0]);
    let items = format_items(&format);
    assert_eq!(items.len(), args.len() - 1, "{format:?}");
    for ((letter, size), value) in items.into_iter().zip(&args[1..]) {
        if letter == b'c' {
            let text = argument_bytes(value);
            assert!(text.len() >= size);
            packed.extend_from_slice(&text[..size]);
        } else {
            let number = exact_integer(value);
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
    reason = "lengths and positions are small, and Lua has no other numbers"
)]
fn unpack(lua: &Lua, args: &[Value]) -> Result<Variadic<Value>> {
    let (format, data) = (argument_bytes(&args[0]), argument_bytes(&args[1]));
    let mut at = args.get(2).map_or(0, |position| exact_integer(position) as usize - 1);
    let mut values = Vec::new();
    for (letter, mut size) in format_items(&format) {
        if letter == b'c' && size == 0 {
            size = exact_integer(&values.pop().expect("the length comes before the string")) as usize;
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
