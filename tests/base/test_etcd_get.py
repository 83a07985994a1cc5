"""The script that fetches etcd, as far as it goes without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.get_etcd import WANTED, CannotGetError, complete, find_mirror, main, parse_mirror, source_line


def test_the_mirror_comes_from_the_sources_of_apt() -> None:
    listing = "\n".join(
        [
            "https://packages.example/apt|stable-tool|main",
            "http://security.example/debian-security|bookworm-security|main",
            "http://mirror.example/debian/|bookworm|contrib",
            "http://mirror.example/debian/|bookworm|main",
            "http://other.example/debian/|trixie|main",
        ]
    )
    assert parse_mirror(listing) == "http://mirror.example/debian/"
    assert parse_mirror("http://archive.example/ubuntu/|noble|main") is None
    assert parse_mirror("") is None


def test_the_source_line_names_the_keyring_if_there_is_one(tmp_path: Path) -> None:
    assert source_line("http://m/", "trixie", tmp_path) == "deb http://m/ trixie main\n"
    (tmp_path / "debian-archive-keyring.gpg").touch()
    assert source_line("http://m/", "trixie", tmp_path) == (
        f"deb [signed-by={tmp_path}/debian-archive-keyring.gpg] http://m/ trixie main\n"
    )


def test_nothing_is_done_when_everything_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no apt, no dpkg
    for wanted in WANTED:
        binaries = tmp_path / f"etcd-{wanted.series}/usr/bin"
        binaries.mkdir(parents=True)
        for name in ("etcd", "etcdctl"):
            assert not complete(wanted, tmp_path)
            (binaries / name).touch(mode=0o755)
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr() == ("", "")


def test_elsewhere_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotGetError, match="apt-get, dpkg-deb, dpkg not found"):
        find_mirror()
    assert main([str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert "takes etcd from Debian's packages" in message
    assert f"Put etcd and etcdctl of 3.4 ({tmp_path}/etcd-3.4/usr/bin) and 3.5" in message
    assert main([]) == 2
