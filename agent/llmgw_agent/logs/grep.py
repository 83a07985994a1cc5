"""Lines in which a regular expression matches, without risk to the agent.

The expression comes from outside. Python's own engine can take for ever over a hostile one, so this is the one inside pydantic
(Rust's ``regex``): it runs in linear time, has neither look-around nor back-references, and refuses expressions that would
become large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

from pydantic import StringConstraints, TypeAdapter
from pydantic_core import SchemaError

LONGEST_PATTERN = 500
#: Of a longer line only so much is looked at.
LONGEST_LOOK = 16 << 10
#: Given whole lines, returns those that are wanted.
Keep: TypeAlias = Callable[[bytes], bytes]


class PatternError(ValueError):
    """Not a regular expression that can be used. Reaction: tell whoever asked."""


def matching(pattern: str) -> Keep:
    """
    Raises:
        PatternError: the message says what is wrong with it.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise PatternError(f"the regular expression has {len(pattern)} characters, more than {LONGEST_PATTERN}; shorten it")
    try:
        matches = TypeAdapter(Annotated[str, StringConstraints(pattern=pattern)]).validator.isinstance_python
    except SchemaError as error:
        cause = " ".join(str(error).partition("SchemaError:")[2].split())
        raise PatternError(f"{pattern!r} is no regular expression that can be used: {cause}") from None

    def keep(lines: bytes) -> bytes:
        return b"".join(
            line
            for line in lines.splitlines(keepends=True)
            if matches(line[:LONGEST_LOOK].rstrip(b"\r\n").decode(errors="replace"))
        )

    return keep
