"""The only module that touches gRPC's asyncio half: typed, and with its ways of failing brought to one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc
from grpc import aio

from llmgw_base.etcd import rpc_pb2 as pb
from llmgw_base.etcd import rpc_pb2_grpc as services
from llmgw_base.etcd.refusal import Reaction, Verdict, judge
from llmgw_base.etcd.target import Target

R = TypeVar("R")
Request = TypeVar("Request", contravariant=True)
Response = TypeVar("Response", covariant=True)
Metadata: TypeAlias = Sequence[tuple[str, str]]

_OPTIONS: Sequence[tuple[str, int | str]] = (
    ("grpc.use_local_subchannel_pool", 1),  # what one store learned of an address is not another one's business
    ("grpc.enable_retries", 0),  # what may be sent twice is decided by this package
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A second opinion on a dead connection; etcd turns away clients that ping more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
)


class CallFailedError(Exception):
    """A call brought no answer, or a refusal. Stays inside this package."""

    def __init__(self, verdict: Verdict, text: str) -> None:
        super().__init__(text)
        self.verdict = verdict
        self.text = text
        #: Whether etcd itself said it, so that the connection is good.
        self.answered = "etcdserver" in text


class Unary(Protocol[Request, Response]):
    def __call__(self, request: Request, *, timeout: float, metadata: Metadata = ()) -> Awaitable[Response]: ...


class Exchange(Protocol[Request, Response]):
    """An open stream in both directions."""

    async def write(self, request: Request) -> None: ...

    async def read(self) -> Any:
        """A response, or :data:`END`."""
        ...

    def cancel(self) -> bool: ...


class Streaming(Protocol[Request, Response]):
    def __call__(self, *, timeout: float | None = None, metadata: Metadata = ()) -> Exchange[Request, Response]: ...


END: Any = aio.EOF
Credentials: TypeAlias = Any


class Link:
    """One gRPC channel and etcd's methods on it. Closing it breaks its calls and streams."""

    def __init__(self, target: Target, credentials: Credentials | None) -> None:
        options = list(_OPTIONS)
        if target.address.startswith("unix:"):
            options.append(("grpc.default_authority", "localhost"))  # a path is none, and Go's server refuses it
        if credentials is None:
            channel = aio.insecure_channel(target.address, options=options)
        else:
            channel = aio.secure_channel(target.address, credentials, options=options)
        self._channel = channel
        #: Whether the server was asked for its version on this link.
        self.vetted = False
        #: Monotonic time of the last answer of any kind.
        self.heard = 0.0
        kv, watch, lease, auth, maintenance = (
            _stub(kind, channel)
            for kind in (
                services.KVStub,
                services.WatchStub,
                services.LeaseStub,
                services.AuthStub,
                services.MaintenanceStub,
            )
        )
        self.range: Unary[pb.RangeRequest, pb.RangeResponse] = kv.Range
        self.put: Unary[pb.PutRequest, pb.PutResponse] = kv.Put
        self.delete_range: Unary[pb.DeleteRangeRequest, pb.DeleteRangeResponse] = kv.DeleteRange
        self.txn: Unary[pb.TxnRequest, pb.TxnResponse] = kv.Txn
        self.compact: Unary[pb.CompactionRequest, pb.CompactionResponse] = kv.Compact
        self.watch: Streaming[pb.WatchRequest, pb.WatchResponse] = watch.Watch
        self.lease_grant: Unary[pb.LeaseGrantRequest, pb.LeaseGrantResponse] = lease.LeaseGrant
        self.lease_revoke: Unary[pb.LeaseRevokeRequest, pb.LeaseRevokeResponse] = lease.LeaseRevoke
        self.lease_keep_alive: Streaming[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse] = lease.LeaseKeepAlive
        self.authenticate: Unary[pb.AuthenticateRequest, pb.AuthenticateResponse] = auth.Authenticate
        self.status: Unary[pb.StatusRequest, pb.StatusResponse] = maintenance.Status

    @property
    def connected(self) -> bool:
        return bool(self._channel.get_state() is grpc.ChannelConnectivity.READY)

    async def close(self) -> None:
        await self._channel.close()


def tls_credentials(ca: bytes | None, key: bytes | None, cert: bytes | None) -> Credentials:
    """PEM; without ``ca`` the certificate authorities that gRPC knows."""
    make: Any = grpc.ssl_channel_credentials
    return make(root_certificates=ca, private_key=key, certificate_chain=cert)


def _stub(kind: Any, channel: Any) -> Any:
    return kind(channel)


async def answer(call: Callable[[], Awaitable[R]]) -> R:
    """Makes a call and awaits it.

    gRPC raises CancelledError in whoever waits for a call whose channel is closed; here that is an ordinary failure, and
    only a real cancellation of the waiting task is one.

    Raises:
        CallFailedError: everything that gRPC raises.
    """
    task = asyncio.current_task()
    cancelled_before = task.cancelling() if task is not None else 0
    try:
        return await call()
    except aio.AioRpcError as error:
        text = str(error.details() or error.code().name).rpartition("last error: ")[2].removeprefix("UNKNOWN: ")
        raise CallFailedError(judge(error.code(), text), text) from None
    except aio.UsageError as error:  # the channel was closed before the call began
        raise CallFailedError(Verdict(Reaction.NOT_DONE), str(error)) from None
    except (aio.BaseError, asyncio.InvalidStateError) as error:
        raise CallFailedError(Verdict(Reaction.UNKNOWN), str(error)) from None
    except asyncio.CancelledError:
        if task is not None and task.cancelling() > cancelled_before:
            raise
        raise CallFailedError(Verdict(Reaction.UNKNOWN), "the connection was given up") from None
