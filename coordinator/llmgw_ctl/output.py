"""The form of a command's answer."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """``-o``: a table for people, JSON or YAML for programs."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
