"""What every policy promises, and what each one is for."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.policies import Hints, Settings, make, names
from llmgw_router.policies.prefix import Prefix, prefixes


@dataclass
class Replica:
    id: str
    load: int = 0
    weight: int = 100


def replicas(*loads: int) -> list[Replica]:
    return [Replica(f"r{index}", load) for index, load in enumerate(loads)]


def settings(seed: int = 1) -> Settings:
    return Settings(random.Random(seed))


@pytest.mark.parametrize("name", names())
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 300)), min_size=1, max_size=9),
    st.binary(max_size=8),
    st.binary(max_size=600),
)
def test_every_policy_chooses_one_of_the_candidates(
    name: str, spec: list[tuple[int, int]], session: bytes, prompt: bytes
) -> None:
    candidates = [Replica(f"r{index}", load, weight) for index, (load, weight) in enumerate(spec)]
    policy = make(name, settings())
    for _ in range(3):
        assert policy.choose(candidates, Hints(session, prompt)) in candidates


@pytest.mark.parametrize("name", [each for each in names() if each != "session"])
def test_a_burst_of_equal_requests_is_spread(name: str) -> None:
    candidates = replicas(0, 0, 0, 0)
    policy = make(name, settings())
    for _ in range(100):
        policy.choose(candidates, Hints(b"", b"the same long prompt " * 100)).load += 1
    assert max(each.load for each in candidates) <= 40
    assert min(each.load for each in candidates) >= (3 if name in ("consistent_hash", "prefix") else 15)


def test_round_robin_takes_turns() -> None:
    policy = make("round_robin", settings())
    candidates = replicas(9, 0, 0)
    assert [policy.choose(candidates, Hints()).id for _ in range(6)] == ["r0", "r1", "r2"] * 2


def test_least_loaded_chooses_the_least_loaded_and_turns_among_equals() -> None:
    policy = make("least_loaded", settings())
    assert {policy.choose(replicas(3, 1, 2), Hints()).id for _ in range(9)} == {"r1"}
    assert {policy.choose(replicas(1, 1, 2), Hints()).id for _ in range(9)} == {"r0", "r1"}


def test_power_of_two_never_chooses_the_worst_and_reaches_all_others() -> None:
    policy = make("power_of_two", settings())
    chosen = Counter(policy.choose(replicas(0, 0, 0, 9), Hints()).id for _ in range(300))
    assert set(chosen) == {"r0", "r1", "r2"}


def test_weighted_follows_the_weights() -> None:
    policy = make("weighted", settings())
    candidates = [Replica("a", weight=300), Replica("b", weight=100), Replica("c", weight=0)]
    chosen = Counter(policy.choose(candidates, Hints()).id for _ in range(4000))
    assert chosen["c"] == 0
    assert 2.4 < chosen["a"] / chosen["b"] < 3.7
    assert policy.choose([Replica("c", weight=0)], Hints()).id == "c"


@given(st.binary(min_size=1, max_size=20), st.integers(2, 8))
def test_session_stays_and_moves_only_when_its_replica_goes(session: bytes, count: int) -> None:
    candidates = replicas(*[0] * count)
    home = make("session", settings(1)).choose(candidates, Hints(session))
    assert make("session", settings(2)).choose(candidates, Hints(session)) is home, "another worker chooses the same"
    other = next(each for each in candidates if each is not home)
    without = [each for each in candidates if each is not other]
    assert make("session", settings()).choose(without, Hints(session)) is home


def test_sessions_are_spread() -> None:
    candidates = replicas(0, 0, 0, 0)
    policy = make("session", settings())
    chosen = Counter(policy.choose(candidates, Hints(f"user-{number}".encode())).id for number in range(400))
    assert min(chosen.values()) > 60


def test_consistent_hash_stays_within_the_bound() -> None:
    candidates = replicas(0, 0, 0, 0)
    policy = make("consistent_hash", settings())
    for number in range(200):
        policy.choose(candidates, Hints(b"one session")).load += 1
        total = number + 1
        assert max(each.load for each in candidates) <= total * 1.25 / 4 + 1


def test_consistent_hash_keeps_a_key_at_home_while_load_is_even() -> None:
    policy = make("consistent_hash", settings())
    chosen = {policy.choose(replicas(5, 5, 5, 5), Hints(b"s")).id for _ in range(20)}
    assert len(chosen) == 1


def test_prefix_sends_a_conversation_where_its_beginning_went() -> None:
    policy = make("prefix", settings())
    candidates = replicas(0, 0, 0, 0)
    systems = [f"system prompt number {number}. ".encode() * 30 for number in range(4)]
    homes = [policy.choose(candidates, Hints(b"", system + b"first")) for system in systems]
    assert len({home.id for home in homes}) == 4, "different prompts are spread"
    for turn in range(5):
        for system, home in zip(systems, homes, strict=True):
            assert policy.choose(candidates, Hints(b"", system + b"first" + b" and more" * 20 * turn)) is home


def test_prefix_leaves_a_replica_that_has_too_much_to_do() -> None:
    policy = make("prefix", settings())
    candidates = replicas(0, 0)
    prompt = b"a long prompt " * 50
    home = policy.choose(candidates, Hints(b"", prompt))
    home.load = 8
    assert policy.choose(candidates, Hints(b"", prompt)) is not home


def test_prefix_memory_is_bounded_and_keeps_what_is_used() -> None:
    policy = Prefix(64 * 320)
    candidates = replicas(0, 0)
    hot = b"hot " * 100
    home = policy.choose(candidates, Hints(b"", hot))
    for number in range(500):
        policy.choose(candidates, Hints(b"", f"prompt {number} ".encode() * 40))
        policy.choose(candidates, Hints(b"", hot))
        assert len(policy) <= 64
    assert policy.choose(candidates, Hints(b"", hot)) is home


@given(st.binary(max_size=3000), st.binary(max_size=3000))
def test_prefix_keys_agree_as_far_as_prompts_do(one: bytes, other: bytes) -> None:
    for first, second in zip(prefixes(one), prefixes(other), strict=False):
        assert (first == second) == one.startswith(other[:128]) or first != second
    assert prefixes(one + other)[: len(prefixes(one))] == prefixes(one)
