"""Ratekeeper's gRPC service, health and reflection, with the official Python client.

    clients.py ADDRESS FOLDER

calls a running server, with messages that protoc compiles from proto/ into FOLDER.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import grpc_tools
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_tools import protoc

ADDRESS, FOLDER = sys.argv[1], Path(sys.argv[2])
FOLDER.mkdir(parents=True, exist_ok=True)
sources = [str(path.relative_to("proto")) for path in Path("proto").rglob("*.proto")]
include = Path(grpc_tools.__file__).parent / "_proto"
arguments = ["protoc", "-Iproto", f"-I{include}", f"--python_out={FOLDER}", f"--grpc_python_out={FOLDER}", *sources]
assert protoc.main(arguments) == 0, "protoc accepts the .proto files"
sys.path.insert(0, str(FOLDER))

from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc  # noqa: E402
from ratekeeper.v1 import rate_limiter_pb2 as pb  # noqa: E402
from ratekeeper.v1.rate_limiter_pb2_grpc import RateLimiterStub  # noqa: E402


def fails(call, code, message):
    """Returns whether a call fails with this code and message."""
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code and message in error.details(), error
        return True
    return False


def unary_calls(stub):
    call = lambda verb, **fields: verb(pb.CheckRequest(client_key="alice", **fields))
    reply = call(stub.Check)
    assert reply.allowed and reply.remaining == 999 and reply.limit == 1000 and reply.window == 86400, reply
    assert reply.rule == "default" and reply.reason == pb.REASON_LIMIT and not reply.HasField("retry_after"), reply
    assert call(stub.Check, cost=900).remaining == 99
    reply = call(stub.Check, cost=100)
    assert not reply.allowed and reply.retry_after > 0 and reply.remaining == 99, reply
    assert call(stub.Peek).remaining == 99 and call(stub.Refund, cost=1).remaining == 100
    assert call(stub.Reset).remaining == 1000
    reply = stub.Check(pb.CheckRequest(client_key="revoked"))
    assert not reply.allowed and reply.reason == pb.REASON_DENY_LIST and not reply.HasField("limit"), reply
    checks = [pb.CheckRequest(client_key=f"batch {number % 2}", cost=400) for number in range(6)]
    reply = stub.CheckBatch(pb.CheckBatchRequest(checks=checks)).results
    assert [one.allowed for one in reply] == [True] * 4 + [False] * 2, reply
    assert fails(
        lambda: stub.Check(pb.CheckRequest(ip="nowhere")), grpc.StatusCode.INVALID_ARGUMENT, "send an address, like"
    )


def streams(stub):
    """20 000 checks on a stream, one percent of them invalid: each is answered once, and the limit is exact."""
    def checks():
        for number in range(20_000):
            ip = "nowhere" if number % 100 == 99 else ""
            yield pb.CheckStreamRequest(id=number, check=pb.CheckRequest(client_key=f"stream {number % 4}", ip=ip))

    allowed, seen = 0, set()
    for reply in stub.CheckStream(checks()):
        assert reply.id not in seen, reply
        seen.add(reply.id)
        assert (reply.WhichOneof("outcome") == "error") == (reply.id % 100 == 99), reply
        allowed += reply.result.allowed
    assert len(seen) == 20_000 and allowed == 4 * 1000, (len(seen), allowed)


def threads(stub):
    """A limit of 1000 allows exactly 1000 checks from 8 threads."""
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda _: stub.Check(pb.CheckRequest(client_key="threads")).allowed, range(2000))
        assert sum(results) == 1000


def envoy_calls(stub):
    entry = rls_pb2.envoy_dot_extensions_dot_common_dot_ratelimit_dot_v3_dot_ratelimit__pb2.RateLimitDescriptor.Entry
    call = rls_pb2.RateLimitRequest(domain="edge", hits_addend=60)
    descriptor = call.descriptors.add()
    descriptor.entries.extend([entry(key="generic_key", value="login"), entry(key="remote_address", value="192.0.2.1")])
    reply = stub.ShouldRateLimit(call)
    assert reply.overall_code == rls_pb2.RateLimitResponse.OK and reply.statuses[0].limit_remaining == 40, reply
    limit = reply.statuses[0].current_limit
    assert (limit.requests_per_unit, limit.name, limit.unit) == (100, "login", limit.DAY), reply
    assert stub.ShouldRateLimit(call).overall_code == rls_pb2.RateLimitResponse.OVER_LIMIT


def health(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ["", "ratekeeper.v1.RateLimiter", "envoy.service.ratelimit.v3.RateLimitService"]:
        assert stub.Check(health_pb2.HealthCheckRequest(service=service)).status == health_pb2.HealthCheckResponse.SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


def reflection(channel):
    """A client without .proto files makes a call."""
    database = ProtoReflectionDescriptorDatabase(channel)
    services = set(database.get_services())
    assert {"ratekeeper.v1.RateLimiter", "envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"} <= services
    pool = DescriptorPool(database)
    method = pool.FindServiceByName("ratekeeper.v1.RateLimiter").FindMethodByName("Check")
    request, reply = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    call = channel.unary_unary("/ratekeeper.v1.RateLimiter/Check", request.SerializeToString, reply.FromString)
    assert call(request(client_key="reflected")).remaining == 999
    assert pool.FindServiceByName("envoy.service.ratelimit.v3.RateLimitService").methods_by_name["ShouldRateLimit"]


with grpc.insecure_channel(ADDRESS) as channel:
    stub = RateLimiterStub(channel)
    unary_calls(stub)
    streams(stub)
    threads(stub)
    envoy_calls(rls_pb2_grpc.RateLimitServiceStub(channel))
    health(channel)
    reflection(channel)
print("grpcio", grpc.__version__)
