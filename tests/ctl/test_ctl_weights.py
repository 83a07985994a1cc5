"""``llmgwctl weights`` against a fake coordinator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from llmgw_ctl.app import build
from llmgw_ctl.errors import CtlError, NotFoundError
from llmgw_ctl.views.weights import copies_grid, fetch_line, model_line, verify_line, weights_facts, weights_grid
from llmgw_ctl.weights_actions import matching
from llmgw_testing.fake_admin import TOKEN, FakeAdmin

FACTS = {
    "format": "gguf",
    "architecture": "llama",
    "parameters": 134_515_008,
    "quantisation": "Q4_1",
    "heads": 9,
    "kv_heads": 3,
}


def stored(source: str = "hf:org/m", content: str = "cd" * 32, **more: Any) -> dict[str, Any]:
    base = {"source": source, "key": f"key-{source[-1]}", "content": content, "bytes": 98_362_432, "files": 1, "path": "/w/m"}
    times: dict[str, Any] = {"revision": None, "fetched_at": 0.0, "last_used_at": 0.0, "used_by": [], "facts": FACTS}
    return {**base, **times, **more}


def on(node: str, *weights: dict[str, Any]) -> dict[str, Any]:
    return {"node": node, "folder": "/w", "free_bytes": 1, "limit_bytes": None, "weights": list(weights)}


class Ctl:
    def __init__(self, admin: FakeAdmin, home: Path) -> None:
        self.admin, self.home = admin, home

    def __call__(self, *args: str, expect: int = 0) -> tuple[str, str]:
        """stdout and stderr; where a failure is expected, its message and remedy come after them."""
        env = {"LLMGW_SERVER": self.admin.url, "LLMGW_TOKEN": TOKEN, "HOME": str(self.home), "XDG_CONFIG_HOME": None}
        result = CliRunner().invoke(build(), ["weights", *args], env=env, prog_name="llmgwctl")
        if isinstance(result.exception, CtlError):
            assert result.exception.exit_code == expect, str(result.exception)
            return result.stdout, f"{result.stderr}{result.exception.message}\n{result.exception.remedy}"
        assert result.exit_code == expect, f"{result.output}\n{result.exception!r}"
        return result.stdout, result.stderr


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    with FakeAdmin() as admin:
        admin.weights = [on("n1", stored(used_by=["m-1.0"]), stored("hf:org/x", "ab" * 32, facts=None)), on("n2", stored())]
        admin.silent = [{"node": "n3", "cause": "no connection"}]
        yield Ctl(admin, tmp_path)


def test_the_list_has_a_row_for_each_copy_and_names_who_is_silent(ctl: Ctl) -> None:
    out, err = ctl("list")
    rows = out.splitlines()
    assert len(rows) == 4
    assert "llama 135M Q4_1" in rows[1]
    assert rows[1].endswith("m-1.0")
    assert "93.8 MiB" in rows[1]
    assert "node n3 is left out: no connection" in err
    assert len(ctl("list", "--node", "n2")[0].splitlines()) == 2
    assert [each["node"] for each in json.loads(ctl("list", "-o", "json")[0])["nodes"]] == ["n1", "n2"]
    assert "no node 'n9'" in ctl("list", "--node", "n9", expect=4)[1]


def test_an_empty_list_says_how_to_begin(ctl: Ctl) -> None:
    ctl.admin.weights = [on("n1")]
    assert "llmgwctl weights fetch SOURCE --node NODE" in ctl("list")[1]


def test_weights_are_shown_by_source_key_or_digest(ctl: Ctl) -> None:
    for name in ("hf:org/m", "key-m", "cdcdcdcd"):
        out = ctl("show", name)[0]
        assert "llama" in out
        assert "9, 3 for keys and values" in out
        assert len([line for line in out.splitlines() if line.startswith(("n1 ", "n2 "))]) == 2
    assert [each["node"] for each in yaml.safe_load(ctl("show", "hf:org/m", "-o", "yaml")[0])] == ["n1", "n2"]
    assert "(n3 did not answer)" in ctl("show", "hf:org/none", expect=4)[1]


def test_removing_goes_on_where_one_node_refuses(ctl: Ctl) -> None:
    out, err = ctl("remove", "hf:org/m", expect=1)
    assert out == "n2: removed hf:org/m, 93.8 MiB freed\n"
    assert "is in use by m-1.0" in err
    assert ("DELETE", "/admin/v1/nodes/n2/weights/key-m") in ctl.admin.requests
    assert json.loads(ctl("remove", "hf:org/x", "-o", "json")[0])[0]["freed_bytes"] == 98_362_432


def test_verifying_ends_with_the_files_that_were_wrong(ctl: Ctl) -> None:
    ctl.admin.steps["n1"] = [
        {"source": "hf:org/m", "bytes_done": 1, "bytes_total": 5},
        {"source": "", "bytes_done": 5, "bytes_total": 5, "files": 2, "wrong": ["hf:org/m: a"]},
    ]
    ctl.admin.steps["n2"] = [{"source": "", "bytes_done": 5, "bytes_total": 5, "files": 1, "wrong": []}]
    out, err = ctl("verify", expect=1)
    assert "n1: 2 files, 5 B read, 1 wrong" in out
    assert "n2: 1 file, 5 B read, none wrong" in out
    assert "n1: hf:org/m: a was wrong and is removed" in err
    assert "n1: 1 B of 5 B read" in err
    assert "n2: 1 file" in ctl("verify", "hf:org/m", "--node", "n2")[0]
    assert ctl.admin.bodies[-1] == {"weights": "key-m"}


def test_fetching_shows_the_way_and_the_end(ctl: Ctl) -> None:
    facts = {"format": "gguf"}
    ready = {"phase": "ready", "bytes_done": 5, "bytes_total": 5, "bytes_fetched": 5, "bytes_per_second": 0, "path": "/w/m"}
    ctl.admin.steps["n1"] = [
        {"phase": "fetching", "bytes_done": 1, "bytes_total": 5, "bytes_per_second": 1, "place": "https://h/very/long"},
        {**ready, "facts": facts},
    ]
    ctl.admin.steps["n2"] = [
        {"phase": "fetching", "bytes_done": 0, "bytes_per_second": 0},
        {"error": {"code": "weights_failed", "message": "node n2: no room", "remedy": "make room"}},
    ]
    out, err = ctl("fetch", "hf:org/m", "--node", "n1", "--node", "n2", "--node", "n9", expect=1)
    assert out == "n1: here: 5 B in /w/m\n"
    assert "1 B of 5 B, 1 B/s, 4.0s left, from h" in err
    assert "node n2: no room\nmake room" in err
    assert "n9" in err
    assert json.loads(ctl("fetch", "hf:org/m", "--node", "n1", "-o", "json")[0])[0]["node"] == "n1"
    ctl("fetch", "hf:org/m", expect=2)


def test_a_digest_that_names_several_is_not_enough() -> None:
    nodes = [on("n1", stored("a", "ab" * 8 + "1" * 48), stored("b", "ab" * 8 + "2" * 48))]
    with pytest.raises(NotFoundError, match="several"):
        matching(nodes, "abababab")
    assert matching(nodes, "ab") == []
    assert [each["source"] for each in matching(nodes, "ab" * 8 + "1")] == ["a"]


@pytest.mark.parametrize(
    ("step", "line"),
    [
        ({"phase": "resolving"}, "asks what the source consists of"),
        ({"phase": "waiting"}, "waits for another process that uses the same weights"),
        ({"phase": "verifying", "bytes_done": 5, "bytes_total": 5}, "verifies 5 B of 5 B"),
        ({"phase": "fetching", "bytes_done": 5, "waits_for": "n2"}, "waits for node n2, which fetches the same; 5 B are here"),
        ({"phase": "fetching", "bytes_done": 5, "bytes_per_second": 2}, "5 B, 2 B/s"),
        ({"phase": "fetching", "bytes_done": 5, "place": "http://[bad"}, "5 B, 0 B/s, from http://[bad"),
    ],
)
def test_how_far_a_fetch_is(step: dict[str, Any], line: str) -> None:
    assert fetch_line(step) == line


def test_what_a_model_is_in_few_words() -> None:
    assert model_line(None) == "-"
    assert model_line({"format": "safetensors", "architecture": "Qwen", "parameters": 7_240_000_000, "dtype": "bfloat16"}) == (
        "Qwen 7.2B bfloat16"
    )
    assert model_line({"format": "pickle"}) == "pickle"
    assert verify_line({"bytes_done": 1, "bytes_total": 2}) == "1 B of 2 B read"
    assert dict(weights_facts(stored(files=3)))["Size"] == "93.8 MiB in 3 files"


def test_a_terminal_of_80_columns_is_wide_enough() -> None:
    weights = stored("hf:org/A-Model-With-Quite-A-Long-Name-32B-Instruct-GGUF:Q4_K_M", used_by=["a-model-x7k2p.0"])
    for grid in (weights_grid([on("gpu-node-01", weights)], 100.0), copies_grid([{"node": "gpu-node-01", **weights}], 100.0)):
        assert grid.fitting(80).least_width() <= 80
