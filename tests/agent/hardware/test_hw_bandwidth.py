"""The bandwidth test: guard, choice of the method, TCP for real, ib_write_bw by its captured output."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from llmgw_agent.hardware.bandwidth import choose, guard, perftest, tcp
from llmgw_agent.hardware.bandwidth.errors import (
    MeasurementFailedError,
    PeerUnreachableError,
    PortsBusyError,
    ProgramMissingError,
)
from llmgw_agent.hardware.bandwidth.guard import RunningShard

FIXTURES = Path(__file__).parents[2] / "fixtures" / "hardware" / "perftest"
NICS = {"GPU-0": ["mlx5_0"], "GPU-1": ["mlx5_1"]}


@pytest.mark.parametrize(
    ("shard", "hca", "busy"),
    [
        (RunningShard("r.0", "Ready", ["GPU-0"]), None, True),
        (RunningShard("r.0", "Draining", ["GPU-0"]), None, True),
        (RunningShard("r.0", "Failed", ["GPU-0"]), None, False),
        (RunningShard("r.0", "Stopped", ["GPU-0"]), None, False),
        # From one node it leaves the fabric alone.
        (RunningShard("r.0", "Ready", ["GPU-0"]), "mlx5_0", False),
        (RunningShard("r.0", "Ready", ["GPU-0"], spans_nodes=True), "mlx5_0", True),
        (RunningShard("r.0", "Ready", ["GPU-0"], spans_nodes=True), "mlx5_1", False),
        (RunningShard("r.0", "Ready", ["GPU-7"], spans_nodes=True), "mlx5_1", True),
    ],
)
def test_guard(shard: RunningShard, hca: str | None, busy: bool) -> None:
    if busy:
        with pytest.raises(PortsBusyError, match=r"r\.0 is .*force the test"):
            guard.check([shard], hca, NICS)
    else:
        guard.check([shard], hca, NICS)
    guard.check([shard], hca, NICS, forced=True)


def port(hca: str, layer: str = "InfiniBand", rate: float = 400, **more: object) -> dict[str, object]:
    return {"hca": hca, "port": 1, "link_layer": layer, "rate": rate, "state": "ACTIVE", "rail": True, "numa": 0, **more}


def test_rdma_is_chosen_where_both_have_the_same_kind() -> None:
    one = {"rdma_ports": [port("mlx5_0", rail=False), port("mlx5_3"), port("mlx5_4")]}
    other = {"rdma_ports": [port("mlx5_9", "Ethernet", 800), port("mlx5_7")]}

    found = choose.method(one, other)

    assert found is not None
    assert (found.server, found.client, found.link_layer, found.server_gid) == ("mlx5_3", "mlx5_7", "InfiniBand", None)
    named = choose.method(one, other, server_hca="mlx5_4")
    assert named is not None
    assert named.server == "mlx5_4"


def test_tcp_is_what_is_left() -> None:
    assert choose.method({"rdma_ports": [port("mlx5_0")]}, {"rdma_ports": [port("mlx5_0", "Ethernet")]}) is None
    assert choose.method({}, {"rdma_ports": [port("mlx5_0")]}) is None
    assert choose.method({"rdma_ports": [port("mlx5_0", state="DOWN")]}, {"rdma_ports": [port("mlx5_0")]}) is None


def test_roce_gid_is_the_one_that_routes() -> None:
    gids = [
        {"index": 0, "gid": "fe80:0000:0000:0000:5054:00ff:feaa:0002", "kind": "IB/RoCE v1"},
        {"index": 2, "gid": "fe80:0000:0000:0000:5054:00ff:feaa:0002", "kind": "RoCE v2"},
        {"index": 3, "gid": "0000:0000:0000:0000:0000:ffff:0a09:0002", "kind": "RoCE v2"},
    ]
    topology = {"rdma_ports": [port("mlx5_0", "Ethernet", gids=gids)]}

    found = choose.method(topology, {"rdma_ports": [port("mlx5_1", "Ethernet", gids=gids[:2])]})

    assert found is not None
    assert (found.server_gid, found.client_gid) == (3, 2)


def test_result_of_a_test_by_time() -> None:
    (result,) = perftest.parse((FIXTURES / "ib_write_bw.client.txt").read_text())
    assert (result.bytes, result.iterations, result.peak, result.average) == (65536, 2128, 0.0, 0.37)


def test_results_of_all_sizes_with_a_note_stuck_to_a_line() -> None:
    results = perftest.parse((FIXTURES / "ib_write_bw.all.txt").read_text())

    # The last size was not measured: all its values are zero.
    assert [result.bytes for result in results] == [2**power for power in range(1, 22)]
    assert results[-1].average == pytest.approx(36.62 * 8 * 1.048576 / 1000)


def test_words_of_failure() -> None:
    text = (FIXTURES / "ib_write_bw.noserver.txt").read_text()
    assert isinstance(perftest.failure(text.partition("IB device")[0], 1), PeerUnreachableError)
    assert "nope not found" in str(
        perftest.failure("IB device nope not found\n Unable to find the Infiniband/RoCE device\n", 1)
    )
    assert "LimitMEMLOCK" in str(perftest.failure("Couldn't allocate MR\n", 1))
    assert "exit code 9: it said nothing" in str(perftest.failure("-----\n", 9))


def script(folder: Path, text: str) -> str:
    path = folder / "ib_write_bw"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_server_and_client_of_the_rdma_test(tmp_path: Path) -> None:
    server = script(tmp_path, "echo '* Waiting for client to connect... *'; exec sleep 600")
    (tmp_path / "client").mkdir()
    client = script(tmp_path / "client", f'cat "{FIXTURES / "ib_write_bw.client.txt"}"')

    async def scenario() -> None:
        running = await perftest.Server.start([server])
        try:
            assert (await perftest.run([client], 1)).average == 0.37
        finally:
            await running.close()

    asyncio.run(scenario())


def test_rdma_server_that_cannot_start(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailedError, match="IB device mlx5_7 not found"):
        asyncio.run(perftest.Server.start([script(tmp_path, "echo IB device mlx5_7 not found; exit 1")]))
    with pytest.raises(ProgramMissingError, match="install the package perftest"):
        asyncio.run(perftest.Server.start(["/nowhere/ib_write_bw"]))


def test_command_lines() -> None:
    server = perftest.command("mlx5_0", 1, 18515, 5)
    client = perftest.command("mlx5_1", 2, 18515, 5, gid_index=3, server="10.0.0.1")

    assert server == ["ib_write_bw", "-d", "mlx5_0", "-i", "1", "-p", "18515", "-D", "5", "-F", "--report_gbits"]
    assert client[-3:] == ["-x", "3", "10.0.0.1"]


# --- TCP, for real over the loopback ---


def test_tcp() -> None:
    host = "127.0.0.1"

    async def scenario() -> None:
        server = await tcp.Server.start(host, "secret", seconds=0.3, streams=3)
        try:
            sent = await tcp.run(host, server.port, "secret", seconds=0.3, streams=3)
            received = await server.result()
        finally:
            await server.close()
        assert received.bytes == sent.bytes > 1 << 20
        assert received.gigabits > 0.01
        assert sent.seconds >= 0.3

    asyncio.run(scenario())


def test_tcp_with_the_wrong_token() -> None:
    async def scenario() -> None:
        server = await tcp.Server.start("127.0.0.1", "secret", seconds=0.2, streams=1)
        try:
            with pytest.raises(PeerUnreachableError, match="serves another test"):
                await tcp.run("127.0.0.1", server.port, "wrong!", seconds=0.2, streams=1)
            # Who knows the token is still served.
            assert (await tcp.run("127.0.0.1", server.port, "secret", seconds=0.2, streams=1)).bytes > 0
        finally:
            await server.close()

    asyncio.run(scenario())


def test_tcp_without_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        free = held.getsockname()[1]
    with pytest.raises(PeerUnreachableError, match="check the address"):
        asyncio.run(tcp.run("127.0.0.1", free, "secret", seconds=0.2, streams=1))


def test_tcp_server_on_a_foreign_address() -> None:
    with pytest.raises(MeasurementFailedError, match="assign requested address"):
        asyncio.run(tcp.Server.start("192.0.2.77", "secret"))


@pytest.mark.parametrize(("seconds", "streams"), [(0, 1), (61, 1), (1, 0), (1, 65)])
def test_tcp_bounds(seconds: float, streams: int) -> None:
    with pytest.raises(ValueError, match="choose"):
        asyncio.run(tcp.run("127.0.0.1", 1, "secret", seconds, streams))
