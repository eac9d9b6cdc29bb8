"""nginx, Traefik and Caddy in front of Ratekeeper, each with the configuration in docs/forward-auth.md."""

import concurrent.futures
import json
import pathlib
import shutil
import sys

from harness import Client, Process, Ratekeeper, Upstream, free_port

HERE = pathlib.Path(__file__).parent
DOCS = (HERE / "../../docs/forward-auth.md").read_text()
PROGRAM, NGINX, FOLDER = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
PROGRAMS = pathlib.Path(sys.executable).parent
TOKEN = "0123456789abcdef0123"

LIMIT = 20
RULES = f"""
rules:
  - {{id: login, match: {{path: /login, method: POST}}, key: ip, limit: 2/day}}
  - {{id: admin, match: {{attributes: {{host: admin.example}}}}, key: [ip, host], limit: 3/day}}
default: {{limit: {LIMIT}/day}}
allow: [friend]
"""


def documented(name):
    """Returns a file of this folder, and checks that the documentation contains it verbatim."""
    text = (HERE / name).read_text()
    assert text in DOCS, f"docs/forward-auth.md does not contain {name} verbatim"
    return text


def with_parts(text, parts):
    """Inserts parts before certain lines of a configuration, and checks that the documentation contains the parts."""
    for line, part in parts:
        assert part.replace(TOKEN, "TOKEN") in DOCS, f"docs/forward-auth.md does not contain {part!r}"
        text = text.replace(line, part + line)
    return text


class Proxy(Process):
    """A running proxy with additional parts in its configuration."""

    # The status for a request that Ratekeeper rejects as invalid, and while Ratekeeper is down.
    invalid, unavailable = 400, 502

    def __init__(self, folder, ratekeeper, upstream, parts):
        self.folder, self.port, self.parts = folder, free_port(), parts
        self.addresses = {"127.0.0.1:8080": ratekeeper.address, "127.0.0.1:3000": upstream.address}
        super().__init__(self.configure(), folder)
        # Traefik listens before it has loaded its routes.
        self.wait_until(lambda: self.client("127.0.0.9").try_request(x_api_key="friend") == 200)
        upstream.take_requests()

    def write(self, source, name, prefix="", **addresses):
        text = with_parts(documented(source), self.parts)
        for documented_address, address in {**self.addresses, **addresses}.items():
            text = text.replace(documented_address, address)
        (self.folder / name).write_text(prefix + text)

    def client(self, address="127.0.0.2"):
        return Client(self.port, address)


class Nginx(Proxy):
    invalid, unavailable = 500, 500
    # auth_request does not pass on the response body.
    body = '{"error":{"code":"RATE_LIMIT_EXCEEDED","message":"Too many requests"}}'

    MAIN = """
daemon off;
master_process off;
pid nginx.pid;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include site.conf;
}
"""
    forward_line = "        proxy_pass http://ratekeeper"
    fail_open = [
        (forward_line, "        error_page 502 504 = @open;\n"),
        ("    # auth_request passes on", "    location @open {\n        return 204;\n    }\n"),
    ]
    token = [(forward_line, f"        proxy_set_header X-Ratekeeper-Token {TOKEN};\n")]

    def configure(self):
        self.write("nginx.conf", "site.conf", **{"listen 80": f"listen 127.0.0.1:{self.port}"})
        (self.folder / "nginx.conf").write_text(self.MAIN)
        return [NGINX, "-p", str(self.folder), "-c", str(self.folder / "nginx.conf"), "-e", "stderr"]


class Traefik(Proxy):
    unavailable = 500
    body = None
    fail_open = None
    token = [("key=header:x-api-key,ip\"", f"token={TOKEN}&")]

    def configure(self):
        # Traefik would check for a newer version of itself.
        prefix = "global: {checkNewVersion: false}\n"
        self.write("traefik.yaml", "traefik.yaml", prefix, **{'":80"': f'"127.0.0.1:{self.port}"'})
        self.write("dynamic.yaml", "dynamic.yaml")
        return [str(PROGRAMS / "traefik"), "--configFile=traefik.yaml"]


class Caddy(Proxy):
    body = None
    fail_open = [("\troute {", "\thandle_errors 502 504 {\n\t\treverse_proxy 127.0.0.1:3000\n\t}\n")]
    token = [("\t\t\turi ", f"\t\t\theader_up X-Ratekeeper-Token {TOKEN}\n")]

    def configure(self):
        prefix = "{\n\tadmin off\n\tpersist_config off\n\tdefault_bind 127.0.0.1\n}\n"
        self.write("Caddyfile", "Caddyfile", prefix, **{":80 {": f":{self.port} {{"})
        return [str(PROGRAMS / "caddy"), "run", "--config", "Caddyfile", "--adapter", "caddyfile"]


class Setup:
    """One proxy with its upstream and its Ratekeeper."""

    def __init__(self, kind, name, parts=(), arguments=()):
        folder = FOLDER / f"{kind.__name__.lower()}-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.kind, self.upstream = kind, Upstream()
        # Clients use other loopback addresses, so only the proxy's own is trusted.
        arguments = ["--trusted-proxies=127.0.0.1", "--denial-log=1000", *arguments]
        self.ratekeeper = Ratekeeper(PROGRAM, folder, RULES, *arguments)
        self.proxy = kind(folder, self.ratekeeper, self.upstream, parts)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proxy.stop()
        self.ratekeeper.stop()
        self.upstream.stop()
        assert "panicked" not in self.ratekeeper.log.read_text()

    def client(self, address="127.0.0.2"):
        return self.proxy.client(address)

    def expect(self, found, expected, why):
        assert found == expected, f"{self.kind.__name__}, {why}: {found} instead of {expected}"

    def expect_upstream(self, expected, why):
        """Expects that many requests to have reached the upstream since the last call."""
        self.expect(len(self.upstream.take_requests()), expected, why)


def limits_by_key(setup):
    client = setup.client()
    for left in reversed(range(LIMIT)):
        response = client.request(path="/orders?page=2", x_api_key="sk_alice")
        setup.expect((response.status, response.text), (200, "hello"), f"{left} are left")
        [(_, path, fields, _)] = setup.upstream.take_requests()
        setup.expect(path, "/orders?page=2", "the path is unchanged")
        # Traefik sets the headers on the upstream request, the others on the response.
        limit_headers = fields if setup.kind is Traefik else response.headers
        found = (limit_headers["x-ratelimit-limit"], limit_headers["x-ratelimit-remaining"])
        setup.expect(found, (str(LIMIT), str(left)), "headers")
    for _ in range(3):
        response = client.request(path="/orders", x_api_key="sk_alice")
        setup.expect(response.status, 429, "the limit is reached")
        wait = int(response.headers["retry-after"])
        assert 0 < wait <= 86400 // LIMIT, wait
        setup.expect(response.headers["x-ratelimit-remaining"], "0", "nothing is left")
        setup.expect(response.headers["cache-control"], "no-store", "a denial is not cached")
        setup.expect(response.headers["content-type"], "application/json", "the content type of a denial")
        error = json.loads(response.text)["error"]
        setup.expect(error["code"], "RATE_LIMIT_EXCEEDED", "the body of a denial")
        if setup.kind.body is None:
            setup.expect(error["details"]["retry_after_seconds"], wait, "the body of a denial")
        else:
            setup.expect(response.text, setup.kind.body, "the body of a denial")
    setup.expect_upstream(0, "denied requests are not passed on")
    if setup.kind.body is None:
        response = client.request(x_api_key="sk_alice", accept="application/problem+json")
        setup.expect(response.headers["content-type"], "application/problem+json", "the client's Accept counts")
    setup.expect(client.request(x_api_key="sk_bob").status, 200, "another key is another client")
    setup.expect_upstream(1, "another key")
    setup.expect(setup.client("127.0.0.3").request(x_api_key="sk_alice").status, 429, "a key is one client everywhere")
    log = setup.ratekeeper.log.read_text()
    assert "sk…" in log and "sk_a" not in log, "keys are not logged"


def limits_by_address(setup):
    forged = [
        dict(x_forwarded_for="1.2.3.4"),
        dict(x_forwarded_for=["1.2.3.4", "1.2.3.5"]),
        dict(x_forwarded_for="1.2.3.4, 127.0.0.1", x_real_ip="1.2.3.4"),
        dict(forwarded="for=1.2.3.4", x_client_ip="1.2.3.4", true_client_ip="1.2.3.4"),
        dict(x_forwarded_host="other.example", x_forwarded_proto="https", x_api_key=""),
    ]
    client = setup.client("127.0.0.5")
    statuses = [client.request(**forged[index % len(forged)]).status for index in range(LIMIT + 5)]
    setup.expect(statuses, [200] * LIMIT + [429] * 5, "a forged header does not change the address")
    setup.expect_upstream(LIMIT, "an address")
    setup.expect(setup.client("127.0.0.6").request().status, 200, "another address is another client")
    setup.expect_upstream(1, "another address")
    # A client can't use another's limit by sending its address as a key, or by sending two keys.
    for key in ["ip:127.0.0.6", ["sk_one", "sk_two"]]:
        setup.expect(setup.client().request(x_api_key=key).status, setup.kind.invalid, f"the key {key}")
    setup.expect_upstream(0, "invalid requests are not passed on")


def limits_by_original_path(setup):
    spelled = ["/login", "/login?next=/", "/%6Cogin", "//login", "/x/../login", "/login/", "/./login"]
    client = setup.client("127.0.0.7")
    statuses = [client.request("POST", path, b"", x_api_key=f"k{index}").status for index, path in enumerate(spelled)]
    setup.expect(statuses, [200] * 2 + [429] * 5, "all spellings of a path share one limit")
    forged = [
        dict(x_forwarded_uri="/cheap"),
        dict(x_forwarded_method="GET"),
        dict(x_forwarded_uri=["/cheap", "/cheap"], x_forwarded_method=["GET", "GET"]),
    ]
    for fields in forged:
        setup.expect(client.request("POST", "/login", b"", **fields).status, 429, f"{fields} is overwritten by the proxy")
    forged = [
        dict(x_original_uri="/cheap"),
        dict(x_original_method="GET"),
        dict(x_original_uri="/login", x_original_method="GET"),
    ]
    for fields in forged:
        setup.expect(client.request("POST", "/login", b"", **fields).status, setup.kind.invalid, f"{fields} is rejected")
    setup.expect_upstream(2, "the path")
    setup.expect(client.request("GET", "/login").status, 200, "the rule is for another method")
    setup.expect_upstream(1, "the method")
    client = setup.client("127.0.0.10")
    hosts = ["admin.example", "Admin.Example", "ADMIN.EXAMPLE:443", "admin.example", "admin.example:80"]
    setup.expect([client.request(host=host).status for host in hosts], [200] * 3 + [429] * 2, "the host")
    setup.expect_upstream(3, "the host")


def leaves_everything_else_unchanged(setup):
    client = setup.client("127.0.0.11")
    setup.expect(client.request("POST", "/upload", b"x" * 300_000, x_api_key="sk_up").status, 200, "an upload")
    [(method, _, _, length)] = setup.upstream.take_requests()
    setup.expect((method, length), ("POST", 300_000), "only the upstream gets the body")
    upgrade = dict(connection="Upgrade", upgrade="websocket", sec_websocket_key="x", sec_websocket_version="13")
    setup.expect(client.request(x_api_key="sk_up", **upgrade).status, 200, "a WebSocket handshake is limited like any request")
    preflight = dict(origin="https://a.example", access_control_request_method="PUT")
    setup.expect(client.request("OPTIONS", "/x", **preflight).status, 200, "a preflight is limited too")
    setup.expect(client.request("HEAD", "/x", x_api_key="sk_up").status, 200, "HEAD is limited too")
    # The query string of a client has no effect on the query string of the auth request.
    query = "/?cost=0&tier=pro&key=header:x-other&deny_status=429&token=x"
    setup.upstream.take_requests()
    setup.expect(client.statuses(LIMIT + 1, path=query, x_api_key="sk_query"), [200] * LIMIT + [429], "a query")
    setup.expect_upstream(LIMIT, "a query")
    setup.expect(client.statuses(LIMIT + 5, x_api_key="friend", x_ratelimit_limit="9"), [200] * (LIMIT + 5), "allowed")
    for _, _, fields, _ in setup.upstream.take_requests():
        forged = "9" if setup.kind is Nginx else None
        setup.expect(fields["x-ratelimit-limit"], forged, "copied headers are Ratekeeper's")


def counts_exactly(setup):
    clients, each = 8, 10
    with concurrent.futures.ThreadPoolExecutor(clients) as threads:
        results = [threads.submit(setup.client().statuses, each, x_api_key="sk_concurrent") for _ in range(clients)]
        statuses = [status for result in results for status in result.result()]
    setup.expect(statuses.count(200), LIMIT, "exactly the limit is allowed")
    setup.expect(statuses.count(429), clients * each - LIMIT, "all others are denied")
    setup.expect_upstream(LIMIT, "concurrent clients")


def denies_without_ratekeeper(setup):
    setup.ratekeeper.stop()
    setup.expect(setup.client().request(x_api_key="sk_unavailable").status, setup.kind.unavailable, "without Ratekeeper")
    setup.expect_upstream(0, "without Ratekeeper")


def fails_open_if_configured(setup):
    setup.expect(setup.client().statuses(LIMIT + 1, x_api_key="sk_open"), [200] * LIMIT + [429], "while Ratekeeper is up")
    setup.expect(setup.client().request(x_api_key="ip:127.0.0.6").status, setup.kind.invalid, "an invalid request")
    setup.expect_upstream(LIMIT, "while Ratekeeper is up")
    setup.ratekeeper.stop()
    response = setup.client().request("POST", "/orders?page=2", b"x" * 100_000, x_api_key="sk_open")
    setup.expect((response.status, response.text), (200, "hello"), "without Ratekeeper")
    [(method, path, _, length)] = setup.upstream.take_requests()
    setup.expect((method, path, length), ("POST", "/orders?page=2", 100_000), "the request is unchanged")


def sends_the_token(setup):
    client = setup.client()
    authorization = "Bearer the-client's-own"
    found = client.statuses(LIMIT + 1, authorization=authorization, x_api_key="sk_token")
    setup.expect(found, [200] * LIMIT + [429], "with the token")
    setup.expect_upstream(LIMIT, "with the token")


def check(kind):
    with Setup(kind, "usual") as setup:
        limits_by_key(setup)
        limits_by_address(setup)
        limits_by_original_path(setup)
        leaves_everything_else_unchanged(setup)
        counts_exactly(setup)
        denies_without_ratekeeper(setup)
    with Setup(kind, "token", kind.token, [f"--api-token-file={FOLDER / 'token'}"]) as setup:
        sends_the_token(setup)
    if kind.fail_open:
        with Setup(kind, "open", kind.fail_open) as setup:
            fails_open_if_configured(setup)


FOLDER.mkdir(parents=True, exist_ok=True)
(FOLDER / "token").write_text(TOKEN)
for kind in [Nginx, Traefik, Caddy]:
    check(kind)
    print(f"{kind.__name__}: as documented")
