"""Envoy in front of an upstream, with Ratekeeper as its rate limit service: denials with the right headers, exact limits
under load, and behaviour while Ratekeeper is down.

    edge.py RATEKEEPER FOLDER

starts everything on free ports and writes its files to FOLDER.
"""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import envoy

PROGRAM, FOLDER = sys.argv[1], Path(sys.argv[2])
RULES = "docs/envoy-rules.yaml"


class Upstream(BaseHTTPRequestHandler):
    """The server behind Envoy. It counts the requests that reach it."""

    protocol_version = "HTTP/1.1"
    passed = 0
    lock = threading.Lock()

    def do_GET(self):
        with Upstream.lock:
            Upstream.passed += 1
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"hi")

    def log_message(self, *_):
        pass


def start_ratekeeper(address):
    """Starts Ratekeeper. Returns the process and its gRPC address."""
    command = [PROGRAM, "serve", "--rules", RULES, "--grpc", address, "--headers", "ietf", "--log-format", "json"]
    command += ["--http", "off", "--resp", "off", "--admin", "off"]
    log = open(FOLDER / "ratekeeper.log", "a")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    for line in process.stdout:
        if line.startswith("gRPC"):
            return process, re.search(r"://(\S+)", line).group(1)
    raise SystemExit(f"Ratekeeper did not start: see {FOLDER}/ratekeeper.log")


def start_envoy(ratekeeper, upstream):
    """Starts Envoy with the documented configuration, on free ports."""
    text = Path("docs/envoy.yaml").read_text()
    for port, actual in [("10000", "0"), ("8081", ratekeeper.rsplit(":")[-1]), ("9000", str(upstream))]:
        assert text.count(f"port_value: {port}") == 1, port
        text = text.replace(f"port_value: {port}", f"port_value: {actual}")
    # Envoy allows a request whose check times out, which would happen on a busy machine.
    text = text.replace("timeout: 0.25s", "timeout: 10s")
    text += "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}\n"
    config, admin = FOLDER / "envoy.yaml", FOLDER / "admin"
    config.write_text(text)
    admin.unlink(missing_ok=True)
    program = next(Path(envoy.__file__).parent.rglob("_bin/envoy"))
    command = [program, "-c", config, "--admin-address-path", admin, "--disable-hot-restart"]
    command += ["--concurrency", "2", "--log-level", "warning", "--log-path", FOLDER / "envoy.log"]
    process = subprocess.Popen(command)
    wait("Envoy is up", lambda: process.poll() is None and admin.exists() and is_live(admin.read_text()))
    listeners = json.load(urllib.request.urlopen(f"http://{admin.read_text()}/listeners?format=json"))
    address = listeners["listener_statuses"][0]["local_address"]["socket_address"]
    return process, admin.read_text(), f"127.0.0.1:{address['port_value']}"


def is_live(admin):
    try:
        return urllib.request.urlopen(f"http://{admin}/ready").read().startswith(b"LIVE")
    except OSError:
        return False


def wait(what, is_true):
    """Waits up to 20 seconds until `is_true` returns true."""
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline, f"{what}: not within 20 seconds"
        time.sleep(0.02)


@contextmanager
def running(process):
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Edge:
    """An HTTP client of Envoy, with one connection per thread."""

    def __init__(self, address):
        self.address = address
        self.local = threading.local()

    def get(self, path, **headers):
        """Returns the status, the headers and the body of the response."""
        if not hasattr(self.local, "connection"):
            self.local.connection = http.client.HTTPConnection(self.address, timeout=10)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.local.connection.request("GET", path, headers=headers)
        response = self.local.connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


def stats(admin, name):
    """Returns the sum of the Envoy counters whose names match."""
    text = urllib.request.urlopen(f"http://{admin}/stats?filter={name}").read().decode()
    return sum(int(value) for value in re.findall(r": (\d+)$", text, re.M))


def under_load(edge, admin):
    """A limit of 100 allows exactly 100 of 1000 requests from 16 threads."""
    before = Upstream.passed
    with ThreadPoolExecutor(16) as pool:
        statuses = [status for status, *_ in pool.map(lambda _: edge.get("/login"), range(1000))]
    assert sorted(set(statuses)) == [200, 429], set(statuses)
    assert statuses.count(200) == 100 and Upstream.passed - before == 100, statuses.count(200)
    assert stats(admin, "ratelimit.over_limit") == 900 and stats(admin, "ratelimit.error") == 0


def denials(edge):
    """A denial carries reason and retry time, in Ratekeeper's headers and body and in the headers that Envoy sets."""
    status, headers, body = edge.get("/login")
    assert status == 429, status
    # A forged X-Forwarded-For has no effect.
    assert edge.get("/login", x_forwarded_for="203.0.113.9")[0] == 429
    assert headers["x-envoy-ratelimited"] == "true" and headers["content-type"] == "application/json", headers
    assert headers["x-ratelimit-limit"] == '100, 100;w=86400;name="login"', headers
    assert headers["x-ratelimit-remaining"] == "0" and 0 < int(headers["x-ratelimit-reset"]) <= 86400, headers
    assert headers["ratelimit"].startswith('"login";r=0;t='), headers
    # Without a key the address is the client, so the default rule counts it too.
    assert headers["ratelimit-policy"] == '"login";q=100;w=86400, "default";q=1000;w=86400', headers
    wait_for = int(headers["retry-after"])
    # 100 per day is one unit every 864 seconds.
    assert 0 < wait_for <= 864, headers
    error = json.loads(body)["error"]
    assert error["code"] == "RATE_LIMIT_EXCEEDED" and error["details"]["limit"] == 100, body
    assert abs(error["details"]["retry_after_seconds"] - wait_for) <= 1, body


def ordinary_rules(edge):
    """Descriptors with a key and a path match rules that do not mention Envoy."""
    status, headers, _ = edge.get("/", x_api_key="alice")
    assert status == 200 and headers["x-ratelimit-limit"] == '1000, 1000;w=86400;name="default"', headers
    assert headers["x-ratelimit-remaining"] == "999" and headers["ratelimit"].startswith('"default";r=999;'), headers
    for left in (29, 28):
        status, headers, _ = edge.get("/search//a?q=1", x_api_key="alice")
        assert status == 200 and headers["x-ratelimit-remaining"] == str(left), headers
        assert headers["x-ratelimit-limit"] == '30, 30;w=86400;name="search"', headers
    status, headers, body = edge.get("/", x_api_key="revoked")
    assert status == 429 and json.loads(body)["error"]["code"] == "CLIENT_DENIED", (status, body)
    assert "retry-after" not in headers, headers
    # Without a key there is no descriptor, so Envoy makes no check.
    status, headers, _ = edge.get("/")
    assert status == 200 and "ratelimit" not in headers, headers


def unusual_keys(edge, admin):
    """A key that is not UTF-8, or of the maximum length, is limited like any other: an error would allow the request."""
    errors = stats(admin, "ratelimit.error")
    for key in (b"\xff\xfe", b"k" * 30_000):
        codes = {edge.get("/search/x", x_api_key=key)[0] for _ in range(31)}
        assert codes == {200, 429}, (key[:2], codes)
    assert stats(admin, "ratelimit.error") == errors


def outage(edge, admin, ratekeeper, address):
    """While Ratekeeper is down, Envoy allows requests, as configured. Limits apply after a restart. Returns the process."""
    os.kill(ratekeeper.pid, signal.SIGKILL)
    ratekeeper.wait()
    for _ in range(20):
        status, headers, _ = edge.get("/login")
        assert status == 200 and "x-ratelimit-limit" not in headers, (status, headers)
    assert stats(admin, "ratelimit.failure_mode_allowed") >= 20
    ratekeeper, _ = start_ratekeeper(address)
    began = time.monotonic()
    wait("limits apply again", lambda: "x-ratelimit-limit" in edge.get("/login")[1])
    print(f"limits applied again {time.monotonic() - began:.2f} s after the restart")
    statuses = [edge.get("/login")[0] for _ in range(120)]
    assert 429 in statuses and statuses.count(200) < 100, statuses
    return ratekeeper


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for log in ("ratekeeper.log", "envoy.log"):
        (FOLDER / log).write_text("")
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    ratekeeper, address = start_ratekeeper("127.0.0.1:0")
    try:
        process, admin, edge = start_envoy(address, upstream.server_port)
        with running(process):
            edge = Edge(edge)
            under_load(edge, admin)
            denials(edge)
            ordinary_rules(edge)
            unusual_keys(edge, admin)
            ratekeeper = outage(edge, admin, ratekeeper, address)
    finally:
        ratekeeper.kill()
    log = (FOLDER / "ratekeeper.log").read_text()
    assert "panicked" not in log and re.search(r'"rule":"login".*"denied"|"denied".*"rule":"login"', log), log[-2000:]
    version = subprocess.check_output([next(Path(envoy.__file__).parent.rglob("_bin/envoy")), "--version"], text=True)
    print("Envoy", re.search(r"/(\d+\.\d+\.\d+)/", version).group(1))


main()
