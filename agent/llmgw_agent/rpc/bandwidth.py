"""The bandwidth test between two agents: this node measures, the other one serves, each after asking its own guard."""

from __future__ import annotations

import contextlib
import math
import secrets
import shutil
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio

from llmgw_agent.hardware.bandwidth import choose, guard, perftest, tcp
from llmgw_agent.hardware.bandwidth.errors import (
    BandwidthError,
    MeasurementFailedError,
    PeerUnreachableError,
    PortsBusyError,
    ProgramMissingError,
)
from llmgw_agent.live import LiveHardware, shards_here
from llmgw_agent.rpc.server import channel_credentials
from llmgw_agent.shard.context import Context
from llmgw_base.etcd.api import Store
from llmgw_base.secrets import agent_token
from llmgw_proto import agent_pb2, agent_pb2_grpc, keyspace
from llmgw_proto.records import AliveRecord, InventoryRecord

SECONDS = 5.0
STREAMS = 4
#: Beyond the time of the test: both ends start, connect and say what they found.
SLACK = 90.0
_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]


@dataclass(frozen=True, slots=True)
class Peer:
    node: str
    address: str
    topology: Mapping[str, Any]


class Bandwidth:
    """One test at a time on a node, whichever end it is."""

    def __init__(self, context: Context, store: Store, hardware: LiveHardware, secret: Callable[[], str | None]) -> None:
        self._context, self._store, self._hardware, self._secret = context, store, hardware, secret
        self._testing = False

    async def measure(self, request: agent_pb2.BandwidthRequest) -> agent_pb2.BandwidthResult:
        """
        Raises:
            ValueError: the request makes no sense.
            BandwidthError: there is no result; the message says why and what helps.
            StoreError: etcd does not say where the other node is.
        """
        seconds = request.seconds or SECONDS
        if not math.isfinite(seconds) or not 0 < seconds <= tcp.SECONDS_AT_MOST:
            raise ValueError(f"a test of {seconds:g} s: choose more than 0 and at most {tcp.SECONDS_AT_MOST:g} s")
        if request.peer == self._context.node:
            raise ValueError("a test needs two nodes; name another one")
        if self._secret() is None:
            raise PeerUnreachableError("the agent has not found its cluster in etcd yet")
        peer = await self._find(request.peer)
        ends = choose.method(peer.topology, self._hardware.devices.topology)
        note = ""
        with self._alone():
            if ends is not None and shutil.which(perftest.PROGRAM) is None:
                ends, note = None, f"{perftest.PROGRAM} is not installed on {self._context.node}: over TCP"
            if ends is not None:
                try:
                    return await self._rdma(peer, ends, seconds, force=request.force)
                except ProgramMissingError as error:
                    note = f"{error}: over TCP"
            return await self._tcp(peer, seconds, note, force=request.force)

    async def serve(self, request: agent_pb2.ServeBandwidthRequest) -> AsyncGenerator[agent_pb2.BandwidthServer, None]:
        """
        Raises:
            ValueError, BandwidthError: as :meth:`measure`.
        """
        self._check(request.hca or None, force=request.force)
        host, seconds = self._context.config.gang_address, request.seconds
        with self._alone():
            if request.hca:
                if shutil.which(perftest.PROGRAM) is None:
                    raise ProgramMissingError(f"{perftest.PROGRAM} is not installed on {self._context.node}")
                port = _free_port()
                argv = perftest.command(
                    request.hca,
                    request.port,
                    port,
                    max(1, round(seconds)),
                    gid_index=request.gid_index if request.HasField("gid_index") else None,
                    numa=request.numa if request.HasField("numa") else None,
                )
                server: perftest.Server | tcp.Server = await perftest.Server.start(argv)
            else:
                server = await tcp.Server.start(host, request.token, seconds, request.streams)
                port = server.port
            try:
                yield agent_pb2.BandwidthServer(host=host, port=port)
                # The caller leaves when it has its result; one that vanished without a word is not waited for.
                await self._context.clock.sleep(seconds + SLACK)
            finally:
                await server.close()

    async def _rdma(self, peer: Peer, ends: choose.RdmaEnds, seconds: float, *, force: bool) -> agent_pb2.BandwidthResult:
        self._check(ends.client, force=force)
        whole = max(1, round(seconds))
        request = agent_pb2.ServeBandwidthRequest(
            hca=ends.server,
            port=ends.server_port,
            gid_index=ends.server_gid,
            numa=ends.server_numa,
            seconds=whole,
            force=force,
        )
        async with self._served(peer, request, whole) as server:
            argv = perftest.command(
                ends.client,
                ends.client_port,
                server.port,
                whole,
                gid_index=ends.client_gid,
                numa=ends.client_numa,
                server=server.host,
            )
            found = await perftest.run(argv, whole)
        return agent_pb2.BandwidthResult(
            method="rdma",
            gigabits_per_second=found.average,
            bytes=found.bytes * found.iterations,
            seconds=whole,
            port=f"{ends.client}:{ends.client_port}",
            peer_port=f"{ends.server}:{ends.server_port}",
        )

    async def _tcp(self, peer: Peer, seconds: float, note: str, *, force: bool) -> agent_pb2.BandwidthResult:
        self._check(None, force=force)
        token = secrets.token_hex(16)
        request = agent_pb2.ServeBandwidthRequest(seconds=seconds, streams=STREAMS, token=token, force=force)
        async with self._served(peer, request, seconds) as server:
            found = await tcp.run(server.host, server.port, token, seconds, STREAMS)
        return agent_pb2.BandwidthResult(
            method="tcp",
            gigabits_per_second=found.gigabits,
            bytes=found.bytes,
            seconds=found.seconds,
            streams=found.streams,
            note=note,
        )

    @contextlib.asynccontextmanager
    async def _served(
        self, peer: Peer, request: agent_pb2.ServeBandwidthRequest, seconds: float
    ) -> AsyncIterator[agent_pb2.BandwidthServer]:
        """The other end, for as long as the block lasts."""
        secret, tls = self._secret(), self._context.config.tls
        assert secret is not None, "callers are let in by a token that is made from it"
        channel = (
            aio.insecure_channel(peer.address, _OPTIONS)
            if tls is None
            else aio.secure_channel(peer.address, channel_credentials(tls), _OPTIONS)
        )
        try:
            stub: Any = agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]  # generated
            bearer = (("authorization", f"Bearer {agent_token(secret, peer.node)}"),)
            call = stub.ServeBandwidth(request, metadata=bearer, timeout=seconds + SLACK)
            try:
                first = await anext(aiter(call), None)
            except aio.AioRpcError as error:
                raise _meaning(peer.node, error) from error
            if first is None:
                raise MeasurementFailedError(f"node {peer.node} ended the test before it began; see its agent's log")
            yield first
            call.cancel()
        finally:
            await channel.close()

    async def _find(self, node: str) -> Peer:
        alive = await self._store.get(keyspace.alive(node))
        inventory = await self._store.get(keyspace.inventory(node))
        if alive is None or inventory is None:
            raise PeerUnreachableError(f"node {node} is not alive; `llmgwctl node list` shows those that are")
        topology = InventoryRecord.decode(inventory.value).topology
        return Peer(node, AliveRecord.decode(alive.value).grpc_address, topology)

    def _check(self, hca: str | None, *, force: bool) -> None:
        # Of shards with GPUs nobody here knows whether they use the adapters beside them: to be safe, all of them do.
        running = [
            guard.RunningShard(shard.shard, str(shard.state), shard.gpus, spans_nodes=bool(shard.gpus))
            for shard in shards_here(self._context)
        ]
        guard.check(running, hca, self._hardware.devices.topology.get("gpu_nics", {}), forced=force)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if self._testing:
            raise PortsBusyError(f"node {self._context.node} is in another bandwidth test; wait until it is over")
        self._testing = True
        try:
            yield
        finally:
            self._testing = False


def _meaning(node: str, error: aio.AioRpcError) -> BandwidthError:
    said = f"node {node}: {error.details()}"
    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
        return PortsBusyError(said)
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return ProgramMissingError(said)
    if error.code() is grpc.StatusCode.ABORTED:
        return MeasurementFailedError(said)
    return PeerUnreachableError(
        f"the agent of node {node} cannot be asked ({error.code().name.lower()}: {error.details()}): its gRPC port must be "
        "open to this node"
    )


def _free_port() -> int:
    with socket.create_server(("", 0)) as sock:
        return int(sock.getsockname()[1])
