"""Choosing a replica. **To add a policy, this page is all that is needed:**

1. Write a module in this folder with one class that has a ``name`` and a ``choose`` method, as :class:`Policy` describes.
   :mod:`llmgw_router.policies.round_robin` is the shortest example.
2. Add the class to :data:`REGISTRY` below. It can now be named in ``policy:`` of the router, in ``policies:`` per model, and
   in a model's ``routing.policy``.
3. Write its tests beside ``tests/router/test_router_policies.py``; the tests there that run over the whole registry already
   cover it.

A policy decides and does nothing else: no I/O, no clock, no logging. It is called on the request path, so it should take a few
microseconds. One object lives per model for as long as the router runs, so it may remember what it chose.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from llmgw_router.policies.base import Candidate, Hints, Policy
from llmgw_router.policies.consistent_hash import ConsistentHash
from llmgw_router.policies.least_loaded import LeastLoaded
from llmgw_router.policies.power_of_two import PowerOfTwo
from llmgw_router.policies.prefix import Prefix
from llmgw_router.policies.round_robin import RoundRobin
from llmgw_router.policies.session import SessionAffinity
from llmgw_router.policies.weighted import Weighted


@dataclass(frozen=True, slots=True)
class Settings:
    """What a policy may need to be made."""

    random: random.Random
    prefix_memory_bytes: int = 64 * 2**20


REGISTRY: dict[str, Callable[[Settings], Policy]] = {
    RoundRobin.name: lambda _: RoundRobin(),
    LeastLoaded.name: lambda _: LeastLoaded(),
    PowerOfTwo.name: lambda settings: PowerOfTwo(settings.random),
    Weighted.name: lambda settings: Weighted(settings.random),
    SessionAffinity.name: lambda _: SessionAffinity(),
    ConsistentHash.name: lambda _: ConsistentHash(),
    Prefix.name: lambda settings: Prefix(settings.prefix_memory_bytes),
}


def names() -> list[str]:
    return list(REGISTRY)


def make(name: str, settings: Settings) -> Policy:
    """Makes the policy.

    Raises:
        KeyError: there is none of this name.
    """
    return REGISTRY[name](settings)


__all__ = ["REGISTRY", "Candidate", "Hints", "Policy", "Settings", "make", "names"]
