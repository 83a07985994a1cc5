"""Which stored weights somebody means. Decisions only."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .errors import SourceInvalidError, SourceNotFoundError
from .sources import FileSource, parse_source
from .views import Stored

_DIGEST = re.compile(r"[0-9a-f]{8,64}")


def named(stored: Sequence[Stored], name: str) -> list[Stored]:
    """By key, by source as it was asked for, or by the beginning of the content's digest, which may be that of several sources.

    Raises:
        SourceNotFoundError: nothing of that name is stored.
    """
    try:
        parsed = parse_source(name)
        canonical = parsed.canonical
    except SourceInvalidError:
        parsed, canonical = None, name
    if isinstance(parsed, FileSource):
        raise SourceNotFoundError(f"{name} is used where it lies; the agent keeps only what it fetched")
    found = [each for each in stored if name == each.key or canonical == each.source]
    if not found and _DIGEST.fullmatch(name):
        found = [each for each in stored if each.content.startswith(name)]
        if len({each.content for each in found}) > 1:
            raise SourceNotFoundError(f"several weights begin with {name!r}; write more of the digest")
    if not found:
        raise SourceNotFoundError(f"no weights {name!r} are stored here; `llmgwctl weights list` shows what is")
    return found
