"""What is shipped is what is in the tree, and what is generated matches its source."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from llmgw_base.etcd import rpc_pb2
from llmgw_proto import __version__, agent_pb2, engines_pb2, shards_pb2, weights_pb2

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = {".py", ".pyi", ".proto", ".typed", ".html", ".js", ".css"}


def settings() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_wheel_holds_every_file_of_every_package(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=ROOT, check=True, timeout=100
    )
    (wheel,) = tmp_path.glob("*.whl")
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    in_tree = {
        str(path.relative_to(parent))
        for parent in (ROOT / "agent", ROOT / "coordinator", ROOT / "router", ROOT / "proto")
        for path in parent.rglob("*")
        if path.suffix in SHIPPED
    }
    assert in_tree <= shipped
    assert {name.split("/")[0] for name in shipped} == {name.split("/")[0] for name in in_tree}


def test_one_version() -> None:
    project = settings()["project"]
    assert isinstance(project, dict)
    assert project["version"] == __version__


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("llmgw_proto/agent.proto", agent_pb2),
        ("llmgw_proto/engines.proto", engines_pb2),
        ("llmgw_proto/shards.proto", shards_pb2),
        ("llmgw_proto/weights.proto", weights_pb2),
        ("llmgw_base/etcd/rpc.proto", rpc_pb2),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_generated_code_matches_its_proto_file(source: str, module: object, tmp_path: Path) -> None:
    out = tmp_path / "set.bin"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "proto"), f"--descriptor_set_out={out}", source]
    subprocess.run(command, cwd=ROOT / "proto", check=True, timeout=60)
    (fresh,) = FileDescriptorSet.FromString(out.read_bytes()).file
    committed = FileDescriptorSet().file.add()
    module.DESCRIPTOR.CopyToProto(committed)  # type: ignore[attr-defined]  # every generated module has it
    fresh.ClearField("source_code_info")
    for each in (fresh, committed):
        for message in each.message_type:
            for field in [*message.field, *(field for inner in message.nested_type for field in inner.field)]:
                field.ClearField("json_name")
    assert committed == fresh, "run `make proto` and commit what it makes"
