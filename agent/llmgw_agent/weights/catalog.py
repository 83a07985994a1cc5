"""What the store's folders say, and every change to them. Blocking: called in worker threads.

Changes that others could trip over (removing contents, counting on them) are made under the store's lock, so that several
processes can share a root: who needs a content first says so in ``wanted/``, and nothing that is wanted is removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, ValidationError

from llmgw_base.clock import Clock
from llmgw_proto.digests import Digest

from .disk import FULL, free_bytes, no_space
from .errors import InUseError, MetadataError, NoSpaceError, SourceNotFoundError
from .eviction import Kept, choose, occupied
from .hashing import file_digest
from .layout import Layout, write_atomically
from .locks import held_briefly, is_free
from .manifest import Manifest, ManifestFile
from .receive import Fetched, FileWish
from .settings import WeightsSettings

_NO_LINKS: Final = frozenset({errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS})


class LocalRecord(BaseModel):
    """``changed``: nanoseconds of each content's last change when it was verified; another value means: verify again."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    source: str
    content: str
    fetched_at: float
    last_used_at: float
    changed: dict[str, int] = {}


class _Wanted(BaseModel):
    """Contents that a download under way counts on, and the names of its parts."""

    digests: list[str] = []
    parts: list[str] = []


class Catalog:
    def __init__(self, layout: Layout, settings: WeightsSettings, clock: Clock) -> None:
        self.layout = layout
        self._settings = settings
        self._clock = clock

    # -- reading

    def find(self, key: str) -> tuple[Manifest, LocalRecord] | None:
        """What was fetched under this key; None when nothing was, or its description cannot be read any more."""
        try:
            manifest = Manifest.read(self.layout.manifest(key).read_bytes(), str(self.layout.manifest(key)))
            return manifest, LocalRecord.model_validate_json(self.layout.record(key).read_bytes())
        except (FileNotFoundError, MetadataError, ValidationError):
            return None

    def stored_keys(self) -> list[str]:
        return sorted(each.stem for each in self.layout.manifest("x").parent.glob("*.json"))

    def contents(self) -> list[str]:
        """Of which nothing is missing as far as a quick look tells, what was used last first."""
        used: dict[str, float] = {}
        for key in self.stored_keys():
            if (entry := self.find(key)) is None:
                continue
            manifest, record = entry
            with contextlib.suppress(FileNotFoundError):
                if all(self.layout.blob(each.promise).stat().st_size == each.size for each in manifest.files):
                    used[record.content] = max(used.get(record.content, 0.0), record.last_used_at)
        return sorted(used, key=used.__getitem__, reverse=True)

    def missing(self, manifest: Manifest, record: LocalRecord | None) -> list[ManifestFile]:
        """The files whose verified content is not here. One that was changed since is verified again, and removed if wrong."""
        return [each for each in manifest.files if not self._whole(each, record)]

    def complete(self, key: str, manifest: Manifest, record: LocalRecord) -> bool:
        folder = self.layout.content(key)
        if self.missing(manifest, record) or record.content != manifest.content:
            return False
        return all(_is_link(self.layout.blob(each.promise), folder / each.path) for each in manifest.files)

    def _whole(self, file: ManifestFile, record: LocalRecord | None) -> bool:
        blob = self.layout.blob(file.promise)
        try:
            facts = blob.stat()
        except FileNotFoundError:
            return False
        known = record.changed.get(file.digest) if record is not None else None
        if facts.st_size == file.size and known in (None, facts.st_mtime_ns):
            return True
        if facts.st_size == file.size and file_digest(blob, file.promise.kind) == file.promise:
            return True
        blob.unlink(missing_ok=True)
        return False

    def verify(self, key: str, read: Callable[[int], None] = lambda _: None) -> list[str]:
        """Reads all files again; those with wrong bytes are removed and named. ``read`` hears of each block.

        Raises SourceNotFoundError, also when the weights are removed meanwhile.
        """
        manifest, _ = self._known(key)
        wrong = []
        for each in manifest.files:
            blob = self.layout.blob(each.promise)
            try:
                right = file_digest(blob, each.promise.kind, read) == each.promise
            except OSError:  # a file that the disk cannot read is as wrong as one with other bytes
                right = False
            if not right:
                self._known(key)
                blob.unlink(missing_ok=True)
                (self.layout.content(key) / each.path).unlink(missing_ok=True)
                wrong.append(each.path)
        return wrong

    def _known(self, key: str) -> tuple[Manifest, LocalRecord]:
        found = self.find(key)
        if found is None:
            raise SourceNotFoundError(f"no weights {key!r} are stored here; list them with llmgwctl weights list")
        return found

    def kept(self, fixed: Iterable[str] = ()) -> list[Kept]:
        """All stored weights; the ones under ``fixed`` keys, the pinned and those in use by a download are fixed."""
        fixed = set(fixed)
        found = []
        for key in self.stored_keys():
            if (entry := self.find(key)) is None:
                continue
            manifest, record = entry
            stays = key in fixed or bool(self.owners(key)) or not is_free(self.layout.lock(key))
            found.append(Kept(key, record.last_used_at, {each.digest: each.size for each in manifest.files}, stays))
        return found

    # -- pins

    def owners(self, key: str) -> list[str]:
        try:
            return sorted(unquote(each.name) for each in self.layout.pins(key).iterdir())
        except FileNotFoundError:
            return []

    def pin(self, key: str, owner: str) -> bool:
        """Whether the pin is new."""
        with self._locked():
            self.layout.pins(key).mkdir(exist_ok=True)
            new = not self.layout.pin(key, owner).exists()
            self.layout.pin(key, owner).touch()
            return new

    def release(self, key: str, owner: str) -> None:
        with self._locked():
            self.layout.pin(key, owner).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # others still pin it, or nobody ever did
                self.layout.pins(key).rmdir()

    def release_others(self, owners: set[str]) -> list[str]:
        released = []
        for folder in list(self.layout.pins("x").parent.iterdir()):
            for owner in self.owners(folder.name):
                if owner not in owners:
                    self.release(folder.name, owner)
                    released.append(owner)
        return released

    # -- fetching

    def want(self, key: str, digests: Iterable[Digest], parts: Iterable[str] = ()) -> None:
        """From now on these contents and parts are not removed, whoever else lets go of them."""
        with self._locked():
            before = self._wanted(self.layout.wanted(key))
            wanted = _Wanted(
                digests=sorted({*before.digests, *(str(each) for each in digests)}), parts=sorted({*before.parts, *parts})
            )
            if wanted != before:
                write_atomically(self.layout.wanted(key), wanted.model_dump_json())

    def adopt(self, key: str, wish: FileWish, fetched: Fetched) -> None:
        """A verified part becomes content."""
        self.want(key, [fetched.digest])
        part, blob = self.layout.part(wish.part), self.layout.blob(fetched.digest)
        part.chmod(0o444)
        part.replace(blob)
        folder = os.open(blob.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self.layout.part_state(wish.part).unlink(missing_ok=True)

    def commit(self, key: str, manifest: Manifest) -> LocalRecord:
        """All contents are here: give them their names and write down what they are."""
        before = self.find(key)
        folder = self.layout.content(key)
        if before is None or not self.complete(key, *before) or before[0].content != manifest.content:
            fresh = folder.with_name(f".new-{key}-{os.getpid()}")
            shutil.rmtree(fresh, ignore_errors=True)
            for each in manifest.files:
                _link(self.layout.blob(each.promise), fresh / each.path)
            shutil.rmtree(folder, ignore_errors=True)
            fresh.replace(folder)
        now = self._clock.wall()
        record = LocalRecord(
            source=manifest.source,
            content=manifest.content,
            fetched_at=now,
            last_used_at=now,
            changed={each.digest: self.layout.blob(each.promise).stat().st_mtime_ns for each in manifest.files},
        )
        with self._locked():
            write_atomically(self.layout.manifest(key), manifest.model_dump_json(indent=1))
            write_atomically(self.layout.record(key), record.model_dump_json())
            self.layout.wanted(key).unlink(missing_ok=True)
            if before is not None and before[0].content != manifest.content:
                self._collect(before[0])
        return record

    def touch(self, key: str, record: LocalRecord) -> None:
        used = record.model_copy(update={"last_used_at": self._clock.wall()})
        try:
            write_atomically(self.layout.record(key), used.model_dump_json())
        except OSError as error:
            if error.errno not in FULL:
                raise  # on a full disk a model that is here must still start

    def under_way(self, key: str) -> dict[str, int]:
        """Bytes of the parts that a download of this key, perhaps another process's, has so far."""
        sizes: dict[str, int] = {}
        for name in self._wanted(self.layout.wanted(key)).parts:
            with contextlib.suppress(FileNotFoundError):
                sizes[name] = self.layout.part(name).stat().st_size
        return sizes

    # -- room

    def make_room(self, key: str, what: str, needed: int) -> list[str]:
        """Removes what was not used for longest, if ``needed`` more bytes do not fit; returns its keys. Raises NoSpaceError."""
        with self._locked():
            kept = self.kept({key})
            free = free_bytes(self.layout.root, self._settings.reserve_bytes)
            over = 0 if self._settings.limit_bytes is None else occupied(kept) + needed - self._settings.limit_bytes
            if needed > free:
                self._drop_abandoned(older_than=0.0, but=key)
                free = free_bytes(self.layout.root, self._settings.reserve_bytes)
            chosen = choose(kept, to_free=max(over, needed - free))
            if chosen is None:
                raise self._too_much(what, needed, free, occupied(kept))
            for each in chosen:
                self._remove(each)
            return chosen

    def _too_much(self, what: str, needed: int, free: int, used: int) -> NoSpaceError:
        limit = self._settings.limit_bytes
        if needed <= free and limit is not None:
            return NoSpaceError(
                f"{what}: {needed} bytes are needed, but weights.limit_bytes is {limit} and {used} are taken "
                f"by what is stored and in use; raise the limit, or stop a model whose weights may then go",
                needed=needed,
                free=max(0, limit - used),
            )
        return no_space(what, needed, free, self.layout.root)

    def remove(self, key: str, idle: Collection[str] = ()) -> int:
        """Bytes freed; pins of ``idle`` owners do not count. Raises SourceNotFoundError, InUseError."""
        with self._locked():
            self._known(key)
            if owners := [each for each in self.owners(key) if each not in idle]:
                raise InUseError(f"weights {key!r} are in use by {', '.join(owners)}; stop these first")
            before = occupied(self.kept())
            self._remove(key)
            return before - occupied(self.kept())

    def _remove(self, key: str) -> None:
        found = self.find(key)
        # The description goes first: a removal that is cut short leaves contents that sweep() finds, never a half model.
        self.layout.record(key).unlink(missing_ok=True)
        self.layout.manifest(key).unlink(missing_ok=True)
        self.layout.content_facts(key).unlink(missing_ok=True)
        shutil.rmtree(self.layout.content(key), ignore_errors=True)
        if found is not None:
            self._collect(found[0])

    def _collect(self, manifest: Manifest) -> None:
        needed = self._needed()
        for each in manifest.files:
            if each.digest not in needed:
                self.layout.blob(each.promise).unlink(missing_ok=True)

    def _needed(self) -> set[str]:
        needed: set[str] = set()
        for key in self.stored_keys():
            with contextlib.suppress(MetadataError, FileNotFoundError):
                manifest = Manifest.read(self.layout.manifest(key).read_bytes(), key)
                needed.update(each.digest for each in manifest.files)
        for path in self.layout.wanted("x").parent.glob("*.json"):
            needed.update(self._wanted(path).digests)
        return needed

    @staticmethod
    def _wanted(path: Path) -> _Wanted:
        try:
            return _Wanted.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return _Wanted()

    def sweep(self) -> int:
        """Removes what crashes left behind and unfinished downloads that nobody continued; the number of things removed."""
        with self._locked():
            count = self._drop_abandoned(older_than=self._settings.stale_seconds, but="")
            needed, known = self._needed(), set(self.stored_keys())
            for kind in ("sha256", "git"):
                for blob in (self.layout.root / "blobs" / kind).iterdir():
                    if f"{kind}:{blob.name}" not in needed:
                        blob.unlink(missing_ok=True)
                        count += 1
            for folder in self.layout.content("x").parent.iterdir():
                key = folder.name.removesuffix(".facts.json")
                if key not in known and is_free(self.layout.lock(key)) and not folder.name.startswith(".new-"):
                    shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
                    count += 1
            return count

    def _drop_abandoned(self, *, older_than: float, but: str) -> int:
        """Unfinished downloads that no process works on. Under the store's lock."""
        count = 0
        limit = self._clock.wall() - older_than
        for path in self.layout.wanted("x").parent.glob("*.json"):
            if path.stem != but and path.stat().st_mtime <= limit and is_free(self.layout.lock(path.stem)):
                path.unlink()
                count += 1
        ours = set(self._wanted(self.layout.wanted(but)).parts)
        for part in self.layout.part("x").parent.iterdir():
            name = part.name.removesuffix(".json")
            if name not in ours and part.stat().st_mtime <= limit and is_free(self.layout.lock(name)):
                part.unlink(missing_ok=True)
                count += 1
        return count

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with held_briefly(self.layout.lock("store")):
            yield


def _is_link(blob: Path, path: Path) -> bool:
    try:
        return path.samefile(blob)
    except FileNotFoundError:
        return False


def _link(blob: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(blob, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        path.symlink_to(os.path.relpath(blob, path.parent))
