"""Our own service, health and reflection, as Google's client of gRPC meets them.

    clients.py ADDRESS FOLDER

asks a running server, with messages that protoc has compiled from proto/ into FOLDER.
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
assert protoc.main(arguments) == 0, "protoc reads what our own compiler reads"
sys.path.insert(0, str(FOLDER))

from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc  # noqa: E402
from ratekeeper.v1 import rate_limiter_pb2 as pb  # noqa: E402
from ratekeeper.v1.rate_limiter_pb2_grpc import RateLimiterStub  # noqa: E402


def refused(call, code, said):
    """Whether a call fails with this code and these words."""
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code and said in error.details(), error
        return True
    return False


def verbs(stub):
    ask = lambda verb, **fields: verb(pb.CheckRequest(client_key="alice", **fields))
    said = ask(stub.Check)
    assert said.allowed and said.remaining == 999 and said.limit == 1000 and said.window == 86400, said
    assert said.rule == "default" and said.reason == pb.REASON_LIMIT and not said.HasField("retry_after"), said
    assert ask(stub.Check, cost=900).remaining == 99
    said = ask(stub.Check, cost=100)
    assert not said.allowed and said.retry_after > 0 and said.remaining == 99, said
    assert ask(stub.Peek).remaining == 99 and ask(stub.Refund, cost=1).remaining == 100
    assert ask(stub.Reset).remaining == 1000
    said = stub.Check(pb.CheckRequest(client_key="revoked"))
    assert not said.allowed and said.reason == pb.REASON_DENY_LIST and not said.HasField("limit"), said
    checks = [pb.CheckRequest(client_key=f"batch {number % 2}", cost=400) for number in range(6)]
    said = stub.CheckBatch(pb.CheckBatchRequest(checks=checks)).results
    assert [one.allowed for one in said] == [True] * 4 + [False] * 2, said
    assert refused(
        lambda: stub.Check(pb.CheckRequest(ip="nowhere")), grpc.StatusCode.INVALID_ARGUMENT, "send an address, like"
    )


def streams(stub):
    """20 000 checks on a stream, with a bad one among every hundred: each answered once, and the limit exact."""
    def checks():
        for number in range(20_000):
            ip = "nowhere" if number % 100 == 99 else ""
            yield pb.CheckStreamRequest(id=number, check=pb.CheckRequest(client_key=f"stream {number % 4}", ip=ip))

    allowed, seen = 0, set()
    for said in stub.CheckStream(checks()):
        assert said.id not in seen, said
        seen.add(said.id)
        assert (said.WhichOneof("outcome") == "error") == (said.id % 100 == 99), said
        allowed += said.result.allowed
    assert len(seen) == 20_000 and allowed == 4 * 1000, (len(seen), allowed)


def threads(stub):
    """From 8 threads, a limit of 1000 lets exactly 1000 pass."""
    with ThreadPoolExecutor(8) as pool:
        asked = pool.map(lambda _: stub.Check(pb.CheckRequest(client_key="threads")).allowed, range(2000))
        assert sum(asked) == 1000


def envoys(stub):
    entry = rls_pb2.envoy_dot_extensions_dot_common_dot_ratelimit_dot_v3_dot_ratelimit__pb2.RateLimitDescriptor.Entry
    call = rls_pb2.RateLimitRequest(domain="edge", hits_addend=60)
    descriptor = call.descriptors.add()
    descriptor.entries.extend([entry(key="generic_key", value="login"), entry(key="remote_address", value="192.0.2.1")])
    said = stub.ShouldRateLimit(call)
    assert said.overall_code == rls_pb2.RateLimitResponse.OK and said.statuses[0].limit_remaining == 40, said
    limit = said.statuses[0].current_limit
    assert (limit.requests_per_unit, limit.name, limit.unit) == (100, "login", limit.DAY), said
    assert stub.ShouldRateLimit(call).overall_code == rls_pb2.RateLimitResponse.OVER_LIMIT


def health(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ["", "ratekeeper.v1.RateLimiter", "envoy.service.ratelimit.v3.RateLimitService"]:
        assert stub.Check(health_pb2.HealthCheckRequest(service=service)).status == health_pb2.HealthCheckResponse.SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


def reflection(channel):
    """A client that knows nothing but the address makes a call."""
    database = ProtoReflectionDescriptorDatabase(channel)
    services = set(database.get_services())
    assert {"ratekeeper.v1.RateLimiter", "envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"} <= services
    pool = DescriptorPool(database)
    method = pool.FindServiceByName("ratekeeper.v1.RateLimiter").FindMethodByName("Check")
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    call = channel.unary_unary("/ratekeeper.v1.RateLimiter/Check", request.SerializeToString, response.FromString)
    assert call(request(client_key="reflected")).remaining == 999
    assert pool.FindServiceByName("envoy.service.ratelimit.v3.RateLimitService").methods_by_name["ShouldRateLimit"]


with grpc.insecure_channel(ADDRESS) as channel:
    stub = RateLimiterStub(channel)
    verbs(stub)
    streams(stub)
    threads(stub)
    envoys(rls_pb2_grpc.RateLimitServiceStub(channel))
    health(channel)
    reflection(channel)
print("grpcio", grpc.__version__)
