"""Where llmgwctl connects to, and with which token."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmgw_ctl import running
from llmgw_ctl.connection import DEFAULT_SERVER, resolve
from llmgw_ctl.errors import BadInputError
from llmgw_ctl.running import RunningStack, default_state_dir, find_running, registry, start_time

UP_URL = "http://127.0.0.1:17080"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def settings(home: dict[str, str], text: str) -> Path:
    path = Path(home["HOME"]) / ".config/llmgw/ctl.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def token_file(home: dict[str, str], token: str) -> Path:
    path = Path(home["HOME"]) / f"{token}.token"
    path.write_text(f"# the admin token\n{token}\n")
    return path


def announce(home: dict[str, str], token: Path, pid: int | None = None, state_dir: Path | None = None) -> None:
    pid = pid or os.getpid()
    stack = RunningStack(UP_URL, token, "http://r", state_dir or default_state_dir(home), pid, start_time(pid) or 1)
    file = registry(home) / f"{pid}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(stack.to_json())


def test_the_nearest_word_wins(home: dict[str, str]) -> None:
    assert resolve(None, None, home).servers == (DEFAULT_SERVER,)
    announce(home, token_file(home, "up"))
    found = resolve(None, None, home)
    assert (found.servers, found.token) == ((UP_URL,), "up")
    settings(home, f"server: http://settings:1\ntoken_file: {token_file(home, 'settings')}\n")
    found = resolve(None, None, home)
    assert (found.servers, found.token) == (("http://settings:1",), "settings")
    home["LLMGW_SERVER"] = "http://env:1/"
    found = resolve(None, None, home)
    assert (found.servers, found.token) == (("http://env:1",), None)
    home["LLMGW_TOKEN"] = "plain"
    assert resolve(None, None, home).token == "plain"
    home["LLMGW_TOKEN_FILE"] = str(token_file(home, "env"))
    assert resolve(None, None, home).token == "env"
    found = resolve("http://a:1,http://b:2", token_file(home, "option"), home)
    assert (found.servers, found.token, found.server_origin) == (("http://a:1", "http://b:2"), "option", "--server")


def test_the_token_of_one_place_is_not_sent_to_another(home: dict[str, str]) -> None:
    settings(home, f"server: http://settings:1\ntoken_file: {token_file(home, 'settings')}\n")
    announce(home, token_file(home, "up"))
    assert resolve("http://elsewhere:1", None, home).token is None


def test_a_stack_that_is_gone_does_not_count(home: dict[str, str]) -> None:
    announce(home, token_file(home, "up"))
    file = registry(home) / f"{os.getpid()}.json"
    file.write_text(file.read_text().replace(f'"started": {start_time(os.getpid())}', '"started": 1'))
    assert find_running(home) is None
    file.write_text("{not json")
    assert find_running(home) is None


def test_the_stack_in_the_default_folder_comes_first(home: dict[str, str]) -> None:
    token = token_file(home, "up")
    announce(home, token)
    announce(home, token, pid=os.getppid(), state_dir=Path("/elsewhere"))
    found = find_running(home)
    assert found is not None
    assert found.state_dir == default_state_dir(home)


@pytest.mark.parametrize(
    "server",
    [
        "localhost:7080",
        "ftp://x",
        "http://",
        "http://h/admin",
        " , ",
        "http://h:99999",
        "http://[::1",
        "http://a b",
        "http://u@h",
        "http://h?x",
    ],
)
def test_what_is_no_url_is_named_with_its_origin(home: dict[str, str], server: str) -> None:
    with pytest.raises(BadInputError) as caught:
        resolve(server, None, home)
    assert "--server" in caught.value.message
    assert "http://127.0.0.1:7080" in caught.value.remedy


def test_settings_that_cannot_be_used_name_file_and_key(home: dict[str, str]) -> None:
    path = settings(home, "srever: http://h:1\n")
    with pytest.raises(BadInputError) as caught:
        resolve(None, None, home)
    assert str(path) in caught.value.message
    assert "did you mean server?" in caught.value.message


def test_relative_files_in_settings_are_beside_them(home: dict[str, str]) -> None:
    path = settings(home, "server: http://h:1\ntoken_file: t\n")
    (path.parent / "t").write_text("beside\n")
    assert resolve(None, None, home).token == "beside"


def test_a_token_file_that_is_missing_or_empty_is_named(home: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="nowhere cannot be read: No such file"):
        resolve(None, tmp_path / "nowhere", home)
    (tmp_path / "empty").write_text("\n# nothing\n")
    with pytest.raises(BadInputError, match="empty holds no token"):
        resolve(None, tmp_path / "empty", home)
    (tmp_path / "page").write_text("<html>not a token</html>")
    with pytest.raises(BadInputError, match="page holds no token"):
        resolve(None, tmp_path / "page", home)


def test_an_announcement_clears_away_those_of_stacks_that_are_gone(home: dict[str, str]) -> None:
    announce(home, token_file(home, "up"))
    (registry(home) / "99.json").write_text("{}")
    me = RunningStack(UP_URL, Path("/t"), "http://r", Path("/s"), os.getppid(), start_time(os.getppid()) or 1)
    running.announce(me, home)
    assert sorted(int(file.stem) for file in registry(home).iterdir()) == sorted([os.getpid(), os.getppid()])
