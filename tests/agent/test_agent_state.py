"""State files: whole or set aside, never half believed."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.errors import StateFileError
from llmgw_agent.shard.state import (
    SavedAttempt,
    SavedProcess,
    SavedShard,
    StateDir,
    file_name,
    read_state,
    write_atomically,
)
from llmgw_proto.records import AssignmentRecord


def saved(shard: str = "m-1.0") -> SavedShard:
    wish = AssignmentRecord(shard=shard, replica="m-1", model="org/m", epoch=3, engine="llamacpp", args=["-c", "1"])
    return SavedShard(
        node="n",
        assignment=wish,
        api_key="secret",
        attempt=SavedAttempt(id="a1", wish="f", host="127.0.0.1", port=1234),
        process=SavedProcess(pid=7, start_ticks=8, boot_id="b", started_at=9.0),
        failures=2,
    )


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.save(saved())
    assert state.load_all() == {"m-1.0": saved()}
    assert state.path("m-1.0").stat().st_mode & 0o777 == 0o600
    state.remove("m-1.0")
    assert state.load_all() == {}


def test_a_file_cut_at_any_length_is_set_aside(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.save(saved())
    path = state.path("m-1.0")
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(StateFileError):
            read_state(path, "m-1.0")
    path.write_bytes(whole[: len(whole) // 2])
    assert state.load_all() == {}
    assert path.with_suffix(".damaged").exists()
    assert not path.exists()


@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_changed_byte_is_read_as_a_state_or_refused_by_name(position: int, byte: int) -> None:
    folder = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path("/tmp")
    path = folder / f"llmgw-state-{os.getpid()}.json"
    data = bytearray(saved().model_dump_json(exclude_none=True).encode())
    data[position % len(data)] = byte
    path.write_bytes(bytes(data))
    try:
        assert isinstance(read_state(path, "m-1.0"), SavedShard)
    except StateFileError as error:
        assert str(error)
    finally:
        path.unlink()


def test_another_shard_or_a_newer_layout_is_refused_and_newer_fields_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(saved("other.0").model_dump_json())
    with pytest.raises(StateFileError, match=r"holds shard other\.0, not m-1\.0"):
        read_state(path, "m-1.0")
    path.write_text(saved().model_copy(update={"version": 2}).model_dump_json())
    with pytest.raises(StateFileError, match="newer agent"):
        read_state(path, "m-1.0")
    path.write_text(saved().model_dump_json().replace('"node":', '"later":{"x":1},"node":', 1))
    assert read_state(path, "m-1.0").model_dump()["later"] == {"x": 1}


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    write_atomically(path, b"old")

    def no_space(fd: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", no_space)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["f"]


def test_ended_epochs_are_remembered_and_only_grow(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    assert state.finished() == {}
    state.finish("a", 4)
    state.finish("a", 2)
    state.finish("b", 1)
    assert StateDir(tmp_path).finished() == {"a": 4, "b": 1}
    for number in range(5):
        state.finish(f"s{number}", 1, limit=3)
    assert set(state.finished()) == {"s2", "s3", "s4"}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": "x"}', b"\xff", b"null"])
def test_a_damaged_list_of_ended_epochs_is_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "finished.json").write_bytes(content)
    assert StateDir(tmp_path).finished() == {}


def test_the_cluster_is_remembered(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    assert state.cluster_id() is None
    state.set_cluster_id("c-1")
    assert StateDir(tmp_path).cluster_id() == "c-1"


@given(st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable()))
def test_a_shard_name_stays_inside_its_folder(shard: str) -> None:
    name = file_name(shard)
    assert "/" not in name
    assert not name.startswith(".")
    assert unquote(name) == shard
