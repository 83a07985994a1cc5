"""Keeps conditions across restarts of the agent, not across reboots of the node: a reboot resets every GPU."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


class HealthStore:
    """One small JSON file; ``boot_id`` is the node's current boot."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id

    def load(self) -> list[dict[str, Any]]:
        """What the last agent of this boot saved; empty when there is nothing that can be read."""
        try:
            saved = json.loads(self._path.read_text(encoding="utf-8"))
            if saved["boot_id"] != self._boot_id:
                return []
            return [each for each in saved["conditions"] if isinstance(each, dict)]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("cannot read saved health", extra={"fields": {"file": str(self._path), "cause": str(error)}})
            return []

    def save(self, conditions: Sequence[dict[str, Any]]) -> None:
        """Replaces the file at once; a disk that is full or read-only costs the memory, not the agent."""
        text = json.dumps({"boot_id": self._boot_id, "conditions": list(conditions)})
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            logger.warning("cannot save health", extra={"fields": {"file": str(self._path), "cause": str(error)}})
