"""Facts about the host."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from llmgw_agent.host.cpu import read_cpu
from llmgw_agent.host.disk import read_disks
from llmgw_agent.host.memory import read_memory
from llmgw_agent.host.status import worth_telling
from llmgw_proto.records import DiskFacts, NodeStatusRecord

GIB = 1 << 30


def group(folder: Path, files: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(str(content))


def test_without_a_limit_memory_is_the_machines(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/a/b\n")
    group(tmp_path / "root/a/b", {"memory.max": "max\n", "memory.current": 5})
    for path in (own, tmp_path / "missing"):
        memory = read_memory(tmp_path / "root", path)
        assert memory.total == psutil.virtual_memory().total
        assert 0 < memory.available <= memory.total


def test_a_limit_of_a_parent_group_counts(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/a/b\n")
    group(tmp_path / "root/a/b", {"memory.max": "max"})
    group(
        tmp_path / "root/a", {"memory.max": GIB, "memory.current": GIB // 2, "memory.stat": f"inactive_file {GIB // 4}\nx 1\n"}
    )
    memory = read_memory(tmp_path / "root", own)
    assert (memory.total, memory.available) == (GIB, GIB // 2 + GIB // 4)


def test_version_1_groups_are_read_too(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("9:name=systemd:/x\n4:memory:/docker/c\n3:cpu,cpuacct:/docker/c\n")
    files = {"memory.limit_in_bytes": GIB, "memory.usage_in_bytes": 2 * GIB, "memory.stat": "total_inactive_file 7\n"}
    group(tmp_path / "root/memory/docker/c", dict(files))
    group(tmp_path / "root/memory", {"memory.limit_in_bytes": 9223372036854771712})
    memory = read_memory(tmp_path / "root", own)
    assert (memory.total, memory.available) == (GIB, 0)


def test_rubbish_is_no_limit(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("rubbish\n0::/../..\n\n")
    group(tmp_path / "root", {"memory.max": "rubbish"})
    assert read_memory(tmp_path / "root", own).total == psutil.virtual_memory().total


def test_cpus(tmp_path: Path) -> None:
    text = "processor : 0\nmodel name\t: AMD EPYC\nphysical id : 0\n\nprocessor : 1\nmodel name\t: AMD EPYC\nphysical id : 1\n"
    (tmp_path / "cpuinfo").write_text(text)
    found = read_cpu(tmp_path / "cpuinfo")
    assert (found.model, found.sockets) == ("AMD EPYC", 2)
    assert found.cores >= 1
    assert read_cpu(tmp_path / "missing").sockets == 1


def test_disks_are_told_once_per_file_system(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    found = read_disks([tmp_path, tmp_path / "a", tmp_path / "missing"])
    assert [disk.path for disk in found] == [str(tmp_path)]
    assert 0 < found[0].free_bytes <= found[0].total_bytes


def status(**fields: object) -> NodeStatusRecord:
    disk = DiskFacts(path="/", total_bytes=100 * GIB, free_bytes=50 * GIB)
    base = NodeStatusRecord(node="n", updated_at=100, memory_available_bytes=8 * GIB, load1=1, disks=[disk])
    return base.model_copy(update=fields)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, False),
        ({"updated_at": 130.0}, False),
        ({"updated_at": 160.0}, True),
        ({"memory_available_bytes": 8 * GIB - 1000}, False),
        ({"memory_available_bytes": 7 * GIB}, True),
        ({"load1": 1.2}, False),
        ({"load1": 1.6}, True),
        ({"problems": ["disk full"]}, True),
        ({"disks": []}, True),
        ({"disks": [DiskFacts(path="/", total_bytes=100 * GIB, free_bytes=40 * GIB)]}, True),
    ],
)
def test_only_what_matters_is_told(change: dict[str, object], told: bool) -> None:
    assert worth_telling(status(), status(**change)) is told
    assert worth_telling(None, status(**change))
