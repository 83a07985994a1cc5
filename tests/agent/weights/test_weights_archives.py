from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.weights import ArchiveError, Limits, unpack
from llmgw_agent.weights.hashing import file_digest
from llmgw_testing.steady import steady

FILES = {"bin/llama-server": b"\x7fELF" + bytes(1000), "lib/libggml.so.1": b"so", "README": b"read me"}


def member(name: str, **changes: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in changes.items():
        setattr(info, key, value)
    return info


def tar(path: Path, members: list[tuple[tarfile.TarInfo, bytes]], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]  # typeshed wants the mode as a literal
        for info, content in members:
            if info.isreg():
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def good(path: Path, mode: str) -> Path:
    members = [(member(name, mode=0o755 if "bin" in name else 0o644), content) for name, content in FILES.items()]
    members.insert(0, (member("bin", type=tarfile.DIRTYPE, mode=0o700), b""))
    members.append((member("lib/libggml.so", type=tarfile.SYMTYPE, linkname="libggml.so.1"), b""))
    members.append((member("bin/other", type=tarfile.LNKTYPE, linkname="bin/llama-server"), b""))
    return tar(path, members, mode)


def digest(path: Path) -> str:
    return file_digest(path, "sha256").hex


def refused(archive: Path, says: str, limits: Limits | None = None) -> None:
    """The archive is refused and its surroundings are as before."""
    around = archive.parent.parent
    before = sorted(str(each) for each in around.rglob("*"))
    with pytest.raises(ArchiveError, match=says):
        unpack(archive, archive.parent / "out", digest(archive), limits=limits)
    assert sorted(str(each) for each in around.rglob("*")) == before


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_good_archive(tmp_path: Path, mode: str) -> None:
    archive = good(tmp_path / "a", mode)
    names = unpack(archive, tmp_path / "deep" / "out", digest(archive))
    out = tmp_path / "deep" / "out"
    assert sorted(names) == sorted([*FILES, "lib/libggml.so", "bin/other"])
    assert {name: (out / name).read_bytes() for name in FILES} == FILES
    assert os.access(out / "bin" / "llama-server", os.X_OK)
    assert not os.access(out / "README", os.X_OK)
    assert (out / "lib" / "libggml.so").read_bytes() == b"so"
    assert (out / "bin" / "other").read_bytes() == FILES["bin/llama-server"]
    assert [each.name for each in (tmp_path / "deep").iterdir()] == ["out"]
    with pytest.raises(FileExistsError):
        unpack(archive, out, digest(archive))


def test_a_good_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
        link = zipfile.ZipInfo("lib/libggml.so")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "libggml.so.1")
    unpack(tmp_path / "a.zip", tmp_path / "out", digest(tmp_path / "a.zip"))
    assert {name: (tmp_path / "out" / name).read_bytes() for name in FILES} == FILES
    assert (tmp_path / "out" / "lib" / "libggml.so").read_bytes() == b"so"


def test_another_digest_is_refused(tmp_path: Path) -> None:
    archive = good(tmp_path / "a.tgz", "w:gz")
    for wrong in ("0" * 64, "x", ""):
        with pytest.raises(ArchiveError, match=r"not what was promised|not a digest"):
            unpack(archive, tmp_path / "out", wrong)
    assert not (tmp_path / "out").exists()


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, linkname=target), b""


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([(member("../evil"), b"x")], "leads out"),
        ([(member("a/../../evil"), b"x")], "leads out"),
        ([(member("/etc/evil"), b"x")], "leads out"),
        ([(member("a\\..\\evil"), b"x")], "leads out"),
        ([link("l", "/etc")], "leads out"),
        ([link("l", "../x")], "leads out"),
        ([link("a/l", "../../x")], "leads out"),
        ([link("l", "a"), (member("l/evil"), b"x")], "through a link"),
        ([(member("l/evil"), b"x"), link("l", "a")], "through a link"),
        ([link("a/b", "."), link("l", "a/b/../../x")], "through another link"),
        ([(member("h", type=tarfile.LNKTYPE, linkname="../x"), b"")], "leads out"),
        ([(member("h", type=tarfile.LNKTYPE, linkname="/etc/passwd"), b"")], "leads out"),
        ([(member("d", type=tarfile.CHRTYPE), b"")], "neither a file"),
        ([(member("d", type=tarfile.FIFOTYPE), b"")], "neither a file"),
        ([(member("a"), b"1"), (member("a"), b"2")], "twice"),
        ([(member("a"), b"1"), (member("./a"), b"2")], "twice"),
        ([(member("a"), b"1"), (member("a/b"), b"2")], "through a link or a file"),
    ],
)
def test_traps_are_refused(tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]], says: str) -> None:
    (tmp_path / "in").mkdir()
    refused(tar(tmp_path / "in" / "a.tgz", [(member("fine"), b"x"), *members]), says)


def test_bombs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    zeros = bytes(1 << 20)
    path = tmp_path / "in" / "bomb.tgz"
    with gzip.open(path, "wb") as file:
        info = member("zeros", size=300 << 20)
        file.write(info.tobuf())
        for _ in range(300):
            file.write(zeros)
        file.write(bytes(1024))
    refused(path, "more than .* bytes")
    plain = tar(tmp_path / "in" / "b.tgz", [(member(str(each)), b"x" * 100) for each in range(50)])
    refused(plain, "50 files, and 10 are allowed", Limits(files=10))
    refused(plain, "beyond the limit", Limits(bytes=1000))
    zipped = tmp_path / "in" / "c.zip"
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("zeros", "w") as file2:
        for _ in range(100):
            file2.write(zeros)
    refused(zipped, "bomb")


def test_a_header_bomb_is_refused_in_little_memory(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "bomb.tgz"
    with gzip.open(path, "wb") as file:
        file.write(member("pax", type=tarfile.XHDTYPE, size=2 << 30).tobuf(tarfile.USTAR_FORMAT))
        file.write(bytes(1 << 20))
    refused(path, "one of its headers would have")


@pytest.mark.parametrize("kind", ["zip .. path", "zip link", "encrypted", "rubbish", "truncated", "zip crc"])
def test_more_traps(tmp_path: Path, kind: str) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a"
    if kind == "rubbish":
        path.write_bytes(b"rubbish" * 1000)
    elif kind == "truncated":
        content = good(path, "w:gz").read_bytes()
        path.write_bytes(content[: len(content) // 2])
    else:
        with zipfile.ZipFile(path, "w") as archive:
            info = zipfile.ZipInfo("../evil" if kind == "zip .. path" else "x")
            info.external_attr = (0o120777 if kind == "zip link" else 0o100644) << 16
            archive.writestr(info, b"../../target")
        content = path.read_bytes()
        if kind == "encrypted":
            at = content.index(b"PK\x01\x02") + 8
            path.write_bytes(content[:at] + b"\x01" + content[at + 1 :])
        if kind == "zip crc":
            path.write_bytes(content.replace(b"../../target", b"../../tarGet", 1))
    says = {
        "zip .. path": "leads out",
        "zip link": "leads out",
        "encrypted": "encrypted",
        "rubbish": "broken",
        "truncated": "broken",
        "zip crc": "broken",
    }
    refused(path, says[kind])


@steady
@given(st.binary(max_size=400), st.integers(0, 2000))
def test_damaged_archives_are_unpacked_whole_or_refused(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
) -> None:
    tmp_path = tmp_path_factory.mktemp("archive")
    makers: list[Callable[[Path], Path]] = [lambda path: good(path, "w"), lambda path: good(path, "w:gz")]
    for maker in makers:
        path = maker(tmp_path / "a")
        content = path.read_bytes()
        path.write_bytes(content[:at] + noise + content[at + len(noise) :])
        try:
            unpack(path, tmp_path / "out", digest(path))
        except ArchiveError:
            assert [each.name for each in tmp_path.iterdir()] == ["a"]
        else:
            shutil.rmtree(tmp_path / "out")
