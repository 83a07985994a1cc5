from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from llmgw_proto import keyspace
from llmgw_proto.records import BadRecordError, EndpointRecord, ModelSpec
from llmgw_proto.records.model import StrictModelSpec, parse_bytes

MODEL = {"name": "org/m", "source": "/w.gguf", "profiles": [{"engine": "llamacpp"}]}
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(names, names)
def test_any_name_is_one_part_of_a_key(node: str, shard: str) -> None:
    key = keyspace.assignment(node, shard)
    assert key.startswith(keyspace.assignments_of(node))
    assert keyspace.split(key, keyspace.ASSIGNMENTS) == (node, shard)


def test_split_refuses_a_key_of_another_kind() -> None:
    with pytest.raises(ValueError, match="not below"):
        keyspace.split("/llmgw/v1/models/m", keyspace.NODES)


def test_one_nodes_prefix_does_not_cover_another_node() -> None:
    assert not keyspace.assignment("gpu-10", "s").startswith(keyspace.assignments_of("gpu-1"))


def test_fields_of_a_newer_version_survive_a_rewrite() -> None:
    newer = json.dumps({**MODEL, "canary": {"weight": 5}, "profiles": [{"engine": "tomorrow", "turbo": True}]}).encode()
    rewritten = ModelSpec.decode(newer).model_copy(update={"generation": 2}).encode()
    assert json.loads(rewritten)["canary"] == {"weight": 5}
    assert json.loads(rewritten)["profiles"][0] == ModelSpec.decode(newer).profiles[0].model_dump(exclude_none=True)
    assert json.loads(rewritten)["profiles"][0]["turbo"] is True


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"replica": 1}', b"\xff"])
def test_what_is_no_record_is_named(value: bytes) -> None:
    with pytest.raises(BadRecordError, match="/llmgw/v1/endpoints/n/r"):
        EndpointRecord.decode(value, "/llmgw/v1/endpoints/n/r")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"replica": {"min": 1}}, "Extra inputs"),
        ({"profiles": [{"engine": "llamacpp", "gpu": 1}]}, "Extra inputs"),
        ({"profiles": [{"engine": "vlm"}]}, "'llamacpp', 'vllm', 'sglang' or 'command'"),
        ({"profiles": [{"engine": "command", "command": ["x", "{port}"], "version": "1"}]}, "version is for engines"),
        ({"profiles": [{"engine": "vllm", "version": "../x"}]}, "should match pattern"),
        ({"profiles": [{"engine": "command", "command": ["x", "{port}"], "nodes": 2}]}, "runs on one node"),
        ({"profiles": [{"engine": "vllm", "nodes": 0}]}, "greater than or equal to 1"),
        ({"profiles": [{"engine": "vllm", "nodes": 65}]}, "less than or equal to 64"),
        ({"profiles": [{"engine": "vllm", "gpu_class": "H100-80GB"}]}, "set gpus too"),
        ({"profiles": [{"engine": "vllm", "versions": [{"version": "1"}]}]}, "for no node in particular"),
        ({"profiles": [{"engine": "vllm", "versions": [{"version": "1", "label": {}}]}]}, "Extra inputs"),
        ({"profiles": [{"engine": "vllm", "versions": [{"gpu_class": "A"}]}]}, "Field required"),
        (
            {"profiles": [{"engine": "command", "command": ["{port}"], "versions": [{"version": "1", "gpu_class": "A"}]}]},
            "versions is for engines",
        ),
        ({"profiles": []}, "at least 1"),
        ({"profiles": [{"engine": "command"}]}, "needs command"),
        ({"profiles": [{"engine": "llamacpp", "command": ["x"]}]}, "only for engine 'command'"),
        ({"profiles": [{"engine": "llamacpp", "memory": "lots"}]}, "not a size"),
        ({"replicas": {"min": 3, "max": 1}}, "below min"),
        ({"source": None}, "source is missing"),
        ({"name": "a b"}, "without blanks"),
        ({"name": "/a"}, "not starting with '/'"),
        ({"name": "a\n"}, "without blanks"),
    ],
)
def test_what_a_user_may_not_write(change: dict[str, object], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        StrictModelSpec.model_validate({**MODEL, **change})


def test_a_users_spec_becomes_the_record() -> None:
    several = {
        "engine": "vllm",
        "nodes": 2,
        "gpus": 8,
        "gpu_class": "H100-80GB",
        "versions": [{"version": "0.12.0", "node_selector": {"ring": "canary"}}],
    }
    for model in (MODEL, {**MODEL, "profiles": [several]}):
        assert StrictModelSpec.model_validate(model).record() == ModelSpec.model_validate(model)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("1KiB", 1024), ("1.5G", 3 * 2**29), ("2 GB", 2 * 10**9), ("512mib", 2**29), ("3b", 3)],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected
