"""Where things lie under the store's root. ``blobs`` and ``manifests`` together are also what a mirror publishes.

blobs/<kind>/<hex>            verified contents, read-only
manifests/<key>.json          what a source consists of
content/<key>/<path>          the same files under their own names (hard links)
content/<key>.facts.json      what their headers say
facts/<key>.json              the same for weights that are used in place
records/<key>.json            local: when fetched, when used, times of change
pins/<key>/<owner>            who runs it
partial/<name>, .json         unfinished downloads
wanted/<key>.json             manifests of downloads under way
locks/<name>.lock
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from urllib.parse import quote

from llmgw_proto.digests import Digest


class Layout:
    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self) -> None:
        """Raises OSError."""
        for each in (
            "blobs/sha256",
            "blobs/git",
            "manifests",
            "content",
            "facts",
            "records",
            "pins",
            "partial",
            "wanted",
            "locks",
        ):
            (self.root / each).mkdir(parents=True, exist_ok=True)

    def blob(self, digest: Digest) -> Path:
        return self.root / "blobs" / digest.kind / digest.hex

    def manifest(self, key: str) -> Path:
        return self.root / "manifests" / f"{key}.json"

    def content(self, key: str) -> Path:
        return self.root / "content" / key

    def content_facts(self, key: str) -> Path:
        return self.root / "content" / f"{key}.facts.json"

    def place_facts(self, key: str) -> Path:
        return self.root / "facts" / f"{key}.json"

    def record(self, key: str) -> Path:
        return self.root / "records" / f"{key}.json"

    def pins(self, key: str) -> Path:
        return self.root / "pins" / key

    def pin(self, key: str, owner: str) -> Path:
        return self.pins(key) / quote(owner, safe="")

    def part(self, name: str) -> Path:
        return self.root / "partial" / name

    def part_state(self, name: str) -> Path:
        return self.root / "partial" / f"{name}.json"

    def wanted(self, key: str) -> Path:
        return self.root / "wanted" / f"{key}.json"

    def lock(self, name: str) -> Path:
        return self.root / "locks" / f"{name}.lock"


def write_atomically(path: Path, data: str) -> None:
    """A reader sees the old content or the new one, also after a power cut. Raises OSError. Blocking."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
