//! What is understood of a proxy's question, whichever way it came in.

use super::*;
use crate::client_address::AddressField;

/// What every proxy says of `POST /orders?api_key=q1`.
const ASKED: [&str; 3] =
    ["X-Forwarded-Method: POST", "X-Forwarded-Uri: /orders?api_key=q1", "X-Forwarded-Host: shop.example"];

/// A question with this URL and these fields: what rules see of it, or why they see nothing.
fn judged(options: &ForwardOptions, peer: &str, url: &str, lines: &[&[u8]]) -> Result<String, String> {
    let head = [&format!("GET {url} HTTP/1.1\r\nHost: own.example\r\n").into_bytes()[..]];
    let fields = lines.iter().flat_map(|line| [*line, b"\r\n"]);
    let bytes = head.into_iter().chain(fields).chain([&b"\r\n"[..]]).collect::<Vec<_>>().concat();
    let mut parts = hyper::Request::get(url).header("host", "own.example");
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':').unwrap();
        parts = parts.header(&line[..colon], line[colon + 1..].trim_ascii());
    }
    let (parts, ()) = parts.body(()).unwrap().into_parts();
    let forward = Forward::new(options.clone());
    let [lane, hyper] = [RequestHead::plain(&bytes), RequestHead::Parts(&parts)].map(|head| {
        let call = HttpCall { route: ApiRoute::Forward, head, body: b"", peer: peer.parse().unwrap() };
        let understood = ProxyParameters::read(head.query())
            .and_then(|errand| forward.with_request(&call, &errand, shown));
        understood.map_err(|fault| fault.to_string())
    });
    assert_eq!(lane, hyper);
    lane
}

fn shown(request: &CheckRequest<'_>) -> String {
    let CheckRequest { client_key, endpoint, method, tier, cost, .. } = request;
    let (ip, host) = (request.ip.unwrap(), request.attribute("host").unwrap_or("-"));
    format!("{method} {host}{endpoint} key={client_key} ip={ip} tier={tier} cost={cost}")
}

/// By default options, from a proxy on this machine that says who asks, and these lines besides.
#[track_caller]
fn check(url: &str, lines: &[&str], expected: &str) {
    let lines: Vec<_> =
        ["X-Forwarded-For: 203.0.113.7"].iter().chain(lines).map(|line| line.as_bytes()).collect();
    assert_eq!(
        judged(&ForwardOptions::default(), "127.0.0.1", url, &lines).as_deref(),
        Ok(expected),
        "{lines:?}"
    );
}

#[track_caller]
fn refused(url: &str, lines: &[&str], said: &str) {
    let lines: Vec<_> = lines.iter().map(|line| line.as_bytes()).collect();
    let found = judged(&ForwardOptions::default(), "127.0.0.1", url, &lines).unwrap_err();
    assert!(found.contains(said), "{found:?} does not say {said:?}");
}

/// The usual lines and some more.
fn asked<'a>(more: &[&'a str]) -> Vec<&'a str> {
    ASKED.iter().chain(more).copied().collect()
}

const URL: &str = "/v1/forward-auth";

#[test]
fn a_request_is_judged_as_the_proxy_describes_it() {
    check(URL, &asked(&[]), "POST shop.example/orders key=ip:203.0.113.7 ip=203.0.113.7 tier= cost=1");
    check(
        URL,
        &["X-Original-Method: PUT", "x-original-uri: /a/%2e%2e/b?c#d"],
        "PUT own.example/a/%2e%2e/b key=ip:203.0.113.7 ip=203.0.113.7 tier= cost=1",
    );
    let uri = |uri: &str, path: &str| {
        let line = format!("X-Forwarded-Uri: {uri}");
        let expected = format!("GET own.example{path} key=ip:203.0.113.7 ip=203.0.113.7 tier= cost=1");
        check(URL, &["X-Forwarded-Method: GET", &line], &expected);
    };
    uri("/", "/");
    uri("/?", "/");
    uri("?a=b", "");
    uri("*", "*");
    uri("http://shop.example/orders?x", "/orders");
    uri("https://shop.example", "/");
    uri("/http://a/b", "/http://a/b");
    uri("//a//b/", "//a//b/");
    uri("/é", "/é");
}

#[test]
fn a_host_has_one_spelling() {
    for spelling in
        ["shop.example", "Shop.EXAMPLE", "shop.example:443", "SHOP.example.", "shop.example.:8080"]
    {
        let lines =
            ["X-Forwarded-Method: GET", "X-Forwarded-Uri: /", &format!("X-Forwarded-Host: {spelling}")];
        check(URL, &lines, "GET shop.example/ key=ip:203.0.113.7 ip=203.0.113.7 tier= cost=1");
    }
    for (host, name) in
        [("[::1]:80", "[::1]"), ("[::1]", "[::1]"), ("::1", "::1"), ("a:b", "a:b"), ("É", "É")]
    {
        assert_eq!(host_of(host.as_bytes()).unwrap(), name);
    }
    refused(
        URL,
        &["X-Forwarded-Method: GET", "X-Forwarded-Uri: /", &format!("X-Forwarded-Host: {}", "a".repeat(256))],
        "the host has more than 255 bytes",
    );
}

#[test]
fn the_operator_says_where_the_key_is() {
    let keyed = |url: &str, lines: &[&str], key: &str| {
        let expected = format!("POST shop.example/orders key={key} ip=203.0.113.7 tier= cost=1");
        check(&format!("{URL}?{url}"), &asked(lines), &expected);
    };
    let both = ["X-Api-Key: h1", "Authorization: Bearer t1"];
    keyed("key=ip", &both, "ip:203.0.113.7");
    keyed("key=header:x-api-key,ip", &both, "h1");
    keyed("key=header%3AX-API-KEY%2Cip", &both, "h1");
    keyed("key=header:x-api-key,ip", &[], "ip:203.0.113.7");
    keyed("key=header:x-api-key,ip", &["X-Api-Key:"], "ip:203.0.113.7");
    keyed("key=header:x-api-key", &[], "");
    keyed("key=query:api_key,header:x-api-key", &both, "q1");
    keyed("key=header:authorization", &both, "t1");
    keyed("key=query:apikey,header:x-tenant,header:authorization,ip", &both, "t1");
    check(
        &format!("{URL}?tier=pro&cost=5&deny_status=403&token=x&key=ip"),
        &asked(&[]),
        "POST shop.example/orders key=ip:203.0.113.7 ip=203.0.113.7 tier=pro cost=5",
    );
    let options =
        ForwardOptions { keys: "header:x-api-key".parse().unwrap(), proxies: TrustedProxies::default() };
    let lines: Vec<_> = asked(&both).iter().map(|line| line.as_bytes()).collect();
    let found = judged(&options, "10.0.0.1", URL, &lines).unwrap();
    assert_eq!(found, "POST shop.example/orders key=h1 ip=10.0.0.1 tier= cost=1");
}

#[test]
fn the_url_is_the_operators_and_says_only_what_is_known() {
    let wrong = |query: &str, said: &str| refused(&format!("{URL}?{query}"), &asked(&[]), said);
    wrong("key=", "is no place for a key: write header:NAME");
    wrong("key=cookie:a", "is no place for a key");
    wrong("page=2", "has a parameter \"page\": there are key, tier");
    wrong("Cost=2", "has a parameter \"Cost\"");
    wrong("cost", "cost is a whole number");
    wrong("cost=-1", "cost is a whole number");
    wrong("cost=4294967296", "cost is a whole number");
    wrong("cost=1&cost=0", "has cost twice");
    wrong("deny_status=200", "anything below 300 for a yes: write deny_status=403");
    wrong("tier=%ff", "the parameter tier is no text");
    wrong(&format!("tier={}", "x".repeat(129)), "more than 128 characters");
    // A proxy that puts the client's query there would let the client say it.
    wrong("api_key=q1", "has a parameter \"api_key\"");
    let client = ["X-Forwarded-Method: GET", "X-Forwarded-Uri: /orders?cost=0&key=header:x"];
    refused(&format!("{URL}?cost=0&key=header:x"), &client, "the query of the question is the client's own");
}

#[test]
fn what_the_proxy_did_not_write_is_not_believed() {
    let said = "say something else than X-Original-Method";
    refused(URL, &asked(&["X-Original-Uri: /cheap"]), said);
    refused(URL, &asked(&["X-Original-Method: POST"]), said);
    refused(URL, &asked(&["X-Original-Uri: /orders?api_key=q1"]), said);
    refused(URL, &asked(&["X-Original-Uri: /orders?api_key=q1", "X-Original-Method: GET"]), said);
    let original = ["X-Original-Method: POST", "X-Original-Uri: /dear"];
    refused(URL, &[&original[..], &["X-Forwarded-Uri: /cheap"]].concat(), said);
    refused(URL, &[&original[..], &["X-Forwarded-Method: GET"]].concat(), said);
    refused(URL, &[&original[..], &["X-Forwarded-Method: GET", "X-Forwarded-Uri: /dear"]].concat(), said);
    // Who says the same twice says nothing new.
    check(
        URL,
        &asked(&["X-Original-Uri: /orders?api_key=q1", "X-Original-Method: POST", "X-Original-Host: x"]),
        "POST shop.example/orders key=ip:203.0.113.7 ip=203.0.113.7 tier= cost=1",
    );
    refused(URL, &asked(&["X-Forwarded-Uri: /cheap"]), "the URI is told twice");
    refused(URL, &asked(&["X-Forwarded-Method: POST"]), "the method is told twice");
    refused(URL, &asked(&["X-Forwarded-Host: other"]), "the host is told twice");
    let untold = "have the proxy set X-Forwarded-Method and X-Forwarded-Uri";
    refused(URL, &[], untold);
    refused(URL, &["X-Forwarded-Method: GET"], untold);
    refused(URL, &["X-Original-URI: /"], untold);
    refused(URL, &["X-Forwarded-Method:", "X-Forwarded-Uri:"], untold);
}

#[test]
fn a_key_that_could_mean_two_clients_is_refused() {
    let header = format!("{URL}?key=header:x-api-key,ip");
    refused(&header, &asked(&["X-Api-Key: a", "x-api-key: b"]), "the header x-api-key is there twice");
    refused(&header, &asked(&["X-Api-Key: ip:203.0.113.9"]), "begins with ip:");
    refused(&header, &asked(&[&format!("X-Api-Key: {}", "a".repeat(4097))]), "more than 4096 bytes");
    let query = format!("{URL}?key=query:api_key,ip");
    let twice = ["X-Forwarded-Method: GET", "X-Forwarded-Uri: /?api_key=a&api%5fkey=b"];
    refused(&query, &twice, "the parameter api_key is there twice");
    let lines: Vec<&[u8]> =
        ASKED.iter().map(|line| line.as_bytes()).chain([&b"X-Api-Key: \xff"[..]]).collect();
    let found = judged(&ForwardOptions::default(), "127.0.0.1", &header, &lines).unwrap_err();
    assert!(found.contains("the key in x-api-key is no text"), "{found}");
}

#[test]
fn odd_descriptions_are_read_or_refused() {
    let lines: [&[u8]; 2] = [b"X-Forwarded-Method: GET", b"X-Forwarded-Uri: /caf\xe9?\xff"];
    let found = judged(&ForwardOptions::default(), "127.0.0.1", URL, &lines).unwrap();
    assert_eq!(found, "GET own.example/caf%E9 key=ip:127.0.0.1 ip=127.0.0.1 tier= cost=1");
    refused(
        URL,
        &[&format!("X-Forwarded-Method: {}", "A".repeat(129)), "X-Forwarded-Uri: /"],
        "the method is no word",
    );
    refused(URL, &["X-Forwarded-Method: GET POST", "X-Forwarded-Uri: /"], "the method is no word");
    let long = |length: usize| format!("X-Forwarded-Uri: /{}?{}", "a".repeat(length - 1), "q".repeat(9000));
    refused(URL, &["X-Forwarded-Method: GET", &long(8193)], "the path has more than 8192 characters");
    let lines = ["X-Forwarded-Method: GET".to_owned(), long(8192)];
    let lines: Vec<_> = lines.iter().map(String::as_bytes).collect();
    judged(&ForwardOptions::default(), "127.0.0.1", URL, &lines).unwrap();
}

#[test]
fn only_trusted_proxies_tell_whose_request_it_is() {
    let ip = |proxies: &TrustedProxies, peer: &str, lines: &[&str]| {
        let options = ForwardOptions { proxies: proxies.clone(), ..ForwardOptions::default() };
        let lines: Vec<_> = ASKED.iter().chain(lines).map(|line| line.as_bytes()).collect();
        let found = judged(&options, peer, URL, &lines).unwrap();
        found.split("ip=").nth(1).unwrap().split(' ').next().unwrap().to_owned()
    };
    let list = ["X-Forwarded-For: 1.2.3.4, 203.0.113.7", "X-Real-Ip: 5.6.7.8", "Forwarded: for=9.9.9.9"];
    let default = TrustedProxies::default();
    assert_eq!(ip(&default, "127.0.0.1", &list), "203.0.113.7");
    assert_eq!(ip(&default, "::ffff:127.0.0.1", &list), "203.0.113.7");
    assert_eq!(ip(&default, "10.0.0.1", &list), "10.0.0.1");
    assert_eq!(ip(&default, "127.0.0.1", &list[1..]), "127.0.0.1", "one field is believed, and no other");
    assert_eq!(
        ip(&default, "127.0.0.1", &["X-Forwarded-For: 1.2.3.4", "X-Forwarded-For: 203.0.113.7"]),
        "203.0.113.7"
    );
    let networks = vec!["10.0.0.0/8".parse().unwrap()];
    let real = TrustedProxies { networks, field: AddressField::XRealIp };
    assert_eq!(ip(&real, "10.0.0.1", &list), "5.6.7.8");
    assert_eq!(ip(&real, "127.0.0.1", &list), "127.0.0.1");
    let standard = TrustedProxies { field: AddressField::Forwarded, ..real };
    assert_eq!(ip(&standard, "10.0.0.1", &list), "9.9.9.9");
    let nobody = TrustedProxies { networks: Vec::new(), ..standard };
    assert_eq!(ip(&nobody, "127.0.0.1", &list), "127.0.0.1");
}
