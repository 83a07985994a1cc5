"""Reading what the tools print: captured outputs, and lines of hardware that the simulator does not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw_agent.hardware.fabric import parse
from llmgw_agent.hardware.fabric.parse import End

FIXTURES = Path(__file__).parents[2] / "fixtures" / "hardware" / "fabric"
LEAF1, SPINE2 = "b8cef60300000020", "b8cef60300000011"


def read(name: str) -> str:
    return (FIXTURES / name).read_text()


def test_ibnetdiscover() -> None:
    found = parse.ibnetdiscover(read("ibnetdiscover.txt"))

    kinds = [node.kind for node in found.nodes.values()]
    assert (kinds.count("host"), kinds.count("switch")) == (8, 6)
    assert len(found.links) == 24
    host = found.nodes["0c42a10300000200"]
    assert (host.name, host.lid, host.ports, host.port_guids) == ("gpu02 mlx5_0", 9, 1, {1: "0c42a10300000201"})
    assert found.nodes[LEAF1].lid == 3
    link = found.links[End("0c42a10300000000", 1), End(LEAF1, 1)]
    assert link.speed == "4xHDR"


def test_ibnetdiscover_after_a_link_was_cut() -> None:
    before, after = parse.ibnetdiscover(read("ibnetdiscover.txt")), parse.ibnetdiscover(read("ibnetdiscover.linkdown.txt"))

    gone = before.links.keys() - after.links.keys()
    assert len(gone) == len(before.links) - len(after.links) > 0
    assert after.links.keys() < before.links.keys()


@pytest.mark.parametrize("text", ["", "no topology here\n", '[1]\t"S-xyz"[1]\n', 'Switch\t40\n[1]("\n'])
def test_ibnetdiscover_of_nothing(text: str) -> None:
    assert parse.ibnetdiscover(text).nodes == {}


def test_iblinkinfo() -> None:
    found = parse.iblinkinfo(read("iblinkinfo-l.txt"))

    assert len(found) == 50
    up = found[End("0c42a10300000701", 1)]
    assert (up.state, up.physical, up.width, up.lane, up.name) == ("Active", "LinkUp", "4x", 53.125, "gpu07 mlx5_0")
    down = found[End("b8cef60300000023", 3)]
    assert (down.state, down.physical, down.lane) == ("Down", "Polling", None)


@pytest.mark.parametrize(
    ("line", "state", "speed", "could"),
    [
        (
            '0xb8cef60300000023 "          leaf4"      6    1[  ] ==( 4X       106.25 Gbps Active/  LinkUp)==>  '
            '0x0c42a10300000601     13    1[  ] "gpu06 mlx5_0" ( )',
            "Active",
            "4xNDR",
            "",
        ),
        (
            '0xb8cef60300000023 "          leaf4"      6    1[  ] ==( 1X       25.78125 Gbps Active/  LinkUp)==>  '
            '0x0c42a10300000601     13    1[  ] "gpu06 mlx5_0" (Could be 4X Could be 53.125 Gbps)',
            "Active",
            "1xEDR",
            "4X Could be 53.125 Gbps",
        ),
        (
            '0xb8cef60300000023 "          leaf4"      6    1[  ] ==( 4X        2.5 Gbps Initialize/  LinkUp)==>  '
            '0x0c42a10300000601     13    1[  ] "gpu06 mlx5_0" ( )',
            "Initialize",
            "4xSDR",
            "",
        ),
    ],
)
def test_iblinkinfo_lines(line: str, state: str, speed: str, could: str) -> None:
    (port,) = parse.iblinkinfo(line).values()
    assert (port.state, parse.speed_name(port.width, port.lane), port.could_be) == (state, speed, could)


@pytest.mark.parametrize(
    ("speed", "rate"),
    [
        ("4xXDR", 800),
        ("4xNDR", 400),
        ("4xHDR", 200),
        ("2xHDR", 100),
        ("4xEDR", 100),
        ("4xFDR", 56),
        ("1xSDR", 2.5),
        ("", None),
        ("4xABC", None),
    ],
)
def test_data_rates(speed: str, rate: float | None) -> None:
    assert parse.gigabits(speed) == rate


def test_ibqueryerrors() -> None:
    assert parse.ibqueryerrors(read("ibqueryerrors.txt")) == {}
    assert parse.ibqueryerrors(read("ibqueryerrors.errors.txt")) == {
        End(LEAF1, 1): {"SymbolErrorCounter": 250, "LinkDownedCounter": 7},
        End(LEAF1, 33): {"PortRcvErrors": 1234},
    }


def test_sminfo() -> None:
    assert parse.sminfo(read("sminfo.txt")) == (7, "0c42a10300000001", "SMINFO_MASTER")
    assert parse.sminfo("ibwarn: ... sminfo: iberror: failed: query") is None


def test_unanswered_paths() -> None:
    assert parse.unanswered(read("ibnetdiscover.leaf4-unresponsive.err")) == 4
    assert parse.unanswered('ibwarn: [1] sim_connect: attached as client 1 at node "H-0c42a10300000000"\n') == 0


def test_guids_are_padded() -> None:
    assert parse.guid("0xC42a10300000000") == "0c42a10300000000"
