"""How long to wait before the next try. Pure but for the dice."""

from __future__ import annotations

import random

FIRST = 0.05


def delay(attempt: int, cap: float) -> float:
    """Seconds before try number ``attempt`` + 1: none before the first retry, then doubling up to ``cap``, each between a
    half and the whole of that, so that a thousand clients do not come back in step.
    """
    if attempt <= 0:
        return 0.0
    full = min(cap, FIRST * 2.0 ** min(attempt, 32))
    return full * random.uniform(0.5, 1.0)  # noqa: S311  spreads load, protects nothing
