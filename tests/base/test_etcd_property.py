"""Whatever happens to the store and to the connection: in the end the watch holds what the store holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw_base.clock import SystemClock
from llmgw_base.config import EtcdSection
from llmgw_base.etcd import rpc_pb2 as pb
from llmgw_base.etcd.api import DeleteOp, Frozen, Operation, PutOp, Store
from llmgw_base.etcd.client import EtcdStore
from llmgw_base.etcd.target import parse
from llmgw_base.etcd.wire import Link
from llmgw_proto import keyspace
from llmgw_testing.clock import FakeClock, settle
from llmgw_testing.etcd_server import EtcdServer
from llmgw_testing.follower import Follower
from llmgw_testing.memstore import MemoryStore
from llmgw_testing.scenario import run_clean
from llmgw_testing.tcp_proxy import TcpProxy

KEYS = ("a", "b", "c")


@dataclass(frozen=True)
class Write:
    operations: tuple[tuple[str, bytes | None], ...]

    def under(self, prefix: str) -> Sequence[Operation]:
        return [
            DeleteOp(prefix + key) if value is None else PutOp(prefix + key, value)
            for key, value in dict(self.operations).items()
        ]


@dataclass(frozen=True)
class Do:
    """``compact``, ``break`` (the stream), ``down``, ``up``, ``wait`` (until the watch has caught up)."""

    what: str


_write = st.builds(
    Write,
    st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.sampled_from([b"", b"1", b"2"])), min_size=1, max_size=3).map(
        tuple
    ),
)
_step = _write | st.sampled_from(["compact", "break", "down", "up", "wait"]).map(Do)
_steps = st.lists(_step, max_size=25)


async def _expected(store: Store, prefix: str) -> dict[str, bytes]:
    return {item.key: item.value for item in (await store.range(prefix)).items}


@settings(max_examples=150, deadline=None)
@given(_steps)
def test_the_twin(steps: Sequence[Write | Do]) -> None:
    async def main() -> None:
        clock = FakeClock()
        store = MemoryStore(clock)
        writer = MemoryStore(clock, server=store.server)
        await writer.put(keyspace.CLUSTER, b"{}")
        do: dict[str, Callable[[], None]] = {
            "compact": store.server.compact,
            "break": store.break_watches,
            "down": store.down,
            "up": store.up,
        }
        async with Follower(store.watch("/p/")) as follower:
            for step in steps:
                if isinstance(step, Write):
                    await writer.txn([], step.under("/p/"))
                elif step.what == "wait":
                    await settle()
                else:
                    do[step.what]()
            store.up()
            await clock.advance(2)
            assert follower.state == await _expected(store, "/p/")
            assert not follower.all(Frozen)
        await store.close()
        await writer.close()

    run_clean(main())


def test_the_real_client() -> None:
    """One server for all examples, each under a prefix of its own."""
    with EtcdServer("3.5") as server:
        numbers = iter(range(1_000_000))

        @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(_steps)
        def check(steps: Sequence[Write | Do]) -> None:
            run_clean(_real(server, f"/p{next(numbers)}/", steps))

        check()


async def _real(server: EtcdServer, prefix: str, steps: Sequence[Write | Do]) -> None:
    clock = SystemClock()
    async with TcpProxy(server.port) as proxy:
        store = EtcdStore(EtcdSection(endpoints=[f"http://127.0.0.1:{proxy.port}"]), clock)
        writer = EtcdStore(server.section(), clock)
        link = Link(parse(server.endpoint, tls=False), None)

        async def compact() -> None:
            revision = (await writer.range(prefix)).revision
            try:
                await link.compact(pb.CompactionRequest(revision=revision), timeout=5)
            except Exception as error:  # noqa: BLE001  gRPC's error class has no type to name; anything else fails below
                assert "has been compacted" in str(error), error

        async def same() -> bool:
            return follower.state == await _expected(writer, prefix)

        try:
            async with Follower(store.watch(prefix)) as follower:
                for step in steps:
                    if isinstance(step, Write):
                        await writer.txn([], step.under(prefix))
                    elif step.what == "compact":
                        await compact()
                    elif step.what == "break":
                        proxy.cut()
                    elif step.what == "down":
                        proxy.refuse()
                    elif step.what == "up":
                        proxy.heal()
                    else:
                        await asyncio.sleep(0.005)
                proxy.heal()
                await follower.until(same, what="the watch to equal the store")
                assert not follower.all(Frozen)
        finally:
            await store.close()
            await writer.close()
            await link.close()
