"""Changes between maps, and the election of the mapper."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw_agent.hardware.fabric.changes import KEEP, carry_over, changes, missing
from llmgw_agent.hardware.fabric.elect import FabricPort, MapTask, active_ports, orphans, tasks
from llmgw_agent.hardware.fabric.service import turn
from llmgw_agent.hardware.fabric.tools import Tools
from llmgw_base.clock import SystemClock
from llmgw_proto.records.fabric import FabricChange, FabricErrors, FabricLink, FabricMapRecord, FabricNode


def fabric(links: list[FabricLink], hosts: int = 2, subnet: str = "s1", at: float = 100.0, **more: Any) -> FabricMapRecord:
    """Two switches (0, 1) and hosts (2…), each with one port."""
    nodes = [FabricNode(guid=f"s{switch + 1}", kind="switch", name=f"leaf{switch + 1}") for switch in range(2)]
    nodes += [FabricNode(guid=f"h{host}", kind="host", name=f"gpu{host}", port_guids={1: f"p{host}"}) for host in range(hosts)]
    return FabricMapRecord(subnet=subnet, mapper="n1", mapped_at=at, nodes=nodes, links=links, **more)


WHOLE: list[FabricLink] = [(0, 1, 2, 1, "4xNDR"), (1, 1, 3, 1, "4xNDR"), (0, 30, 1, 30, "4xNDR"), (0, 31, 1, 31, "4xNDR")]


def kinds(found: list[FabricChange]) -> list[str]:
    return [change.kind for change in found]


def test_same_fabric_has_no_changes() -> None:
    # The nodes come in another order after another discovery.
    turned = [(b, b_port, a, a_port, speed) for a, a_port, b, b_port, speed in WHOLE]
    assert changes(fabric(WHOLE), fabric(turned)) == []


def test_cut_link_is_named_and_missed_until_it_returns() -> None:
    whole, cut = fabric(WHOLE), fabric(WHOLE[:-1], at=400)

    (change,) = changes(whole, cut)
    assert (change.kind, change.at) == ("link-down", 400)
    assert "leaf1 port 31 - leaf2 port 31" in change.text

    first = carry_over(whole, cut)
    later = carry_over(first, fabric(WHOLE[:-1], at=700))
    assert [(each.a, each.a_port, each.speed, each.since) for each in later.missing] == [("s1", 31, "4xNDR", 400)]
    back = carry_over(later, fabric(WHOLE, at=1000))
    assert back.missing == []
    assert kinds(back.changes) == ["link-down", "link-up"]


def test_slower_and_faster() -> None:
    slow = [*WHOLE[:-1], (0, 31, 1, 31, "1xNDR")]
    assert kinds(changes(fabric(WHOLE), fabric(slow))) == ["slower"]
    assert kinds(changes(fabric(slow), fabric(WHOLE))) == ["faster"]


def test_node_that_goes_takes_its_links_without_more_words() -> None:
    without = fabric([link for link in WHOLE if 3 not in link[::2]], hosts=1)

    assert kinds(changes(fabric(WHOLE), without)) == ["node-gone"]
    assert kinds(changes(without, fabric(WHOLE))) == ["node-new"]
    assert missing(fabric(WHOLE), without) == []


def test_errors_are_compared_with_the_map_before() -> None:
    def with_errors(**counters: int) -> FabricMapRecord:
        return fabric(WHOLE, errors=[FabricErrors(guid="s1", port=30, counters=counters)])

    before = with_errors(SymbolErrorCounter=100, LinkDownedCounter=1)

    assert changes(before, before) == []
    found = changes(before, with_errors(SymbolErrorCounter=160, LinkDownedCounter=3))
    assert kinds(found) == ["flapping", "errors"]
    assert "2 times" in found[0].text
    assert "SymbolErrorCounter +60" in found[1].text


def test_partial_map_reports_nothing_gone_nor_new_after_it() -> None:
    whole = carry_over(fabric(WHOLE), fabric(WHOLE[:-1], at=400))
    partial = carry_over(whole, fabric(WHOLE[:1], hosts=1, at=700, partial=True))

    assert kinds(partial.changes) == ["link-down"]
    assert [each.since for each in partial.missing] == [400]
    assert kinds(carry_over(partial, fabric(WHOLE[:-1], at=1000)).changes) == ["link-down"]


def test_port_that_was_cabled_anew_is_not_missed() -> None:
    moved = [*WHOLE[:-1], (0, 31, 1, 32, "4xNDR")]
    assert carry_over(fabric(WHOLE), fabric(moved)).missing == []


def test_changes_are_kept_within_bounds() -> None:
    record = fabric(WHOLE)
    for turn_at in range(KEEP):
        record = carry_over(record, fabric(WHOLE[:-1] if turn_at % 2 == 0 else WHOLE, at=float(turn_at)))
    record = carry_over(record, fabric(WHOLE[:-1], at=1e6))
    assert len(record.changes) == KEEP
    assert record.changes[-1].at == 1e6


# --- election ---


def port(node: str, guid: str, hca: str = "mlx5_0") -> FabricPort:
    return FabricPort(node, hca, 1, guid)


def test_first_node_maps_an_unknown_fabric() -> None:
    ports = [port("n2", "p1"), port("n1", "p0"), port("n1", "p9", "mlx5_1")]
    assert tasks(ports, {}) == [MapTask("n1", "mlx5_0", 1, None)]


def test_mapper_stays_while_it_is_alive() -> None:
    record = fabric(WHOLE).model_copy(update={"mapper": "n2"})
    ports = [port("n1", "p0"), port("n2", "p1")]

    assert tasks(ports, {"s1": record}) == [MapTask("n2", "mlx5_0", 1, "s1")]
    assert tasks(ports[:1], {"s1": record}) == [MapTask("n1", "mlx5_0", 1, "s1")]


def test_port_outside_of_all_maps_is_another_fabric() -> None:
    ports = [port("n1", "p0"), port("n1", "q0", "mlx5_4"), port("n2", "q1", "mlx5_4")]
    assert tasks(ports, {"s1": fabric(WHOLE)}) == [MapTask("n1", "mlx5_0", 1, "s1"), MapTask("n1", "mlx5_4", 1, None)]


def test_orphans_are_maps_that_nobody_is_on() -> None:
    old = fabric(WHOLE, subnet="s0", at=50)
    maps = {"s0": old, "s1": fabric(WHOLE), "s9": fabric(WHOLE, subnet="s9", at=10)}

    assert orphans([port("n1", "p0")], maps) == ["s0", "s9"]
    assert orphans([port("n1", "x")], maps) == ["s0", "s1", "s9"]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(["mlx5_0", "mlx5_1"]), st.integers(0, 7)), unique_by=lambda p: p[2]
    ),
    st.lists(st.integers(0, 7), max_size=8),
    st.randoms(),
)
def test_every_subnet_has_one_mapper_whatever_the_order(
    raw: list[tuple[str, str, int]], mapped: list[int], random: Any
) -> None:
    ports = [FabricPort(node, hca, 1, f"p{guid}") for node, hca, guid in raw]
    nodes = [FabricNode(guid=f"h{guid}", kind="host", port_guids={1: f"p{guid}"}) for guid in mapped]
    maps = {"s1": FabricMapRecord(subnet="s1", mapper="a", mapped_at=1, nodes=nodes)}

    found = tasks(ports, maps)

    shuffled = list(ports)
    random.shuffle(shuffled)
    assert tasks(shuffled, maps) == found
    assert len({task.subnet for task in found}) == len(found)
    covered = {f"p{guid}" for guid in mapped}
    assert any(task.subnet is None for task in found) == any(each.guid not in covered for each in ports)
    assert any(task.subnet == "s1" for task in found) == any(each.guid in covered for each in ports)


def test_ports_are_read_from_the_published_topology() -> None:
    base = {"hca": "mlx5_0", "port": 1, "link_layer": "InfiniBand", "state": "ACTIVE", "guid": "p0"}
    others: list[dict[str, object]] = [
        {"state": "DOWN"}, {"link_layer": "Ethernet"}, {"software": True}, {"virtual_function": True}, {"guid": None}
    ]  # fmt: skip

    assert active_ports("n1", {"rdma_ports": [base, *(base | other for other in others)]}) == [port("n1", "p0")]
    assert active_ports("n1", {}) == []


def test_node_without_the_tools_says_what_to_install() -> None:
    written: list[FabricMapRecord] = []

    async def write(record: FabricMapRecord) -> None:
        written.append(record)

    troubles = asyncio.run(
        turn("n1", [port("n1", "p0")], {}, write, SystemClock(), lambda task: Tools(env={"PATH": "/nowhere"}))
    )

    assert written == []
    assert "install the package infiniband-diags" in troubles[0]
