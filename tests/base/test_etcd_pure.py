"""The parts of the etcd client that decide, without I/O."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_base.etcd import backoff, version
from llmgw_base.etcd.api import Change, Deleted, KeyValue, Put, Snapshot
from llmgw_base.etcd.errors import (
    CompactedError,
    LeaseLostError,
    StoreAuthError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
)
from llmgw_base.etcd.identity import Record, doubt, doubt_record, same_history
from llmgw_base.etcd.kv import decode, encode, range_end
from llmgw_base.etcd.mirror import Event, Mirror
from llmgw_base.etcd.refusal import Reaction, judge
from llmgw_base.etcd.target import Target, parse

CODE = grpc.StatusCode


@pytest.mark.parametrize(
    ("endpoint", "tls", "expected"),
    [
        ("http://10.0.0.1:2379", False, Target("http://10.0.0.1:2379", "10.0.0.1:2379", False)),
        ("http://etcd-1.example", False, Target("http://etcd-1.example", "etcd-1.example:2379", False)),
        ("https://[fd00::1]:2379/", True, Target("https://[fd00::1]:2379/", "[fd00::1]:2379", True)),
        ("unix:///run/etcd.sock", True, Target("unix:///run/etcd.sock", "unix:///run/etcd.sock", False)),
    ],
)
def test_endpoints(endpoint: str, tls: bool, expected: Target) -> None:
    assert parse(endpoint, tls=tls) == expected


@pytest.mark.parametrize(
    "endpoint", ["", "h:2379", "ftp://h", "http://", "http://h:x", "http://h:99999", "http://h/a", "unix://x"]
)
def test_endpoints_refused(endpoint: str) -> None:
    with pytest.raises(StoreRefusedError, match="write http://host:2379"):
        parse(endpoint, tls=False)


def test_certificates_are_not_sent_around_in_plain_text() -> None:
    with pytest.raises(StoreRefusedError, match=r"plain text although etcd\.tls is set; write https://"):
        parse("http://h:2379", tls=True)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("2.3.8", "progress requests"),
        ("3.3.27", "progress requests"),
        ("3.4.0", "14685"),
        ("3.4.21", "14685"),
        ("3.4.22", None),
        ("3.4.23", None),
        ("3.5.0-rc.1", "13766"),
        ("3.5.0", "13766"),
        ("3.5.2", "13766"),
        ("3.5.3", "14685"),
        ("3.5.5", "14685"),
        ("3.5.6", None),
        ("3.5.16", None),
        ("3.6.0", None),
        ("4.0.1", None),
        ("not provided", None),
    ],
)
def test_versions(text: str, fault: str | None) -> None:
    found = version.fault(text)
    assert found is None if fault is None else found is not None and fault in found


@pytest.mark.parametrize(
    ("code", "text", "reaction", "error"),
    [
        (CODE.UNAVAILABLE, "Socket closed", Reaction.UNKNOWN, StoreUnavailableError),
        (CODE.UNAVAILABLE, "etcdserver: request timed out", Reaction.UNKNOWN, StoreUnavailableError),
        (CODE.UNAVAILABLE, "etcdserver: leader changed", Reaction.UNKNOWN, StoreUnavailableError),
        (CODE.UNAVAILABLE, "etcdserver: no leader", Reaction.NOT_DONE, StoreUnavailableError),
        (CODE.DEADLINE_EXCEEDED, "Deadline Exceeded", Reaction.UNKNOWN, StoreUnavailableError),
        (CODE.UNKNOWN, "raft proposal dropped", Reaction.UNKNOWN, StoreUnavailableError),
        (CODE.UNAUTHENTICATED, "etcdserver: invalid auth token", Reaction.AUTHENTICATE, StoreAuthError),
        (CODE.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", Reaction.AUTHENTICATE, StoreAuthError),
        (CODE.INVALID_ARGUMENT, "etcdserver: user name is empty", Reaction.AUTHENTICATE, StoreAuthError),
        (CODE.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user", Reaction.REFUSED, StoreAuthError),
        (CODE.PERMISSION_DENIED, "etcdserver: permission denied", Reaction.REFUSED, StoreAuthError),
        (CODE.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Reaction.REFUSED, StoreFullError),
        (CODE.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Reaction.NOT_DONE, StoreUnavailableError),
        (CODE.NOT_FOUND, "etcdserver: requested lease not found", Reaction.REFUSED, LeaseLostError),
        (CODE.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Reaction.REFUSED, CompactedError),
        (CODE.INVALID_ARGUMENT, "etcdserver: request is too large", Reaction.REFUSED, StoreRefusedError),
        (None, "rpc error: code = PermissionDenied desc = etcdserver: permission denied", Reaction.REFUSED, StoreAuthError),
        (None, "", Reaction.UNKNOWN, StoreUnavailableError),
    ],
)
def test_what_an_error_means(code: grpc.StatusCode | None, text: str, reaction: Reaction, error: type) -> None:
    verdict = judge(code, text)
    assert (verdict.reaction, verdict.error) == (reaction, error)


@given(st.integers(-1, 10_000), st.floats(0.1, 10))
def test_backoff_is_bounded_and_starts_at_once(attempt: int, cap: float) -> None:
    pause = backoff.delay(attempt, cap)
    assert 0 <= pause <= cap
    assert attempt > 0 or pause == 0
    assert attempt < 20 or pause >= cap / 2


_text = st.text(st.characters(codec="utf-8"))


@given(_text.filter(bool), _text)
def test_range_end_bounds_exactly_the_prefix(prefix: str, tail: str) -> None:
    first, end = prefix.encode(), range_end(prefix)
    assert first <= (prefix + tail).encode() < end
    assert not end.startswith(first)


@given(st.binary())
def test_any_key_survives(key: bytes) -> None:
    assert encode(decode(key)) == key


# --- mirror -------------------------------------------------------------------------------------------------------------


def kv(key: str, value: bytes, created: int, modified: int) -> KeyValue:
    return KeyValue(key, value, created, modified)


def listed(revision: int, *items: KeyValue, cluster: int = 7) -> Snapshot:
    return Snapshot(items, revision, cluster)


def known(revision: int, *items: KeyValue) -> Mirror:
    mirror = Mirror()
    mirror.take_list(listed(revision, *items))
    return mirror


def test_a_list_is_diffed_by_value() -> None:
    mirror = known(9, kv("a", b"1", 2, 2), kv("b", b"2", 3, 3), kv("c", b"3", 4, 4), kv("d", b"4", 5, 5))
    changes = mirror.take_list(
        listed(20, kv("b", b"2", 3, 18), kv("c", b"3", 16, 16), kv("d", b"5", 5, 17), kv("e", b"6", 12, 12))
    )
    assert changes == [
        Deleted("a", b"1"),
        Put("e", b"6", 12, None, 12),
        Put("c", b"3", 16, b"3", 16),  # deleted and created again: an election must see it
        Put("d", b"5", 17, b"4", 5),
        # b was written with the value it had
    ]


def test_events_are_applied_once_and_in_order() -> None:
    mirror = known(9, kv("a", b"1", 2, 2))
    events = [Event("a", b"2", 10, 2), Event("b", b"1", 11, 11), Event("a", None, 12), Event("b", b"1", 13, 11)]
    assert mirror.take_events(events) == [Put("a", b"2", 10, b"1", 2), Put("b", b"1", 11, None, 11), Deleted("a", b"2")]
    assert mirror.take_events(events) == []
    assert mirror.take_events([Event("x", None, 14)]) == []
    assert (mirror.revision, sorted(mirror.items)) == (14, ["b"])


def test_two_keys_of_one_revision() -> None:
    mirror = known(1)
    assert len(mirror.take_events([Event("a", b"1", 2, 2), Event("b", b"1", 2, 2)])) == 2


def test_emptied_by() -> None:
    mirror = known(9, kv("a", b"1", 2, 2), kv("b", b"2", 3, 3))
    gone = [Event("a", None, 10), Event("b", None, 10)]
    assert mirror.emptied_by(gone)
    assert not mirror.emptied_by(gone[:1])
    assert not mirror.emptied_by([*gone, Event("c", b"", 10, 10)])
    assert not Mirror().emptied_by(gone)


_keys = st.sampled_from(["a", "b", "c", "d"])


@given(st.lists(st.tuples(_keys, st.none() | st.binary(max_size=1)), max_size=30), st.data())
def test_lists_and_events_lead_to_the_same_state(writes: list[tuple[str, bytes | None]], data: st.DataObject) -> None:
    """However a history is cut into events seen and events missed (then listed), the same state comes out of it."""
    mirror, state = Mirror(), dict[str, bytes]()
    store: dict[str, KeyValue] = {}
    missed = False
    for revision, (key, value) in enumerate(writes, start=2):
        before = store.get(key)
        if value is None:
            store.pop(key, None)
            event = Event(key, None, revision)
        else:
            created = before.create_revision if before else revision
            store[key] = KeyValue(key, value, created, revision)
            event = Event(key, value, revision, created)
        if not missed and not data.draw(st.booleans(), label="break"):
            _apply(state, mirror.take_events([event]))
        elif data.draw(st.booleans(), label="list"):
            assert doubt(mirror, Record(), listed(revision, *store.values()), Record()) is None
            _apply(state, mirror.take_list(listed(revision, *store.values())))
            missed = False
        else:
            missed = True
    _apply(state, mirror.take_list(listed(len(writes) + 1, *store.values())))
    assert state == {key: item.value for key, item in store.items()}


def _apply(state: dict[str, bytes], changes: list[Change]) -> None:
    for change in changes:
        if isinstance(change, Put):
            assert state.get(change.key) == change.previous
            state[change.key] = change.value
        else:
            assert isinstance(change, Deleted)
            assert state.pop(change.key) == change.previous


# --- identity -----------------------------------------------------------------------------------------------------------

A, B = kv("a", b"1", 2, 2), kv("b", b"2", 3, 8)


@pytest.mark.parametrize(
    ("snapshot", "seen", "reason"),
    [
        (listed(9, A, B), Record(2), None),
        (listed(30, A, kv("b", b"3", 3, 20)), Record(2), None),
        (listed(30, A), Record(2), None),
        (listed(30), Record(2), None),  # an ordinary prefix may become empty
        (listed(30), Record(None), None),  # the cluster record could not be read: no proof of anything
        (listed(9, A, B, cluster=8), Record(2), "another etcd cluster"),
        (listed(8, A, B), Record(2), "went back from 9 to 8"),
        (listed(1), Record(0), "went back from 9 to 1"),
        (listed(30, A, kv("b", b"2", 3, 7)), Record(2), "not what was seen"),  # known at 8
        (listed(30, A, kv("x", b"2", 6, 6)), Record(2), "not what was seen"),
        (listed(30), Record(0), "all keys are gone at once"),
        (listed(30, A), Record(0), None),
        (listed(30, A, B), Record(15), "set up anew"),
    ],
)
def test_doubt(snapshot: Snapshot, seen: Record, reason: str | None) -> None:
    found = doubt(known(9, A, B), Record(2), snapshot, seen)
    assert found is None if reason is None else found is not None and reason in found


def test_nothing_is_doubted_at_first_sight() -> None:
    assert doubt(Mirror(), Record(), listed(1), Record(0)) is None


def test_an_emptied_prefix_is_fine_where_there_never_was_a_cluster_record() -> None:
    assert doubt(known(9, A), Record(), listed(30), Record(0)) is None
    assert doubt_record(Record(0), Record(0), emptied=True) is None


def test_the_record_is_learned_and_not_forgotten() -> None:
    assert Record().learn(Record(0)) == Record()
    assert Record().learn(Record(5)) == Record(5)
    assert Record(5).learn(Record(None)) == Record(5)
    assert Record(5).learn(Record(0)) == Record(5)


def test_same_history() -> None:
    mirror = known(9, A, B)
    assert same_history(mirror, listed(9, A, B))
    assert not same_history(mirror, listed(9, A))
    assert not same_history(mirror, listed(9, A, kv("b", b"2", 3, 7)))
