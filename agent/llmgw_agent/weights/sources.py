"""Sources, as the store reads them: what cannot be read is one of the store's errors."""

from __future__ import annotations

from llmgw_proto import sources
from llmgw_proto.sources import (
    FileSource,
    HubSource,
    Source,
    SourceError,
    UrlFile,
    UrlSource,
    redacted,
    source_key,
    split_names,
)

from .errors import SourceInvalidError

__all__ = [
    "FileSource",
    "HubSource",
    "Source",
    "UrlFile",
    "UrlSource",
    "parse_source",
    "redacted",
    "shown",
    "source_key",
    "split_names",
]


def parse_source(text: str) -> Source:
    """Raises SourceInvalidError, which says what is wrong and which forms there are."""
    try:
        return sources.parse_source(text)
    except SourceError as error:
        raise SourceInvalidError(str(error)) from None


def shown(canonical: str) -> str:
    """A source as it may stand in messages: signed links carry keys."""
    return redacted(canonical) if canonical.startswith(("http:", "https:")) else canonical
