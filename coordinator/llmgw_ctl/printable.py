"""Text from elsewhere, made safe for a terminal."""

from __future__ import annotations


def printable(text: str, *, keep: str = "\n") -> str:
    """Without control characters: what engines and users wrote into reasons and names must not steer the terminal."""
    return "".join(char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text)
