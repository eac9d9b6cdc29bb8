"""The test harness: an upstream server, Ratekeeper, helpers to run a proxy, and HTTP clients."""

import atexit
import http.client
import http.server
import os
import pathlib
import re
import socket
import subprocess
import threading
import time

class Upstream:
    """An HTTP server that answers every request with 200 and records it."""

    def __init__(self):
        upstream = self
        upstream.seen, upstream.lock = [], threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Head and body are two writes; Nagle's algorithm would delay the second one.
            disable_nagle_algorithm = True

            def respond(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                with upstream.lock:
                    upstream.seen.append((self.command, self.path, self.headers, len(body)))
                self.send_response(200)
                self.send_header("content-length", "5")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(b"hello")

            do_GET = do_POST = do_PUT = do_HEAD = do_OPTIONS = respond

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = "127.0.0.1:%d" % self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=[0.05], daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def take_requests(self):
        """Returns the requests since the last call."""
        with self.lock:
            seen, self.seen = self.seen, []
        return seen


class Process:
    """A child process that is killed when the test ends."""

    def __init__(self, command, folder):
        self.log = folder / f"{pathlib.Path(command[0]).name}.log"
        # Keeps its files out of the home directory of the user who runs the tests.
        environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment)
        atexit.register(self.stop)

    def stop(self):
        self.child.kill()
        self.child.wait()

    def wait_until(self, is_ready):
        """Waits until `is_ready` returns a true value, and returns it."""
        deadline = time.monotonic() + 20
        while not (found := is_ready()):
            if self.child.poll() is not None or time.monotonic() > deadline:
                log = self.log.read_text(errors="replace")[-4000:]
                raise SystemExit(f"{self.log.stem} did not start; its log:\n{log}")
            time.sleep(0.02)
        return found


class Ratekeeper(Process):
    def __init__(self, program, folder, rules, *arguments):
        (folder / "rules.yaml").write_text(rules)
        others = [f"--{port}=off" for port in ["grpc", "resp", "admin"]]
        super().__init__(
            [program, "serve", "--http=127.0.0.1:0", "--rules=rules.yaml", *others, *arguments], folder
        )
        address = lambda: re.search(r" listening on http://(\S+)", self.log.read_text())
        self.address = self.wait_until(address)[1]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Client:
    """An HTTP client with a loopback source address, which connects to the proxy at this port."""

    def __init__(self, port, address="127.0.0.2"):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20, source_address=(address, 0))

    def request(self, method="GET", path="/", body=None, **fields):
        """Sends a request. In header names, _ stands for -; a list value becomes several header lines."""
        self.connection.putrequest(method, path, skip_accept_encoding=True, skip_host="host" in fields)
        for name, values in fields.items():
            for value in [values] if isinstance(values, str) else values:
                self.connection.putheader(name.replace("_", "-"), value)
        if body is not None:
            self.connection.putheader("content-length", str(len(body)))
        self.connection.endheaders(body)
        response = self.connection.getresponse()
        response.text = response.read().decode()
        return response

    def try_request(self, **fields):
        """Returns the status of the response, or None if the connection failed."""
        try:
            return self.request(**fields).status
        except OSError:
            return None

    def statuses(self, count, *arguments, **fields):
        return [self.request(*arguments, **fields).status for _ in range(count)]
