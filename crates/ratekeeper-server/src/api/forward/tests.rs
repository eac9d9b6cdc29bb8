//! Tests of forward-auth requests, on the fast path and through hyper.

use super::*;
use crate::client_address::AddressHeader;

/// The headers with which every proxy describes `POST /orders?api_key=q1`.
const FORWARDED: [&str; 3] =
    ["X-Forwarded-Method: POST", "X-Forwarded-Uri: /orders?api_key=q1", "X-Forwarded-Host: shop.example"];

/// Parses a forward-auth request with this URL and these headers into the request that rules see, or the error.
fn parsed(options: &ForwardOptions, peer: &str, url: &str, lines: &[&[u8]]) -> Result<String, String> {
    let head = [&format!("GET {url} HTTP/1.1\r\nHost: own.example\r\n").into_bytes()[..]];
    let fields = lines.iter().flat_map(|line| [*line, b"\r\n"]);
    let bytes = head.into_iter().chain(fields).chain([&b"\r\n"[..]]).collect::<Vec<_>>().concat();
    let mut parts = hyper::Request::get(url).header("host", "own.example");
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':').unwrap();
        parts = parts.header(&line[..colon], line[colon + 1..].trim_ascii());
    }
    let (parts, ()) = parts.body(()).unwrap().into_parts();
    let forward = ForwardAuth::new(options.clone());
    let [fast_path, hyper] = [RequestHead::plain(&bytes), RequestHead::Parts(&parts)].map(|head| {
        let call = HttpCall { route: ApiRoute::ForwardAuth, head, body: b"", peer: peer.parse().unwrap() };
        let request = ProxyParameters::parse(head.query())
            .and_then(|parameters| forward.with_request(&call, &parameters, shown));
        request.map_err(|error| error.to_string())
    });
    assert_eq!(fast_path, hyper);
    fast_path
}

fn shown(request: &CheckRequest<'_>) -> String {
    let CheckRequest { client_key, endpoint, method, tier, cost, .. } = request;
    let (ip, host) = (request.ip.unwrap(), request.attribute("host").unwrap_or("-"));
    format!("{method} {host}{endpoint} key={client_key} ip={ip} tier={tier} cost={cost}")
}

/// Asserts what rules see with default options, from a proxy on loopback that sends the client's address and `lines`.
#[track_caller]
fn check(url: &str, lines: &[&str], expected: &str) {
    let lines: Vec<_> =
        ["X-Forwarded-For: 203.0.113.7"].iter().chain(lines).map(|line| line.as_bytes()).collect();
    assert_eq!(
        parsed(&ForwardOptions::default(), "127.0.0.1", url, &lines).as_deref(),
        Ok(expected),
        "{lines:?}"
    );
}

/// Asserts that the request is rejected with an error that contains `message`.
#[track_caller]
fn rejected(url: &str, lines: &[&str], message: &str) {
    let lines: Vec<_> = lines.iter().map(|line| line.as_bytes()).collect();
    let found = parsed(&ForwardOptions::default(), "127.0.0.1", url, &lines).unwrap_err();
    assert!(found.contains(message), "{found:?} does not contain {message:?}");
}

/// The usual lines and `more`.
fn forwarded<'a>(more: &[&'a str]) -> Vec<&'a str> {
    FORWARDED.iter().chain(more).copied().collect()
}

const URL: &str = "/v1/forward-auth";

#[test]
fn rules_see_the_request_that_the_proxy_describes() {
    check(URL, &forwarded(&[]), "POST shop.example/orders key=ip:203.0.113.7 ip=203.0.113.7 tier= cost=1");
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
fn hosts_are_normalized() {
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
        assert_eq!(parse_host(host.as_bytes()).unwrap(), name);
    }
    rejected(
        URL,
        &["X-Forwarded-Method: GET", "X-Forwarded-Uri: /", &format!("X-Forwarded-Host: {}", "a".repeat(256))],
        "the host has more than 255 bytes",
    );
}

#[test]
fn the_url_selects_the_key_source() {
    let keyed = |url: &str, lines: &[&str], key: &str| {
        let expected = format!("POST shop.example/orders key={key} ip=203.0.113.7 tier= cost=1");
        check(&format!("{URL}?{url}"), &forwarded(lines), &expected);
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
        &forwarded(&[]),
        "POST shop.example/orders key=ip:203.0.113.7 ip=203.0.113.7 tier=pro cost=5",
    );
    let options =
        ForwardOptions { keys: "header:x-api-key".parse().unwrap(), proxies: TrustedProxies::default() };
    let lines: Vec<_> = forwarded(&both).iter().map(|line| line.as_bytes()).collect();
    let found = parsed(&options, "10.0.0.1", URL, &lines).unwrap();
    assert_eq!(found, "POST shop.example/orders key=h1 ip=10.0.0.1 tier= cost=1");
}

#[test]
fn invalid_url_parameters_are_rejected() {
    let wrong = |query: &str, message: &str| rejected(&format!("{URL}?{query}"), &forwarded(&[]), message);
    wrong("key=", "is not a key source: write header:NAME");
    wrong("key=cookie:a", "is not a key source");
    wrong("page=2", "unknown URL parameter \"page\": there are key, tier");
    wrong("Cost=2", "unknown URL parameter \"Cost\"");
    wrong("cost", "cost must be a whole number");
    wrong("cost=-1", "cost must be a whole number");
    wrong("cost=4294967296", "cost must be a whole number");
    wrong("cost=1&cost=0", "the URL parameter cost is sent twice");
    wrong("deny_status=200", "any status below 300 as allowed: write deny_status=403");
    wrong("tier=%ff", "the URL parameter tier is not UTF-8");
    wrong(&format!("tier={}", "x".repeat(129)), "more than 128 characters");
    // A proxy that copies the client's query would let the client choose its parameters.
    wrong("api_key=q1", "unknown URL parameter \"api_key\"");
    let client = ["X-Forwarded-Method: GET", "X-Forwarded-Uri: /orders?cost=0&key=header:x"];
    rejected(&format!("{URL}?cost=0&key=header:x"), &client, "its query is the client's query");
}

#[test]
fn headers_that_the_client_may_have_sent_are_rejected() {
    let differ = "differ from X-Original-Method";
    rejected(URL, &forwarded(&["X-Original-Uri: /cheap"]), differ);
    rejected(URL, &forwarded(&["X-Original-Method: POST"]), differ);
    rejected(URL, &forwarded(&["X-Original-Uri: /orders?api_key=q1"]), differ);
    rejected(URL, &forwarded(&["X-Original-Uri: /orders?api_key=q1", "X-Original-Method: GET"]), differ);
    let original = ["X-Original-Method: POST", "X-Original-Uri: /dear"];
    rejected(URL, &[&original[..], &["X-Forwarded-Uri: /cheap"]].concat(), differ);
    rejected(URL, &[&original[..], &["X-Forwarded-Method: GET"]].concat(), differ);
    rejected(URL, &[&original[..], &["X-Forwarded-Method: GET", "X-Forwarded-Uri: /dear"]].concat(), differ);
    // Both families may be sent if they agree.
    check(
        URL,
        &forwarded(&["X-Original-Uri: /orders?api_key=q1", "X-Original-Method: POST", "X-Original-Host: x"]),
        "POST shop.example/orders key=ip:203.0.113.7 ip=203.0.113.7 tier= cost=1",
    );
    rejected(URL, &forwarded(&["X-Forwarded-Uri: /cheap"]), "the URI is sent twice");
    rejected(URL, &forwarded(&["X-Forwarded-Method: POST"]), "the method is sent twice");
    rejected(URL, &forwarded(&["X-Forwarded-Host: other"]), "the host is sent twice");
    let missing = "have the proxy set X-Forwarded-Method and X-Forwarded-Uri";
    rejected(URL, &[], missing);
    rejected(URL, &["X-Forwarded-Method: GET"], missing);
    rejected(URL, &["X-Original-URI: /"], missing);
    rejected(URL, &["X-Forwarded-Method:", "X-Forwarded-Uri:"], missing);
}

#[test]
fn ambiguous_keys_are_rejected() {
    let header = format!("{URL}?key=header:x-api-key,ip");
    rejected(&header, &forwarded(&["X-Api-Key: a", "x-api-key: b"]), "the header x-api-key is sent twice");
    rejected(&header, &forwarded(&["X-Api-Key: ip:203.0.113.9"]), "begins with ip:");
    rejected(&header, &forwarded(&[&format!("X-Api-Key: {}", "a".repeat(4097))]), "more than 4096 bytes");
    let query = format!("{URL}?key=query:api_key,ip");
    let twice = ["X-Forwarded-Method: GET", "X-Forwarded-Uri: /?api_key=a&api%5fkey=b"];
    rejected(&query, &twice, "the parameter api_key is sent twice");
    let lines: Vec<&[u8]> =
        FORWARDED.iter().map(|line| line.as_bytes()).chain([&b"X-Api-Key: \xff"[..]]).collect();
    let found = parsed(&ForwardOptions::default(), "127.0.0.1", &header, &lines).unwrap_err();
    assert!(found.contains("the key in x-api-key is not UTF-8"), "{found}");
}

#[test]
fn unusual_methods_and_uris_are_parsed_or_rejected() {
    let lines: [&[u8]; 2] = [b"X-Forwarded-Method: GET", b"X-Forwarded-Uri: /caf\xe9?\xff"];
    let found = parsed(&ForwardOptions::default(), "127.0.0.1", URL, &lines).unwrap();
    assert_eq!(found, "GET own.example/caf%E9 key=ip:127.0.0.1 ip=127.0.0.1 tier= cost=1");
    rejected(
        URL,
        &[&format!("X-Forwarded-Method: {}", "A".repeat(129)), "X-Forwarded-Uri: /"],
        "the method is not a word",
    );
    rejected(URL, &["X-Forwarded-Method: GET POST", "X-Forwarded-Uri: /"], "the method is not a word");
    let long = |length: usize| format!("X-Forwarded-Uri: /{}?{}", "a".repeat(length - 1), "q".repeat(9000));
    rejected(URL, &["X-Forwarded-Method: GET", &long(8193)], "the path has more than 8192 characters");
    let lines = ["X-Forwarded-Method: GET".to_owned(), long(8192)];
    let lines: Vec<_> = lines.iter().map(String::as_bytes).collect();
    parsed(&ForwardOptions::default(), "127.0.0.1", URL, &lines).unwrap();
}

#[test]
fn only_trusted_proxies_set_the_client_address() {
    let ip = |proxies: &TrustedProxies, peer: &str, lines: &[&str]| {
        let options = ForwardOptions { proxies: proxies.clone(), ..ForwardOptions::default() };
        let lines: Vec<_> = FORWARDED.iter().chain(lines).map(|line| line.as_bytes()).collect();
        let found = parsed(&options, peer, URL, &lines).unwrap();
        found.split("ip=").nth(1).unwrap().split(' ').next().unwrap().to_owned()
    };
    let list = ["X-Forwarded-For: 1.2.3.4, 203.0.113.7", "X-Real-Ip: 5.6.7.8", "Forwarded: for=9.9.9.9"];
    let default = TrustedProxies::default();
    assert_eq!(ip(&default, "127.0.0.1", &list), "203.0.113.7");
    assert_eq!(ip(&default, "::ffff:127.0.0.1", &list), "203.0.113.7");
    assert_eq!(ip(&default, "10.0.0.1", &list), "10.0.0.1");
    assert_eq!(ip(&default, "127.0.0.1", &list[1..]), "127.0.0.1", "only one header is used");
    assert_eq!(
        ip(&default, "127.0.0.1", &["X-Forwarded-For: 1.2.3.4", "X-Forwarded-For: 203.0.113.7"]),
        "203.0.113.7"
    );
    let networks = vec!["10.0.0.0/8".parse().unwrap()];
    let real = TrustedProxies { networks, header: AddressHeader::XRealIp };
    assert_eq!(ip(&real, "10.0.0.1", &list), "5.6.7.8");
    assert_eq!(ip(&real, "127.0.0.1", &list), "127.0.0.1");
    let standard = TrustedProxies { header: AddressHeader::Forwarded, ..real };
    assert_eq!(ip(&standard, "10.0.0.1", &list), "9.9.9.9");
    let none = TrustedProxies { networks: Vec::new(), ..standard };
    assert_eq!(ip(&none, "127.0.0.1", &list), "127.0.0.1");
}
