"""The token file and the throttle."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from llmgw_base.config import ConfigError
from llmgw_coordinator.api.throttle import Throttle
from llmgw_coordinator.api.tokens import TokenCheck, load_or_create


def test_the_first_start_makes_a_token_that_only_the_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "state" / "admin.token"
    token = load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(token) >= 43
    assert load_or_create(path) == token
    assert [each.name for each in path.parent.iterdir()] == ["admin.token"]
    assert load_or_create(tmp_path / "other") != token


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o601])
def test_a_token_that_others_can_read_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text("x" * 40)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:o}.*chmod 600"):
        load_or_create(path)


@pytest.mark.parametrize(
    "content", [b"", b"short", b"\xff" * 40, b"has a blank in the middle", b"x" * 20 + b"\x00" + b"y" * 20]
)
def test_a_file_without_a_usable_token_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="delete it to get a new one"):
        load_or_create(path)


def test_a_path_where_no_file_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="set token_file"):
        load_or_create(tmp_path / "file" / "token")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="set token_file"):
        load_or_create(tmp_path / "folder")


def test_of_two_programs_that_start_at_once_both_have_the_same_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    real = os.link

    def beaten(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", real)
        path.write_text("the-token-of-the-other-program")
        path.chmod(0o600)
        real(source, target)

    monkeypatch.setattr(os, "link", beaten)
    assert load_or_create(path) == "the-token-of-the-other-program"
    assert [each.name for each in tmp_path.iterdir()] == ["token"]


def test_only_the_very_token_passes() -> None:
    check = TokenCheck("the right token!")
    assert check("the right token!")
    assert not any(check(each) for each in ("", "the right token", "the right token!!", "The right token!", "\udcff"))


def test_failures_are_counted_by_address_and_forgiven_with_time() -> None:
    throttle = Throttle(per_minute=6)
    for _ in range(6):
        assert throttle.wait("a", 0.0) == 0
        throttle.failed("a", 0.0)
    assert throttle.wait("a", 0.0) == pytest.approx(10)
    assert throttle.wait("b", 0.0) == 0
    assert throttle.wait("a", 9.0) == pytest.approx(1)
    assert throttle.wait("a", 10.0) == 0
    throttle.failed("a", 10.0)
    assert throttle.wait("a", 10.0) == pytest.approx(10)
    assert throttle.wait("a", 1_000.0) == 0


def test_many_addresses_do_not_fill_the_memory() -> None:
    throttle = Throttle(per_minute=1, remembered=3)
    for each in range(100):
        throttle.failed(f"a{each}", 0.0)
    assert throttle.wait("a0", 0.0) == 0
    assert throttle.wait("a99", 0.0) > 0
