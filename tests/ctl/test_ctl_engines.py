"""What `llmgwctl engine` prints. The commands themselves are tested against a whole stack in tests/system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmgw_ctl.engine_actions import read_labels, read_lock
from llmgw_ctl.errors import BadInputError
from llmgw_ctl.views.engines import engines_grid, origin, selector, settings_grid, step_line


def test_engines_of_nodes() -> None:
    there: dict[str, Any] = {
        "engine": "vllm",
        "version": "1.0",
        "state": "installed",
        "default": True,
        "origin": "fleet",
        "bytes": 2 << 30,
        "installed_at": 40.0,
        "used_by": ["m-1.0"],
        "detail": "CUDA 13, 8 GPUs",
    }
    wanted = {"engine": "llamacpp", "version": "b1", "state": "wanted", "default": True, "origin": "node", "used_by": []}
    lines = engines_grid([{"node": "n1", "engines": [there, wanted]}], 100.0).plain().splitlines()
    assert lines[0].split() == ["NODE", "ENGINE", "VERSION", "STATE", "DEFAULT", "SIZE", "AGE", "USED", "BY", "DETAIL"]
    assert "by fleet" in lines[1]
    assert "m-1.0" in lines[1]
    assert "by node" in lines[2]
    assert engines_grid([], 0).empty.startswith("No node installs engines")


def test_a_terminal_of_80_columns_is_wide_enough() -> None:
    detail = "engine llamacpp b1: its archive cannot be fetched: " + "x" * 200
    failed = {"engine": "llamacpp", "version": "2026.10.11549", "state": "installed", "default": True, "origin": "fleet"}
    engine = failed | {"bytes": 2 << 30, "installed_at": 40.0, "used_by": ["a-model-with-quite-a-long-name-x7k2p.0"]}
    grid = engines_grid([{"node": "gpu-node-01", "engines": [engine | {"detail": detail}]}], 100.0).fitting(80)
    assert grid.least_width() <= 80
    assert "DETAIL" in [each.title for each in grid.columns]


def test_settings_say_where_and_from_what() -> None:
    settings = {
        "engine": "llamacpp",
        "version": "b1",
        "releases": {"b1": {"archive": "/a", "sha256": "ab" * 32}, "2": {"build": True}, "3": {"lock_sha256": "cd" * 32}},
        "overrides": [{"version": "2", "gpu_class": "H100-80GB", "labels": {"ring": "canary"}}],
    }
    rows = settings_grid([settings]).rows
    assert rows == [
        ("llamacpp", "H100-80GB, ring=canary", "2", "built on the node from the source package"),
        ("llamacpp", "all others", "b1", "archive /a abababababab"),
        ("llamacpp", "models that wish it", "3", "lock cdcdcdcdcdcd"),
    ]
    assert settings_grid([{"engine": "vllm", "version": "1"}]).rows == [
        ("vllm", "all", "1", "the engine's package, resolved on the node")
    ]
    assert selector({"version": "1"}) == ""
    assert origin({"build": True, "archive": "/a", "sha256": "ab" * 32}) == "built on the node from source /a abababababab"


@pytest.mark.parametrize("build", [True, False])
def test_secrets_in_an_archives_address_are_not_shown(build: bool) -> None:
    said = origin({"archive": "https://u:SECRET@host/a.tgz?sig=SECRET", "sha256": "ab" * 32, "build": build})
    assert "https://host/a.tgz" in said
    assert "SECRET" not in said
    assert "%" in origin({"archive": "http://[%", "sha256": "ab" * 32}), "whatever a coordinator answers"


def test_a_step_is_one_line() -> None:
    step = {"fraction": 0.421, "phase": "building", "text": "Building x.o"}
    assert step_line("llamacpp", "n1", step) == "installing llamacpp on n1, 42%, building: Building x.o"


def test_labels_and_locks_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    assert read_labels(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    for bad in ("a", "=1"):
        with pytest.raises(BadInputError, match="is not a label"):
            read_labels([bad])
    with pytest.raises(BadInputError, match="No such file"):
        read_lock(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    with pytest.raises(BadInputError, match="it is not text"):
        read_lock(tmp_path / "binary")
