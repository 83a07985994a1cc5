"""A command line as it may be shown to people and written to logs."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "***"
#: Flags whose value is a secret: --hf-token, --api-key, --password...
_SECRET = re.compile(r"-.*(?:^|[-_.])(?:token|key|passwd|password|secret|credentials?)$", re.IGNORECASE)


def hidden(argv: Sequence[str], *secrets: str) -> tuple[str, ...]:
    """``secrets`` and the values of flags that are named like one are replaced.

    >>> hidden(["serve", "--hf-token", "hf_x", "--api-key=k", "--max-tokens", "7"])
    ('serve', '--hf-token', '***', '--api-key=***', '--max-tokens', '7')
    """
    shown: list[str] = []
    secret = False
    for word in argv:
        if secret and not word.startswith("--"):
            shown.append(HIDDEN)
            secret = False
            continue
        flag, equals, _ = word.partition("=")
        named = _SECRET.fullmatch(flag) is not None
        secret = named and not equals
        for each in secrets:
            word = word.replace(each, HIDDEN) if each else word
        shown.append(f"{flag}={HIDDEN}" if named and equals else word)
    return tuple(shown)
