"""KvEventError: a batch or message that is no KV-cache event. Reaction: skip it, say so, go on."""

from __future__ import annotations


class KvEventError(ValueError):
    pass
