"""What the tests of proxies are played with: an upstream, a Ratekeeper, a proxy in between, and clients."""

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
    """Answers everything, and remembers what it was asked."""

    def __init__(self):
        upstream = self
        upstream.seen, upstream.lock = [], threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Its head and its body are two writes, and the second would wait for a client that waits for it.
            disable_nagle_algorithm = True

            def answer(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                with upstream.lock:
                    upstream.seen.append((self.command, self.path, self.headers, len(body)))
                self.send_response(200)
                self.send_header("content-length", "5")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(b"hello")

            do_GET = do_POST = do_PUT = do_HEAD = do_OPTIONS = answer

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = "127.0.0.1:%d" % self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=[0.05], daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def taken(self):
        """What it was asked since it was last asked for."""
        with self.lock:
            seen, self.seen = self.seen, []
        return seen


class Process:
    """A program that is stopped with the test."""

    def __init__(self, command, folder):
        self.log = folder / f"{pathlib.Path(command[0]).name}.log"
        # Whatever it would keep in the home of whoever runs the tests, it keeps here.
        around = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=around)
        atexit.register(self.stop)

    def stop(self):
        self.child.kill()
        self.child.wait()

    def until(self, is_ready):
        """Waits for what the program does once it runs."""
        deadline = time.monotonic() + 20
        while not (found := is_ready()):
            if self.child.poll() is not None or time.monotonic() > deadline:
                said = self.log.read_text(errors="replace")[-4000:]
                raise SystemExit(f"{self.log.stem} does not start; it said:\n{said}")
            time.sleep(0.02)
        return found


class Ratekeeper(Process):
    def __init__(self, program, folder, rules, *arguments):
        (folder / "rules.yaml").write_text(rules)
        others = [f"--{port}=off" for port in ["grpc", "resp", "admin"]]
        super().__init__(
            [program, "serve", "--http=127.0.0.1:0", "--rules=rules.yaml", *others, *arguments], folder
        )
        said = lambda: re.search(r" listening on http://(\S+)", self.log.read_text())
        self.address = self.until(said)[1]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Client:
    """Somebody at an address of this machine, behind the proxy at this port."""

    def __init__(self, port, address="127.0.0.2"):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20, source_address=(address, 0))

    def ask(self, method="GET", path="/", body=None, **fields):
        """Sends a request; names of fields have _ for -, and a list is as many lines."""
        self.connection.putrequest(method, path, skip_accept_encoding=True, skip_host="host" in fields)
        for name, values in fields.items():
            for value in [values] if isinstance(values, str) else values:
                self.connection.putheader(name.replace("_", "-"), value)
        if body is not None:
            self.connection.putheader("content-length", str(len(body)))
        self.connection.endheaders(body)
        answer = self.connection.getresponse()
        answer.text = answer.read().decode()
        return answer

    def ask_again(self, **fields):
        """The status of an answer, from whoever is there by now; nothing if nobody is."""
        try:
            return self.ask(**fields).status
        except OSError:
            return None

    def statuses(self, count, *arguments, **fields):
        return [self.ask(*arguments, **fields).status for _ in range(count)]
