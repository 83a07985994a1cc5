from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEventError,
    UnknownEvent,
    decode_batch,
    decode_event,
)
from llmgw_agent.kv_events.wire import Message, read_published, read_reply, replay_request
from llmgw_testing.steady import steady

FIELDS = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx",
    "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
)  # fmt: skip
HASHES = st.integers(-(1 << 63), (1 << 64) - 1) | st.binary(min_size=8, max_size=32)
STORED = st.fixed_dictionaries(
    {
        "block_hashes": st.lists(HASHES, max_size=4),
        "parent_block_hash": st.none() | HASHES,
        "token_ids": st.lists(st.integers(0, 1 << 18), max_size=8),
        "block_size": st.sampled_from([0, 16, 32]),
        "lora_id": st.none() | st.integers(0, 100),
        "medium": st.none() | st.sampled_from(["GPU", "CPU", "STORAGE", "CPU_PINNED", "DISK", "EXTERNAL"]),
        "lora_name": st.none() | st.text(max_size=5),
        "extra_keys": st.none() | st.lists(st.none() | st.lists(st.text(max_size=3), max_size=2), max_size=3),
        "group_idx": st.none() | st.integers(0, 3),
        "kv_cache_spec_kind": st.none() | st.sampled_from(["full_attention", "sliding_window"]),
        "kv_cache_spec_sliding_window": st.none() | st.integers(0, 4096),
    }
)


def batch(*events: Any, rank: int | None = None) -> bytes:
    return msgspec.msgpack.encode([12.5, list(events), rank])


@steady
@given(STORED)
def test_arrays_and_maps_mean_the_same(fields: dict[str, Any]) -> None:
    as_array = decode_event(["BlockStored", *(fields[name] for name in FIELDS)])
    as_map = decode_event({"type": "BlockStored", **fields})
    sparse = decode_event({"type": "BlockStored", **{name: each for name, each in fields.items() if each is not None}})
    assert as_array == as_map == sparse
    assert isinstance(as_map, BlockStored)
    assert list(as_map.block_hashes) == fields["block_hashes"]
    assert list(as_map.token_ids) == fields["token_ids"]
    (through_the_wire,) = decode_batch(3, batch({"type": "BlockStored", **fields})).events
    assert through_the_wire == as_map


@steady
@given(STORED, st.integers(1, len(FIELDS)))
def test_older_arrays_are_shorter(fields: dict[str, Any], count: int) -> None:
    event = decode_event(["BlockStored", *(fields[name] for name in FIELDS[:count])])
    expected = decode_event({"type": "BlockStored", **{name: fields[name] for name in FIELDS[:count]}})
    assert event == expected


def test_vllm_as_it_was_and_is() -> None:
    old = decode_batch(
        7, batch(["BlockStored", [1 << 63], None, [5, 6], 2, None], ["BlockRemoved", [9]], ["AllBlocksCleared"], rank=1)
    )
    assert (old.seq, old.time, old.data_parallel_rank) == (7, 12.5, 1)
    assert old.events == (BlockStored((1 << 63,), None, (5, 6), 2), BlockRemoved((9,)), AllBlocksCleared())
    new = decode_event(
        {
            "type": "BlockStored",
            "block_hashes": [b"\x01" * 32],
            "token_ids": [1],
            "block_size": 1,
            "locality": "node",
            "session_id": "s",
        }
    )
    assert new == BlockStored((b"\x01" * 32,), token_ids=(1,), block_size=1, locality="node", session_id="s")


def test_sglang() -> None:
    stored = decode_event(
        {
            "type": "BlockStored",
            "block_hashes": [-5],
            "parent_block_hash": -6,
            "token_ids": [[1, 2], [2, 3]],
            "block_size": 2,
            "medium": "CPU_PINNED",
            "cache_salt": "salt",
        }
    )
    assert stored == BlockStored((-5,), -6, ((1, 2), (2, 3)), 2, medium="CPU_PINNED", cache_salt="salt")
    assert decode_event({"type": "BlockRemoved", "block_hashes": [-5], "medium": "cpu"}) == BlockRemoved((-5,), "CPU")


def test_an_offload_event_without_tokens() -> None:
    event = decode_event(["BlockStored", [4], None, [], 0, None, "CPU"])
    assert event == BlockStored((4,), medium="CPU")


def test_what_is_not_known_is_kept() -> None:
    event = decode_event({"type": "BlockRemoved", "block_hashes": [], "new": {"a": 1}})
    assert isinstance(event, BlockRemoved)
    assert event.extra == {"new": {"a": 1}}
    longer = decode_event(["BlockRemoved", [1], "GPU", 0, "more"])
    assert isinstance(longer, BlockRemoved)
    assert longer.extra == {"#3": "more"}
    assert decode_event(["BlockMoved", 1]) == UnknownEvent(["BlockMoved", 1], "the kind 'BlockMoved' is not known")
    newer = decode_batch(0, msgspec.msgpack.encode([1, [], None, "more"]))
    assert newer.extra == ("more",)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        [1, 2],
        {"type": 3},
        ["BlockStored"],
        ["BlockStored", "x"],
        ["BlockStored", [None]],
        ["BlockStored", [True]],
        ["BlockStored", [1], "parent"],
        ["BlockStored", [1], None, ["token"]],
        ["BlockStored", [1], None, 3],
        ["BlockRemoved", 3],
    ],
)
def test_an_event_without_sense_does_not_spoil_its_batch(value: Any) -> None:
    decoded = decode_batch(0, batch(value, ["AllBlocksCleared"]))
    assert isinstance(decoded.events[0], UnknownEvent)
    assert decoded.events[0].value == value
    assert decoded.events[1] == AllBlocksCleared()


@pytest.mark.parametrize("content", [None, 3, [], [1.0], [1.0, None], ["now", []], [True, []], {"ts": 1}, {"events": []}])
def test_what_is_no_batch_is_refused(content: Any) -> None:
    with pytest.raises(KvEventError, match="batch 5"):
        decode_batch(5, msgspec.msgpack.encode(content))


def test_a_batch_may_be_short_or_a_map() -> None:
    assert decode_batch(0, msgspec.msgpack.encode([1, []])).data_parallel_rank is None
    mapped = decode_batch(0, msgspec.msgpack.encode({"ts": 1, "events": [["AllBlocksCleared"]], "data_parallel_rank": 2}))
    assert (mapped.events, mapped.data_parallel_rank) == ((AllBlocksCleared(),), 2)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", *FIELDS]) | st.text(max_size=3) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=12,
)
KINDS = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"])


@steady
@given(st.lists(VALUES | st.tuples(KINDS, VALUES, VALUES, VALUES), max_size=4))
def test_any_events_are_decoded(events: list[Any]) -> None:
    assert len(decode_batch(1, batch(*events)).events) == len(events)


@steady
@given(VALUES)
def test_any_content_is_decoded_or_refused(content: Any) -> None:
    with contextlib.suppress(KvEventError):
        decode_batch(1, msgspec.msgpack.encode(content))


@steady
@given(st.binary(max_size=80) | st.integers(1, 3000).map(lambda depth: b"\x91" * depth))
def test_any_bytes_are_decoded_or_refused(payload: bytes) -> None:
    with contextlib.suppress(KvEventError):
        decode_batch(1, payload)


def test_frames() -> None:
    seq = (77).to_bytes(8, "big")
    end = (-1).to_bytes(8, "big", signed=True)
    assert read_published([b"topic", seq, b"p"]) == Message(77, b"p")
    assert replay_request(77) == [b"", seq]
    assert (
        read_reply([b"", seq, b"p"]) == read_reply([b"", b"topic", seq, b"p"]) == read_reply([seq, b"p"]) == Message(77, b"p")
    )
    assert read_reply([b"", end, b""]) is None
    assert read_reply([b"", b"", end, b""]) is None
    for wrong in ([], [b"t"], [b"t", seq], [b"t", b"1", b"p"], [b"t", seq, b"p", b"q"]):
        with pytest.raises(KvEventError):
            read_published(wrong)
    for wrong in ([], [b""], [b"", b"1", b"p"], [b"", b"", b"", seq, b"p"]):
        with pytest.raises(KvEventError):
            read_reply(wrong)
