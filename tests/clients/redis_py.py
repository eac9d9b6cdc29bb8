"""redis-py against the RESP port, with both protocol versions, blocking and asynchronous."""

import asyncio
import sys
import threading

import redis
import redis.asyncio
import redis.backoff
import redis.retry

open_address, guarded_address, token = sys.argv[1:]
host, port = open_address.rsplit(":", 1)
guarded_host, guarded_port = guarded_address.rsplit(":", 1)
DAY = 86400


def raises(kind, message, action):
    try:
        reply = action()
    except kind as error:
        assert message in str(error), f"{error!r} does not contain {message!r}"
    else:
        raise AssertionError(f"{reply!r} instead of an error")


def throttle(client, key, burst=15, count=30, period=60, *quantity):
    return client.execute_command("CL.THROTTLE", key, burst, count, period, *quantity)


def try_all(client, name):
    assert client.ping() is True
    assert client.echo("héllo") == "héllo"
    assert throttle(client, f"{name}:a") == [0, 16, 15, -1, 2]
    assert throttle(client, f"{name}:slow", 15, 1, DAY, 16) == [0, 16, 0, -1, 16 * DAY]
    limited, limit, remaining, retry_after, reset_after = throttle(client, f"{name}:slow", 15, 1, DAY)
    assert (limited, limit, remaining) == (1, 16, 0)
    assert DAY - 600 < retry_after <= DAY and 16 * DAY - 600 < reset_after <= 16 * DAY
    assert throttle(client, f"{name}:never", 0, 1, 1, 2) == [1, 1, 1, -1, 0]
    assert client.execute_command("RK.CHECK", f"{name}:b", "/orders", 2)[:3] == [0, 100, 98]
    assert client.execute_command("RK.CHECK", f"{name}:b", "/orders", "METHOD", "GET", "IP", "192.0.2.7")[:3] == [0, 100, 97]

    raises(redis.ResponseError, "max_burst is not a whole number", lambda: throttle(client, "a", "x"))
    raises(redis.ResponseError, "wrong number of arguments", lambda: client.execute_command("CL.THROTTLE"))
    raises(redis.ResponseError, "unknown command 'GET'", lambda: client.get("a"))
    raises(redis.ResponseError, "DB index is out of range", lambda: client.execute_command("SELECT", 3))
    assert client.ping(), "the connection survives an error"

    pipeline = client.pipeline(transaction=False)
    for _ in range(5000):
        throttle(pipeline, f"{name}:p", 9999, 1, DAY)
    replies = pipeline.execute()
    assert [reply[2] for reply in replies] == list(range(9999, 4999, -1))

    pipeline = client.pipeline()
    for _ in range(2000):
        throttle(pipeline, f"{name}:t", 1999, 1, DAY)
    assert [reply[2] for reply in pipeline.execute()] == list(range(1999, -1, -1))

    for transaction in (False, True):
        pipeline = client.pipeline(transaction=transaction)
        throttle(pipeline, f"{name}:e{transaction}", 9, 1, DAY)
        throttle(pipeline, "a", 9, 0, DAY)
        throttle(pipeline, f"{name}:e{transaction}", 9, 1, DAY)
        first, error, second = pipeline.execute(raise_on_error=False)
        assert (first[2], second[2]) == (9, 8) and "zero rates" in str(error), error

    assert client.client_setname("worker-7") and client.client_getname() == "worker-7"
    assert client.client_id() > 0
    info = client.info()
    assert info["redis_mode"] == "standalone" and info["loading"] == 0 and "ratekeeper_version" in info, info
    assert client.config_get("save") == {"save": ""}
    assert client.command_count() == len(client.command()) and "cl.throttle" in client.command()


def try_threads(client, name):
    """Threads share a connection pool: exactly the limit is granted."""
    granted = []

    def take():
        granted.extend(throttle(client, f"{name}:shared", 999, 1, DAY)[0] == 0 for _ in range(300))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 2400 and sum(granted) == 1000, sum(granted)


async def try_async(protocol):
    async with redis.asyncio.Redis(host=host, port=int(port), protocol=protocol) as client:
        assert await client.ping()
        replies = await asyncio.gather(
            *(client.execute_command("CL.THROTTLE", f"async{protocol}", 39, 1, DAY) for _ in range(80))
        )
        assert sum(reply[0] == 0 for reply in replies) == 40
        async with client.pipeline(transaction=False) as pipeline:
            for _ in range(1000):
                pipeline.execute_command("CL.THROTTLE", f"async-p{protocol}", 999, 1, DAY)
            assert [reply[2] for reply in await pipeline.execute()] == list(range(999, -1, -1))


def try_token(protocol):
    def connect(**credentials):
        return redis.Redis(host=guarded_host, port=int(guarded_port), protocol=protocol, **credentials)

    for credentials in ({"password": token}, {"username": "default", "password": token}):
        assert connect(**credentials).ping()
    assert redis.from_url(f"redis://:{token}@{guarded_address}/0?protocol={protocol}").ping()
    # By default it would retry for seconds.
    once = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    raises(redis.AuthenticationError, "invalid username-password", lambda: connect(password="wrong", retry=once).ping())
    raises(redis.AuthenticationError, "", lambda: connect(retry=once).ping())


clients = [redis.Redis(host=host, port=int(port), decode_responses=True)]
clients += [redis.Redis(host=host, port=int(port), decode_responses=True, protocol=protocol) for protocol in (2, 3)]
for number, client in enumerate(clients):
    try_all(client, f"py{number}")
    try_threads(client, f"py{number}")
for protocol in (2, 3):
    asyncio.run(try_async(protocol))
    try_token(protocol)

# The server restarts; the same clients reconnect.
print("restart", flush=True)
sys.stdin.readline()
for number, client in enumerate(clients):
    assert client.ping() is True
    assert throttle(client, f"py{number}:after") == [0, 16, 15, -1, 2]
print(f"redis-py {redis.__version__}: both protocols, pipelines, threads, tokens and a restart")
