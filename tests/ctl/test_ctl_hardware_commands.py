"""``gpu``, ``nvlink`` and ``node show`` against a fake coordinator whose nodes are detected on the fake NVML."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from llmgw_ctl.app import build
from llmgw_ctl.errors import CtlError
from llmgw_proto.records import FabricMapRecord, FabricMissing, FabricNode
from llmgw_testing import hardware_look
from llmgw_testing import nvml_profiles as machine
from llmgw_testing.fake_admin import TOKEN, FakeAdmin, node_view
from llmgw_testing.nvml_fake import FakeNvml
from llmgw_testing.sysfs_trees import SysfsTree


class Ctl:
    def __init__(self, admin: FakeAdmin, home: Path) -> None:
        self.admin, self.home = admin, home
        self._app = build()

    def __call__(self, *args: str, expect: int = 0) -> str:
        """Returns stdout; where a failure is expected, its message and remedy."""
        env = {"LLMGW_SERVER": self.admin.url, "LLMGW_TOKEN": TOKEN, "HOME": str(self.home), "XDG_CONFIG_HOME": None}
        result = CliRunner().invoke(self._app, args, env=env, prog_name="llmgwctl")
        if isinstance(result.exception, CtlError):
            assert result.exception.exit_code == expect, str(result.exception)
            return f"{result.exception.message}\n{result.exception.remedy}"
        assert result.exit_code == expect, f"{result.output}\n{result.exception!r}"
        return result.stdout


def node(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, profile: str) -> dict[str, Any]:
    folder.mkdir(parents=True)
    tree = SysfsTree(folder / "sys")
    tree.hca("mlx5_0", "pci0000:15/0000:15:01.0/0000:1a:00.0")
    FakeNvml(monkeypatch, folder, profile)
    found = hardware_look.look(tree.root)
    view = node_view(name)
    view["inventory"]["topology"] = json.loads(json.dumps(found.topology()))
    view["inventory"]["gpus"] = [gpu.model_dump() for gpu in found.gpu_facts()]
    return view


@pytest.fixture
def ctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ctl]:
    with FakeAdmin() as admin:
        admin.nodes = [
            node(monkeypatch, tmp_path / "n1", "n1", machine.dgx_h100() + "gpu3.remapped = 0,1,1,0\n"),
            node(monkeypatch, tmp_path / "n2", "n2", machine.l40s(2)),
            node_view("n3"),
        ]
        admin.add("m", gpus=[machine.uuid(1)])
        yield Ctl(admin, tmp_path)


def test_gpus_are_listed_with_state_and_reason(ctl: Ctl) -> None:
    lines = ctl("gpu", "list").splitlines()
    assert lines[0].split()[:4] == ["NODE", "GPU", "CLASS", "MEMORY"]
    assert [line.split()[0] for line in lines[1:]] == ["n1"] * 8 + ["n2"] * 2
    (bad,) = [line for line in lines if "quarantined" in line]
    assert machine.uuid(3) in bad
    assert "row-remap-pending" in bad
    assert sum("L40S" in line for line in lines) == 2


def test_gpus_as_data(ctl: Ctl) -> None:
    gpus = json.loads(ctl("gpu", "list", "-o", "json"))
    assert yaml.safe_load(ctl("gpu", "list", "-o", "yaml")) == gpus
    assert len(gpus) == 10
    assert [gpu["uuid"] for gpu in gpus if gpu["quarantine"]] == [machine.uuid(3)]
    assert {gpu["node"] for gpu in gpus} == {"n1", "n2"}
    assert all(gpu["alive"] for gpu in gpus)


def test_nvlink_of_the_fleet(ctl: Ctl) -> None:
    out = ctl("nvlink")
    assert "n1" in out
    assert "n2" not in out
    (found,) = json.loads(ctl("nvlink", "-o", "json"))
    assert found["node"] == "n1"
    assert [len(island["uuids"]) for island in found["islands"]] == [8]


def test_without_gpus_it_says_so(ctl: Ctl) -> None:
    ctl.admin.nodes = [node_view("n3")]
    assert ctl("gpu", "list", "-o", "json").strip() == "[]"
    assert "No GPUs with NVLink" in ctl("nvlink")


def test_a_node_is_shown_with_its_hardware(ctl: Ctl) -> None:
    out = ctl("node", "show", "n1")
    assert "row-remap-pending" in out
    assert "NV18" in out
    assert "mlx5_0" in out
    assert "NV18" not in ctl("node", "show", "n3")


SUBNET = "0002c90000000001"


def fabric() -> dict[str, Any]:
    """A switch with two hosts, one of them without its link."""
    nodes = [
        FabricNode(guid=SUBNET, kind="switch", name="leaf", lid=1, ports=36),
        FabricNode(guid="1", kind="host", name="host", port_guids={1: "aa"}),
    ]
    missing = FabricMissing(a=SUBNET, a_port=2, b="1", b_port=2, speed="4xNDR", since=1_700_000_000.0)
    record = FabricMapRecord(
        subnet=SUBNET, mapper="n1", mapped_at=1_700_000_000.0, nodes=nodes, links=[(0, 1, 1, 1, "4xNDR")], missing=[missing]
    )
    return json.loads(record.encode())  # type: ignore[no-any-return]  # of an object


def test_fabrics(ctl: Ctl) -> None:
    assert ctl("fabric", "list", "-o", "json").strip() == "[]"
    assert "there is no fabric" in ctl("fabric", "show", SUBNET, expect=4)
    ctl.admin.fabrics = [fabric()]
    ctl.admin.nodes[2]["inventory"]["topology"] = {"rdma_ports": [{"hca": "mlx5_7", "port": 1, "guid": "aa"}]}
    title, line = ctl("fabric", "list").splitlines()
    assert title.split()[0] == "SUBNET"
    assert line.split()[:5] == [SUBNET, "1", "1", "1", "1"]
    assert "degraded" in line
    out = ctl("fabric", "show", SUBNET)
    assert "MISSING LINK" in out
    assert "n3 mlx5_7" in out
    assert json.loads(ctl("fabric", "show", SUBNET, "-o", "json")) == yaml.safe_load(
        ctl("fabric", "show", SUBNET, "-o", "yaml")
    )


def test_gpus_are_set_aside_and_lifted_by_uuid(ctl: Ctl) -> None:
    # The simulated nodes have the same UUIDs from GPU 0 to 1: only the others are known by themselves.
    assert ctl("gpu", "hold", machine.uuid(5), "--reason", "loud") == (
        f"{machine.uuid(5)} on n1 is in quarantine: operator: loud\n"
    )
    assert ctl("gpu", "lift", machine.uuid(5)[:12]) == f"{machine.uuid(5)} on n1 may be used\n"
    assert json.loads(ctl("gpu", "lift", machine.uuid(1), "--node", "n2", "-o", "json")) == {
        "node": "n2",
        "subject": machine.uuid(1),
        "quarantine": None,
    }
    assert ctl("gpu", "hold", "mlx5_0:1", "--node", "n1").startswith("mlx5_0:1 on n1 is in quarantine")
    assert ("POST", "/admin/v1/nodes/n1/gpus/mlx5_0%3A1/hold") in ctl.admin.requests


def test_gpus_that_are_not_told_apart_or_not_there(ctl: Ctl) -> None:
    assert "fits 2 GPUs" in ctl("gpu", "lift", machine.uuid(0), expect=2)
    assert "fits 10 GPUs" in ctl("gpu", "lift", "GPU-00", expect=2)
    assert "there is no gpu 'GPU'" in ctl("gpu", "lift", "GPU", expect=4)
    assert "name its node with --node" in ctl("gpu", "lift", "mlx5_0:1", expect=2)
    assert "there is no node" in ctl("gpu", "lift", machine.uuid(5), "--node", "n9", expect=4)


def test_power_caps(ctl: Ctl) -> None:
    uuid = machine.uuid(5)
    assert ctl("gpu", "power", uuid, "350") == f"{uuid}: power limit 350 W\n"
    assert ctl("gpu", "power", uuid, "default") == f"{uuid}: power limit 700 W\n"
    assert ctl.admin.bodies == [{"watts": 350.0}, {"watts": None}]
    for text in ("much", "0", "-5", "nan", "inf"):
        assert "is not a power limit" in ctl("gpu", "power", uuid, "--", text, expect=2)


def test_bandwidth(ctl: Ctl) -> None:
    assert "m-1.0 is Ready" in ctl("node", "bandwidth", "n1", "n2", expect=1)
    assert ctl("node", "bandwidth", "n1", "n2", "--force", "--seconds", "2") == (
        "n1 to n2: 391.2 Gb/s over RDMA (mlx5_0:1 to mlx5_1:1), measured for 2.0 s\n"
    )
    assert json.loads(ctl("node", "bandwidth", "n1", "n2", "--force", "-o", "json"))["gigabits_per_second"] == 391.2
