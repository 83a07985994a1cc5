"""Opens archives (engine bundles) safely: all is judged before anything is written, and what appears is whole or not there.

Refused: another digest than promised, paths that leave the folder, links that lead out of it, paths through links, devices and
other special files, sparse files, names that appear twice, more files or bytes than allowed, and decompression bombs.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import posixpath
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

from llmgw_proto.digests import Digest, DigestError

from .errors import ArchiveError
from .hashing import stream_digest
from .manifest import safe_relative

_BLOCK: Final = 1 << 20
_TAIL: Final = 1024
_SMALL: Final = 64 << 20  # up to here any ratio will do
_LARGEST_HEADER: Final = 1 << 20  # one read that is not of a file's data
_BROKEN: Final = (tarfile.TarError, zipfile.BadZipFile, EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, UnicodeError)


@dataclass(frozen=True)
class Limits:
    """``ratio``: unpacked bytes per packed byte, judged beyond the first 64 MiB."""

    files: int = 200_000
    bytes: int = 64 << 30
    ratio: int = 200


@dataclass(frozen=True)
class _Entry:
    path: str
    kind: str  # file, folder, link
    size: int
    mode: int
    link: str = ""


def unpack(archive: Path, dest: Path, sha256: str, *, limits: Limits | None = None) -> list[str]:
    """Unpacks a tar (plain, gz, bz2, xz) or zip into the new folder ``dest``; returns the paths of its files. Blocking.

    Raises:
        ArchiveError: the archive is unsafe, broken, or not the promised one; ``dest`` does not exist then.
        FileExistsError: ``dest`` exists.
        OSError: the disk.
    """
    if dest.exists() or dest.is_symlink():
        raise FileExistsError(f"{dest} exists; remove it first")
    try:
        promised = Digest.parse(f"sha256:{sha256}")
    except DigestError as error:
        raise ArchiveError(f"{archive.name}: {error}") from None
    # One descriptor for judging and for unpacking: a file that is replaced in between makes no difference.
    with archive.open("rb") as file:
        found = stream_digest(file, "sha256")
        if found != promised:
            raise ArchiveError(f"{archive.name} is not what was promised: {found} instead of {promised}; fetch it again")
        try:
            reader = _reader(file, archive.name, limits or Limits())
            entries = [entry for entry, _ in reader()]
            _judge(entries, archive.name, limits or Limits(), os.fstat(file.fileno()).st_size)
            return _write(reader, dest)
        except _BROKEN as error:
            raise ArchiveError(f"{archive.name} is broken: {error}; fetch it again") from error


_Reader = Callable[[], Iterator[tuple[_Entry, IO[bytes] | None]]]


def _reader(file: IO[bytes], name: str, limits: Limits) -> _Reader:
    packed = os.fstat(file.fileno()).st_size
    file.seek(0)
    start = file.read(6)
    if start.startswith(b"PK\x03\x04"):
        return lambda: _zip(file, name)
    most = min(limits.bytes, max(packed * limits.ratio, _SMALL)) + 1024 * limits.files

    def entries() -> Iterator[tuple[_Entry, IO[bytes] | None]]:
        file.seek(0)
        yield from _tar(_Bounded(_decompressed(file, start), most, name), name)

    return entries


def _decompressed(file: IO[bytes], start: bytes) -> IO[bytes]:
    """Closing what this returns leaves ``file`` open, so that it need not be closed."""
    if start.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    if start.startswith(b"BZh"):
        return cast(IO[bytes], bz2.BZ2File(file))
    if start.startswith(b"\xfd7zXZ\0"):
        return cast(IO[bytes], lzma.LZMAFile(file))
    return file


class _Bounded:
    """A decompressed stream, read once from front to back, that ends in an error where a bomb would go on.

    It has what tarfile needs of a file. tarfile steps back by one byte after each member; rewinding a decompressor for that
    would read everything again each time, so the last bytes are kept.
    """

    def __init__(self, stream: IO[bytes], most: int, name: str) -> None:
        self._stream = stream
        self._most = most
        self._name = name
        self._end = 0  # how far the stream was read
        self._at = 0  # where the reader is; behind the end only by a little
        self._tail = b""

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LARGEST_HEADER:
            raise ArchiveError(f"{self._name} is refused: one of its headers would have {size} bytes")
        behind = self._end - self._at
        old = self._tail[len(self._tail) - behind :][:size] if behind else b""
        new = self._stream.read(size - len(old)) if size > len(old) else b""
        self._end += len(new)
        self._at += len(old) + len(new)
        self._tail = (self._tail + new)[-_TAIL:]
        if self._end > self._most:
            raise ArchiveError(f"{self._name} is refused: unpacked it has more than {self._most} bytes")
        return old + new

    def seek(self, position: int, whence: int = 0) -> int:
        if whence != 0 or position < self._end - len(self._tail):
            raise ArchiveError(f"{self._name} is refused: its parts are not in order")
        self._at = min(position, self._end)
        while self._at < position and self.read(min(_BLOCK, position - self._at)):
            pass
        return self._at

    def tell(self) -> int:
        return self._at


def _tar(stream: _Bounded, name: str) -> Iterator[tuple[_Entry, IO[bytes] | None]]:
    with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:", errorlevel=2) as tar:
        for member in tar:
            path = member.name.rstrip("/")
            if member.issparse():
                raise ArchiveError(f"{name} is refused: {path!r} is a sparse file")
            if member.isreg():
                yield _Entry(path, "file", member.size, member.mode), tar.extractfile(member)
            elif member.isdir():
                yield _Entry(path, "folder", 0, member.mode), None
            elif member.issym():
                yield _Entry(path, "link", 0, 0, member.linkname), None
            elif member.islnk():
                # Relative to the link, as symbolic links are; the data is there once.
                inside = posixpath.relpath(posixpath.normpath(member.linkname), posixpath.dirname(path) or ".")
                yield _Entry(path, "link", 0, 0, inside if safe_relative(member.linkname) else member.linkname), None
            else:
                raise ArchiveError(f"{name} is refused: {path!r} is neither a file nor a folder nor a link")


def _zip(file: IO[bytes], name: str) -> Iterator[tuple[_Entry, IO[bytes] | None]]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            mode = info.external_attr >> 16
            path = info.filename.rstrip("/")
            if info.flag_bits & 1:
                raise ArchiveError(f"{name} is refused: {path!r} is encrypted")
            if info.is_dir():
                yield _Entry(path, "folder", 0, 0o755), None
            elif stat.S_ISLNK(mode):
                if info.file_size > 4096:
                    raise ArchiveError(f"{name} is refused: the link {path!r} is too long")
                yield _Entry(path, "link", 0, 0, archive.read(info).decode()), None
            elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                with archive.open(info) as data:
                    yield _Entry(path, "file", info.file_size, mode), data
            else:
                raise ArchiveError(f"{name} is refused: {path!r} is neither a file nor a folder nor a link")


def _judge(entries: list[_Entry], name: str, limits: Limits, packed: int) -> None:
    """Raises ArchiveError when anything in the archive should not be unpacked."""
    total = sum(each.size for each in entries)
    if len(entries) > limits.files:
        raise ArchiveError(f"{name} is refused: it has {len(entries)} files, and {limits.files} are allowed")
    if total > limits.bytes or (total > _SMALL and total > packed * limits.ratio):
        raise ArchiveError(f"{name} is refused: {packed} bytes would become {total}, which is a bomb or beyond the limit")
    kinds: dict[str, str] = {}
    for each in entries:
        path = posixpath.normpath(each.path)
        if not safe_relative(each.path) or len(each.path) > 4096 or ":" in each.path[:3]:
            raise ArchiveError(f"{name} is refused: {each.path[:200]!r} leads out of the folder")
        if kinds.get(path) not in (None, "folder") or (path in kinds and each.kind != "folder"):
            raise ArchiveError(f"{name} is refused: {each.path[:200]!r} appears twice")
        kinds[path] = each.kind
    for each in entries:
        path = posixpath.normpath(each.path)
        parents = path.split("/")[:-1]
        for count in range(1, len(parents) + 1):
            if kinds.get("/".join(parents[:count]), "folder") != "folder":
                raise ArchiveError(f"{name} is refused: {each.path[:200]!r} goes through a link or a file")
        if each.kind == "link":
            target = posixpath.normpath(posixpath.join("/".join(parents), each.link))
            if each.link.startswith("/") or "\0" in each.link or target == ".." or target.startswith("../"):
                raise ArchiveError(f"{name} is refused: the link {each.path[:200]!r} leads out of the folder")
            _judge_chain(each, kinds, name)


def _judge_chain(entry: _Entry, kinds: dict[str, str], name: str) -> None:
    """A link's target may not go through another link: two harmless ones can make a harmful one."""
    at = posixpath.normpath(entry.path).split("/")[:-1]
    for part in entry.link.split("/")[:-1]:
        at = at[:-1] if part == ".." else at if part in ("", ".") else [*at, part]
        if kinds.get("/".join(at)) == "link":
            raise ArchiveError(f"{name} is refused: the link {entry.path[:200]!r} goes through another link")


def _write(reader: _Reader, dest: Path) -> list[str]:
    dest.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=dest.parent, prefix=f".{dest.name}-"))
    written = []
    try:
        for entry, data in reader():
            path = fresh / entry.path
            if entry.kind == "folder":
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if entry.kind == "link":
                path.symlink_to(entry.link)
            else:
                assert data is not None
                with path.open("xb") as file:
                    while block := data.read(_BLOCK):
                        file.write(block)
                path.chmod(0o755 if entry.mode & 0o111 else 0o644)
            written.append(posixpath.normpath(entry.path))
        fresh.chmod(0o755)
        fresh.rename(dest)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return written
