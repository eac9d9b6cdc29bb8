//! `RK.CHECK`: checks a request against the rules.

use super::arguments::Arguments;
use super::commands::is_word;
use super::error::CommandError;
use super::reply::Printable;
use super::throttle::{parse_integer, wrong_arity};
use ratekeeper::rules::{CheckRequest, RequestBuilder, RequestField, parse_ip};

const USAGE: &str = "[METHOD method] [IP address] [TIER tier] [ATTR name value] after key, endpoint and cost";

/// Parses the arguments and passes the request to `visit`.
#[inline]
pub(super) fn with_request<'a, T>(
    args: Arguments<'a>,
    visit: impl FnOnce(&CheckRequest<'_>) -> T,
) -> Result<T, CommandError<'a>> {
    if args.len() < 3 {
        return Err(wrong_arity(args.name()));
    }
    let mut request = RequestBuilder::default();
    request.endpoint(RequestField::Endpoint.read(args.get(2).unwrap_or_default())?)?;
    let mut next = 3;
    if let Some(bytes) = args.get(3)
        && bytes.first().is_some_and(|byte| !byte.is_ascii_alphabetic())
    {
        request.cost(cost(bytes)?)?;
        next = 4;
    }
    let has_options = args.len() > next;
    if has_options {
        read_options(args, next, &mut request)?;
    }
    let key = args.get(1).unwrap_or_default();
    if key.is_empty() && !has_options {
        return Err(CommandError::EmptyKey);
    }
    request.client_key(RequestField::ClientKey.read(key)?)?;
    Ok(request.with_request(visit)?)
}

/// Parses the options after the cost.
fn read_options<'a>(
    args: Arguments<'a>,
    mut next: usize,
    request: &mut RequestBuilder<&'a str>,
) -> Result<(), CommandError<'a>> {
    let [mut has_method, mut has_tier, mut has_ip] = [false; 3];
    while let Some(word) = args.get(next) {
        let value = args.get(next + 1).ok_or(CommandError::Syntax { near: Printable(word), usage: USAGE })?;
        next += 2;
        if is_word(word, "method") {
            once("METHOD", &mut has_method, value)?;
            request.method(RequestField::Method.read(value)?)?;
        } else if is_word(word, "tier") {
            once("TIER", &mut has_tier, value)?;
            request.tier(RequestField::Tier.read(value)?)?;
        } else if is_word(word, "ip") {
            once("IP", &mut has_ip, value)?;
            request.ip(Some(parse_ip(value)?));
        } else if is_word(word, "attr") {
            let name = RequestField::AttributeName.read(value)?;
            let value =
                args.get(next).ok_or(CommandError::Syntax { near: Printable(value), usage: USAGE })?;
            next += 1;
            request.attribute(name, RequestField::AttributeValue.read(value)?)?;
        } else {
            return Err(CommandError::Syntax { near: Printable(word), usage: USAGE });
        }
    }
    Ok(())
}

fn once(what: &'static str, has_one: &mut bool, value: &[u8]) -> Result<(), CommandError<'static>> {
    if *has_one {
        return Err(CommandError::Repeated { what });
    }
    *has_one = !value.is_empty();
    Ok(())
}

fn cost(bytes: &[u8]) -> Result<u64, CommandError<'_>> {
    let number = parse_integer(bytes).ok_or(CommandError::NotAnInteger {
        what: "cost",
        found: Printable(bytes),
        like: "1",
    })?;
    u64::try_from(number).map_err(|_| CommandError::Negative { what: "cost", least: 0 })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check, encode_array, replies_to, test_shared};

    const RULES: &str = "
rules:
  - {id: orders, match: {path: '/orders/{id}', method: POST}, limits: [2/min, 3/h]}
  - {id: tenants, match: {attributes: {tenant: '*'}}, key: [tenant], limit: 10/min}
  - {id: addresses, match: {path: /login}, key: [ip], limit: 1/min}
tiers:
  pro: {limit: 1000/min}
default: {limit: 100/min}
allow: [friend]
deny: [foe]
";

    #[test]
    fn rules_decide_and_the_reply_describes_the_deciding_limit() {
        check(
            RULES,
            None,
            "RK.CHECK a /x => 0 100 99 -1 1
             RK.CHECK a /y 9 => 0 100 90 -1 6
             RK.CHECK a '' 0 => 0 100 90 -1 6
             RK.CHECK a /x 91 => 1 100 90 1 6
             RK.CHECK a /x 101 => 1 100 90 -1 6
             rk.check p /x tier pro => 0 1000 999 -1 1
             RK.CHECK b /orders/7 METHOD POST => 0 2 1 -1 30
             RK.CHECK b /orders/8 1 method POST => 0 2 0 -1 60
             RK.CHECK b /orders/8 METHOD POST => 1 2 0 30 60
             RK.CHECK b /orders/8 METHOD GET => 0 100 99 -1 1
             RK.CHECK c /login IP 192.0.2.7 => 0 1 0 -1 60
             RK.CHECK d /login IP 192.0.2.7 => 1 1 0 60 60
             RK.CHECK '' /login IP 192.0.2.8 => 0 1 0 -1 60
             RK.CHECK e /x ATTR tenant acme => 0 10 9 -1 6
             RK.CHECK f /x 9 ATTR tenant acme => 0 10 0 -1 60
             RK.CHECK '' /x ATTR tenant other ATTR more '' => 0 10 9 -1 6
             RK.CHECK friend /x 1000 => 0 -1 -1 -1 0
             RK.CHECK foe /x => 1 0 0 -1 0",
        );
        check("rules: []", None, "RK.CHECK a /x 1000 => 0 -1 -1 -1 0");
    }

    #[test]
    fn bad_arguments_say_what_to_write_and_take_nothing() {
        check(
            "default: {limit: 100/min}",
            None,
            "RK.CHECK => -ERR wrong number of arguments for 'rk.check' command: write RK.CHECK key endpoint [cost] \
                [METHOD method] [IP address] [TIER tier] [ATTR name value]
             RK.CHECK a => -ERR wrong number of arguments...
             RK.CHECK '' /x => -ERR key is empty: write the client to count for
             RK.CHECK '' /x 1 METHOD GET => -ERR no client is given: write a key, or IP, or ATTR
             RK.CHECK a /x -1 => -ERR cost is negative: write at least 0
             RK.CHECK a /x 1.5 => -ERR cost is not a whole number: '1.5': write digits, like 1
             RK.CHECK a /x 4294967296 => -ERR cost is too large: write at most 4294967295
             RK.CHECK a /x 99999999999999999999 => -ERR cost is not a whole number...
             RK.CHECK a /x COST 1 => -ERR syntax error near 'COST': write [METHOD method] [IP address]...
             RK.CHECK a /x '' => -ERR syntax error near ''...
             RK.CHECK a /x METHOD => -ERR syntax error near 'METHOD'...
             RK.CHECK a /x ATTR tenant => -ERR syntax error near 'tenant'...
             RK.CHECK a /x 1 1 => -ERR syntax error near '1'...
             RK.CHECK a /x METHOD GET METHOD GET => -ERR METHOD is written twice: write it once
             RK.CHECK a /x TIER a TIER b => -ERR TIER is written twice: write it once
             RK.CHECK a /x IP 1.2.3.4 IP ::1 => -ERR IP is written twice: write it once
             RK.CHECK a /x IP 1.2.3.4:80 => -ERR IP is not an address: '1.2.3.4:80': write one like \
                192.0.2.7 or 2001:db8::1
             RK.CHECK a /x ATTR b 1 ATTR b 2 => -ERR ATTR 'b' is written twice: each name has one value
             RK.CHECK a /x ATTR '' 1 => -ERR ATTR name is empty...
             RK.CHECK a /x => 0 100 99 -1 1",
        );
    }

    #[test]
    fn every_argument_is_bounded() {
        let (shared, _) = test_shared("default: {limit: 100/min}", None);
        let check =
            |more: &[&[u8]]| replies_to(&shared, &encode_array([&[&b"RK.CHECK"[..]], more].concat())).0;
        let long = "é".repeat(8193).into_bytes();
        let replies = check(&[b"a", &long]);
        assert_eq!(replies, "-ERR endpoint is too long: write at most 8192 characters\r\n");
        let replies = check(&[b"a", &long[..2 * 8192]]);
        assert_eq!(replies, "*5\r\n:0\r\n:100\r\n:99\r\n:-1\r\n:1\r\n");
        for (option, most) in [("METHOD", 128), ("TIER", 128)] {
            let replies = check(&[b"a", b"/", option.as_bytes(), &long[..2 * most + 2]]);
            assert_eq!(replies, format!("-ERR {option} is too long: write at most {most} characters\r\n"));
        }
        let replies = check(&[b"a", b"/", b"ATTR", &long[..258], b""]);
        assert_eq!(replies, "-ERR ATTR name is too long: write at most 128 characters\r\n");
        let replies = check(&[b"a", b"/", b"ATTR", b"b", &long[..2 * 4097]]);
        assert_eq!(replies, "-ERR ATTR value is too long: write at most 4096 characters\r\n");
        for bytes in [&b"\xff"[..], b"\xc0\xaf", b"\xed\xa0\x80"] {
            assert_eq!(
                check(&[bytes, b"/"]),
                "-ERR key is not UTF-8 text: send other bytes as hex or base64\r\n"
            );
            assert!(check(&[b"a", bytes]).starts_with("-ERR endpoint is not UTF-8 text"));
        }
        let names: Vec<String> = (0..33).map(|index| format!("a{index}")).collect();
        let attributes: Vec<&[u8]> =
            names.iter().flat_map(|name| [&b"ATTR"[..], name.as_bytes(), b"x"]).collect();
        let with = |count: usize| check(&[&[&b"a"[..], b"/"], &attributes[..3 * count]].concat());
        assert_eq!(with(33), "-ERR too many attributes: write at most 32\r\n");
        assert_eq!(with(32), "*5\r\n:0\r\n:100\r\n:98\r\n:-1\r\n:2\r\n");
    }
}
