"""Real proxies in front of a real Ratekeeper, each with the configuration that docs/forward-auth.md shows."""

import concurrent.futures
import json
import pathlib
import shutil
import sys

from stage import Client, Process, Ratekeeper, Upstream, free_port

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
    """A file of this folder, which the documentation must have word for word."""
    text = (HERE / name).read_text()
    assert text in DOCS, f"docs/forward-auth.md does not have {name} as it is"
    return text


def with_parts(text, parts):
    """A configuration with parts put in before certain lines, which the documentation must have too."""
    for line, part in parts:
        assert part.replace(TOKEN, "TOKEN") in DOCS, f"docs/forward-auth.md does not have {part!r}"
        text = text.replace(line, part + line)
    return text


class Proxy(Process):
    """A proxy that lets clients in, with these parts in its configuration."""

    # What it answers where Ratekeeper refuses the question itself, and where there is no Ratekeeper.
    refused, alone = 400, 502

    def __init__(self, folder, ratekeeper, upstream, parts):
        self.folder, self.port, self.parts = folder, free_port(), parts
        self.places = {"127.0.0.1:8080": ratekeeper.address, "127.0.0.1:3000": upstream.address}
        super().__init__(self.configure(), folder)
        # Traefik has no routes when it begins to listen.
        self.until(lambda: self.client("127.0.0.9").ask_again(x_api_key="friend") == 200)
        upstream.taken()

    def write(self, source, name, before="", **places):
        text = with_parts(documented(source), self.parts)
        for usual, place in {**self.places, **places}.items():
            text = text.replace(usual, place)
        (self.folder / name).write_text(before + text)

    def client(self, address="127.0.0.2"):
        return Client(self.port, address)


class Nginx(Proxy):
    refused, alone = 500, 500
    # auth_request does not hand bodies on.
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
    question = "        proxy_pass http://ratekeeper"
    opened = [
        (question, "        error_page 502 504 = @open;\n"),
        ("    # auth_request passes on", "    location @open {\n        return 204;\n    }\n"),
    ]
    token = [(question, f"        proxy_set_header X-Ratekeeper-Token {TOKEN};\n")]

    def configure(self):
        self.write("nginx.conf", "site.conf", **{"listen 80": f"listen 127.0.0.1:{self.port}"})
        (self.folder / "nginx.conf").write_text(self.MAIN)
        return [NGINX, "-p", str(self.folder), "-c", str(self.folder / "nginx.conf"), "-e", "stderr"]


class Traefik(Proxy):
    alone = 500
    body = None
    opened = None
    token = [("key=header:x-api-key,ip\"", f"token={TOKEN}&")]

    def configure(self):
        # It would look for newer versions of itself.
        before = "global: {checkNewVersion: false}\n"
        self.write("traefik.yaml", "traefik.yaml", before, **{'":80"': f'"127.0.0.1:{self.port}"'})
        self.write("dynamic.yaml", "dynamic.yaml")
        return [str(PROGRAMS / "traefik"), "--configFile=traefik.yaml"]


class Caddy(Proxy):
    body = None
    opened = [("\troute {", "\thandle_errors 502 504 {\n\t\treverse_proxy 127.0.0.1:3000\n\t}\n")]
    token = [("\t\t\turi ", f"\t\t\theader_up X-Ratekeeper-Token {TOKEN}\n")]

    def configure(self):
        before = "{\n\tadmin off\n\tpersist_config off\n\tdefault_bind 127.0.0.1\n}\n"
        self.write("Caddyfile", "Caddyfile", before, **{":80 {": f":{self.port} {{"})
        return [str(PROGRAMS / "caddy"), "run", "--config", "Caddyfile", "--adapter", "caddyfile"]


class Stage:
    """One proxy, its upstream and its Ratekeeper."""

    def __init__(self, kind, name, parts=(), arguments=()):
        folder = FOLDER / f"{kind.__name__.lower()}-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.kind, self.upstream = kind, Upstream()
        # Clients come from other addresses of this machine, so only the proxy's own is trusted.
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

    def same(self, found, expected, why):
        assert found == expected, f"{self.kind.__name__}, {why}: {found} instead of {expected}"

    def passes(self, expected, why):
        """So many requests have reached the upstream since this was last asked."""
        self.same(len(self.upstream.taken()), expected, why)


def limits_by_key(stage):
    client = stage.client()
    for left in reversed(range(LIMIT)):
        answer = client.ask(path="/orders?page=2", x_api_key="sk_alice")
        stage.same((answer.status, answer.text), (200, "hello"), f"{left} are left")
        [(_, path, fields, _)] = stage.upstream.taken()
        stage.same(path, "/orders?page=2", "the path is left as it was")
        # Traefik can tell the upstream what is left, the others tell the client.
        told = fields if stage.kind is Traefik else answer.headers
        stage.same((told["x-ratelimit-limit"], told["x-ratelimit-remaining"]), (str(LIMIT), str(left)), "fields")
    for _ in range(3):
        answer = client.ask(path="/orders", x_api_key="sk_alice")
        stage.same(answer.status, 429, "the limit is reached")
        wait = int(answer.headers["retry-after"])
        assert 0 < wait <= 86400 // LIMIT, wait
        stage.same(answer.headers["x-ratelimit-remaining"], "0", "nothing is left")
        stage.same(answer.headers["cache-control"], "no-store", "a refusal is not kept")
        stage.same(answer.headers["content-type"], "application/json", "a refusal's type")
        error = json.loads(answer.text)["error"]
        stage.same(error["code"], "RATE_LIMIT_EXCEEDED", "a refusal's body")
        if stage.kind.body is None:
            stage.same(error["details"]["retry_after_seconds"], wait, "a refusal's body")
        else:
            stage.same(answer.text, stage.kind.body, "a refusal's body")
    stage.passes(0, "what is refused is not passed on")
    if stage.kind.body is None:
        answer = client.ask(x_api_key="sk_alice", accept="application/problem+json")
        stage.same(answer.headers["content-type"], "application/problem+json", "the client's Accept counts")
    stage.same(client.ask(x_api_key="sk_bob").status, 200, "another key is another client")
    stage.passes(1, "another key")
    stage.same(stage.client("127.0.0.3").ask(x_api_key="sk_alice").status, 429, "a key is one client everywhere")
    log = stage.ratekeeper.log.read_text()
    assert "sk…" in log and "sk_a" not in log, "keys are not written down"


def limits_by_address(stage):
    forged = [
        dict(x_forwarded_for="1.2.3.4"),
        dict(x_forwarded_for=["1.2.3.4", "1.2.3.5"]),
        dict(x_forwarded_for="1.2.3.4, 127.0.0.1", x_real_ip="1.2.3.4"),
        dict(forwarded="for=1.2.3.4", x_client_ip="1.2.3.4", true_client_ip="1.2.3.4"),
        dict(x_forwarded_host="other.example", x_forwarded_proto="https", x_api_key=""),
    ]
    client = stage.client("127.0.0.5")
    statuses = [client.ask(**forged[turn % len(forged)]).status for turn in range(LIMIT + 5)]
    stage.same(statuses, [200] * LIMIT + [429] * 5, "an address can't be forged")
    stage.passes(LIMIT, "an address")
    stage.same(stage.client("127.0.0.6").ask().status, 200, "another address is another client")
    stage.passes(1, "another address")
    # Nobody spends what is another's by naming its address as a key, or by sending two keys.
    for key in ["ip:127.0.0.6", ["sk_one", "sk_two"]]:
        stage.same(stage.client().ask(x_api_key=key).status, stage.kind.refused, f"the key {key}")
    stage.passes(0, "what can't be judged is not passed on")


def sees_the_original_path(stage):
    spelled = ["/login", "/login?next=/", "/%6Cogin", "//login", "/x/../login", "/login/", "/./login"]
    client = stage.client("127.0.0.7")
    statuses = [client.ask("POST", path, b"", x_api_key=f"k{turn}").status for turn, path in enumerate(spelled)]
    stage.same(statuses, [200] * 2 + [429] * 5, "a path is one, however it is spelled")
    forged = [
        dict(x_forwarded_uri="/cheap"),
        dict(x_forwarded_method="GET"),
        dict(x_forwarded_uri=["/cheap", "/cheap"], x_forwarded_method=["GET", "GET"]),
    ]
    for fields in forged:
        stage.same(client.ask("POST", "/login", b"", **fields).status, 429, f"{fields} is overwritten")
    forged = [
        dict(x_original_uri="/cheap"),
        dict(x_original_method="GET"),
        dict(x_original_uri="/login", x_original_method="GET"),
    ]
    for fields in forged:
        stage.same(client.ask("POST", "/login", b"", **fields).status, stage.kind.refused, f"{fields} is the client's")
    stage.passes(2, "the path")
    stage.same(client.ask("GET", "/login").status, 200, "the rule is for another method")
    stage.passes(1, "the method")
    client = stage.client("127.0.0.10")
    hosts = ["admin.example", "Admin.Example", "ADMIN.EXAMPLE:443", "admin.example", "admin.example:80"]
    stage.same([client.ask(host=host).status for host in hosts], [200] * 3 + [429] * 2, "the host")
    stage.passes(3, "the host")


def leaves_the_rest_alone(stage):
    client = stage.client("127.0.0.11")
    stage.same(client.ask("POST", "/upload", b"x" * 300_000, x_api_key="sk_up").status, 200, "an upload")
    [(method, _, _, length)] = stage.upstream.taken()
    stage.same((method, length), ("POST", 300_000), "a body goes to the upstream and nowhere else")
    upgrade = dict(connection="Upgrade", upgrade="websocket", sec_websocket_key="x", sec_websocket_version="13")
    stage.same(client.ask(x_api_key="sk_up", **upgrade).status, 200, "a handshake is judged like any request")
    preflight = dict(origin="https://a.example", access_control_request_method="PUT")
    stage.same(client.ask("OPTIONS", "/x", **preflight).status, 200, "so is a preflight")
    stage.same(client.ask("HEAD", "/x", x_api_key="sk_up").status, 200, "so is HEAD")
    # What a client asks with is not what the proxy asks with.
    query = "/?cost=0&tier=pro&key=header:x-other&deny_status=429&token=x"
    stage.upstream.taken()
    stage.same(client.statuses(LIMIT + 1, path=query, x_api_key="sk_query"), [200] * LIMIT + [429], "a query")
    stage.passes(LIMIT, "a query")
    stage.same(client.statuses(LIMIT + 5, x_api_key="friend", x_ratelimit_limit="9"), [200] * (LIMIT + 5), "allowed")
    for _, _, fields, _ in stage.upstream.taken():
        forged = "9" if stage.kind is Nginx else None
        stage.same(fields["x-ratelimit-limit"], forged, "fields that are copied are Ratekeeper's")


def counts_exactly(stage):
    crowd, each = 8, 10
    with concurrent.futures.ThreadPoolExecutor(crowd) as threads:
        asked = [threads.submit(stage.client().statuses, each, x_api_key="sk_crowd") for _ in range(crowd)]
        statuses = [status for answers in asked for status in answers.result()]
    stage.same(statuses.count(200), LIMIT, "exactly so many pass")
    stage.same(statuses.count(429), crowd * each - LIMIT, "all others are refused")
    stage.passes(LIMIT, "a crowd")


def lets_nobody_pass_alone(stage):
    stage.ratekeeper.stop()
    stage.same(stage.client().ask(x_api_key="sk_alone").status, stage.kind.alone, "without Ratekeeper")
    stage.passes(0, "without Ratekeeper")


def fails_open_if_told_to(stage):
    stage.same(stage.client().statuses(LIMIT + 1, x_api_key="sk_open"), [200] * LIMIT + [429], "while it is there")
    stage.same(stage.client().ask(x_api_key="ip:127.0.0.6").status, stage.kind.refused, "what can't be judged")
    stage.passes(LIMIT, "while it is there")
    stage.ratekeeper.stop()
    answer = stage.client().ask("POST", "/orders?page=2", b"x" * 100_000, x_api_key="sk_open")
    stage.same((answer.status, answer.text), (200, "hello"), "without Ratekeeper")
    [(method, path, _, length)] = stage.upstream.taken()
    stage.same((method, path, length), ("POST", "/orders?page=2", 100_000), "the request goes on as it was")


def knows_the_token(stage):
    client = stage.client()
    authorization = "Bearer the-client's-own"
    found = client.statuses(LIMIT + 1, authorization=authorization, x_api_key="sk_token")
    stage.same(found, [200] * LIMIT + [429], "with the token")
    stage.passes(LIMIT, "with the token")


def check(kind):
    with Stage(kind, "usual") as stage:
        limits_by_key(stage)
        limits_by_address(stage)
        sees_the_original_path(stage)
        leaves_the_rest_alone(stage)
        counts_exactly(stage)
        lets_nobody_pass_alone(stage)
    with Stage(kind, "token", kind.token, [f"--api-token-file={FOLDER / 'token'}"]) as stage:
        knows_the_token(stage)
    if kind.opened:
        with Stage(kind, "open", kind.opened) as stage:
            fails_open_if_told_to(stage)


FOLDER.mkdir(parents=True, exist_ok=True)
(FOLDER / "token").write_text(TOKEN)
for kind in [Nginx, Traefik, Caddy]:
    check(kind)
    print(f"{kind.__name__}: as documented")
