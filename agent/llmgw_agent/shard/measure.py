"""What is measured of one attempt while it runs, from looks that are taken anyway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw_agent.engines.pulse import Pulse
from llmgw_agent.shard.ledger import Ledger

#: Two looks that are closer to each other say too little of a rate.
LEAST_SECONDS = 1.0


@dataclass(slots=True)
class Throughput:
    """Generated tokens per second between two looks at an engine's counters. Pure.

    What engines count at each step (vLLM, SGLang) is divided by the time between the looks. One that counts a request's tokens
    only at its end (llama.cpp) also says for how long it decoded them, summed over requests, and that is what they are divided
    by. Either way the engine was at least as quick as that: idle time between two looks, or requests side by side, make a rate
    smaller than what it really did, never larger.
    """

    _last: tuple[float, Pulse] | None = None

    def look(self, now: float, pulse: Pulse) -> float | None:
        """The rate since the last look, None if that cannot be told."""
        last = self._last
        if last is None or pulse.tokens is None or last[1].tokens is None or pulse.tokens < last[1].tokens:
            self._last = now, pulse
            return None
        seconds = now - last[0]
        if seconds < LEAST_SECONDS:
            return None
        self._last = now, pulse
        if pulse.decode_seconds is not None and pulse.tokens == last[1].tokens and pulse.requests > 0:
            return None  # what runs is counted when it has ended
        decoded = (pulse.decode_seconds or 0.0) - (last[1].decode_seconds or 0.0)
        return (pulse.tokens - last[1].tokens) / (decoded if decoded > 0 else seconds)


@dataclass(slots=True)
class Measures:
    """Of one attempt: the latest figures here, the highest in the shard's record."""

    ledger: Ledger
    pulse: Pulse | None = None
    """What the engine said last; None if it says nothing."""
    rate: float | None = None
    """Tokens per second between the last two looks."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """Bytes by GPU, at the last sample."""
    _throughput: Throughput = field(default_factory=Throughput)

    def hear(self, now: float, pulse: Pulse | None) -> None:
        self.pulse = pulse
        if pulse is None:
            self.rate = None
            return
        self.rate = self._throughput.look(now, pulse)
        if self.rate is not None:
            self.ledger.tokens_per_second(self.rate)

    def gpu_memory(self, gpus: Mapping[str, int]) -> None:
        self.gpus = gpus
        self.ledger.gpu_memory(gpus)
