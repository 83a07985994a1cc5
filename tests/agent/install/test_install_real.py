"""Installing with the real uv, from wheels that the tests make; nothing here needs a network."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw_agent.install.environments import Environment, Environments
from llmgw_agent.install.errors import InstallFailedError, InstallRefusedError
from llmgw_agent.install.installer import Installer
from llmgw_agent.install.node_settings import NodeSettings
from llmgw_agent.install.progress import Phase, Step
from llmgw_agent.install.settings import EngineInstall
from llmgw_base.clock import SystemClock
from llmgw_testing.wait import eventually, wait_until
from llmgw_testing.wheels import fake_vllm, make_wheel

WITHIN = 60.0


class Site:
    """A node's folder of engines, a bundle of wheels, and what was heard."""

    def __init__(self, root: Path) -> None:
        self.root, self.wheels = root, root / "wheels"
        self.wheels.mkdir(parents=True, exist_ok=True)
        self.environments = Environments(root / "engines")
        self.steps: list[Step] = []
        self.alarms: list[tuple[str, str | None]] = []

    def installer(self, version: str = "1.0", **settings: Any) -> Installer:
        data = {"version": version, "find_links": [str(self.wheels)], "offline": True, "disk": "1MiB", **settings}
        install = {"vllm": EngineInstall.model_validate(data)}
        return Installer(self.environments, NodeSettings(install), SystemClock(), lambda *alarm: self.alarms.append(alarm))

    async def provide(self, installer: Installer, version: str | None = None) -> Environment:
        environment = await installer.provide("vllm", version, self.steps.append)
        assert environment is not None
        return environment

    def get(self, version: str | None = None, configured: str = "1.0", **settings: Any) -> Environment:
        """One life of an agent that wants the engine."""
        return run(lambda: self.provide(self.installer(configured, **settings), version))

    @property
    def folder(self) -> Path:
        return self.environments.folder("vllm")

    def unfinished(self) -> list[str]:
        return [each.name for each in self.folder.iterdir() if each.name.startswith((".building", ".trash"))]

    def runs_of(self, word: str, version: str = "1.0") -> int:
        """How often uv was run with that command."""
        lines = (self.folder / f"{version}.log").read_text().splitlines()
        return sum(line.startswith("$") and f" {word} " in line for line in lines)


def run(body: Callable[[], Awaitable[Environment]]) -> Environment:
    async def whole() -> Environment:
        return await body()

    return asyncio.run(whole())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_resolved_once_installed_tested_and_made_current(site: Site) -> None:
    make_wheel(site.wheels, "helper", "2.0", {"helper.py": ""})
    fake_vllm(site.wheels, "1.0", requires=("helper",))
    installed = site.get()
    assert installed.note.found_version == "1.0"
    assert subprocess.run([installed.python, "-c", "import vllm, helper"], check=False).returncode == 0
    assert site.environments.current("vllm") == installed
    assert site.unfinished() == []
    (lock,) = (site.folder / "locks").iterdir()
    assert lock.read_text().count("--hash=sha256:") == 2
    phases = list(dict.fromkeys(step.phase for step in site.steps))
    assert phases == [Phase.RESOLVING, Phase.INSTALLING, Phase.TESTING, Phase.SWITCHING]
    fractions = [step.fraction for step in site.steps]
    assert fractions == sorted(fractions)

    # Nothing is needed for what is there: not even the wheels.
    for wheel in site.wheels.iterdir():
        wheel.unlink()
    assert site.get() == installed
    assert site.runs_of("compile") == site.runs_of("venv") == 1


def test_versions_stand_side_by_side_and_a_return_is_quick(site: Site) -> None:
    fake_vllm(site.wheels, "1.0")
    fake_vllm(site.wheels, "2.0")
    first, second = site.get(), site.get(configured="2.0")
    assert {first.note.version, second.note.version} == {"1.0", "2.0"}
    assert site.environments.current("vllm") == second
    assert site.get(version="1.0", configured="2.0") == first
    assert site.environments.current("vllm") == second, "a version that one model wishes is not everybody's"
    assert site.get() == first
    assert site.environments.current("vllm") == first
    assert site.runs_of("venv") == site.runs_of("venv", "2.0") == 1


def test_a_changed_wheel_is_refused_by_name(site: Site) -> None:
    fake_vllm(site.wheels, "1.0")
    lock = site.root / "lock.txt"
    lock.write_text(f"vllm==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(InstallRefusedError, match=r"engine vllm 1.0 cannot be installed: the file of vllm\S* has another hash"):
        site.get(lock=str(lock))
    assert site.environments.all("vllm") == []
    assert site.unfinished() == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("vllm==1.0\n", "has no hash for 'vllm==1.0'"),
        ("# nothing\n", "names no package"),
        (f"vllm==9.9 --hash=sha256:{'0' * 64}\n", "vllm==9.9 is not where packages are looked for"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_bad_lock_is_refused_with_cause_and_remedy(site: Site, content: str | None, says: str) -> None:
    fake_vllm(site.wheels, "1.0")
    lock = site.root / "lock.txt"
    if content is not None:
        lock.write_text(content)
    with pytest.raises(InstallRefusedError) as caught:
        site.get(lock=str(lock))
    assert says in str(caught.value)


def test_a_bundle_that_lacks_a_wheel_says_which(site: Site) -> None:
    fake_vllm(site.wheels, "1.0", requires=("helper>=3",))
    with pytest.raises(InstallRefusedError, match=r"helper\S* is not where packages are looked for"):
        site.get()


def test_what_fails_the_smoke_test_is_not_used_and_the_old_one_goes_on(site: Site) -> None:
    fake_vllm(site.wheels, "1.0")
    fake_vllm(site.wheels, "2.0", code="raise ImportError('libcuda.so.1 is missing')")
    old = site.get()
    assert site.get(configured="2.0") == old
    ((subject, text),) = site.alarms[1:]
    assert subject == "engine vllm"
    assert text is not None
    assert "`import vllm` fails in it (exit status 1): ImportError: libcuda.so.1 is missing" in text
    assert "vllm 1.0 is used meanwhile" in text
    assert site.environments.current("vllm") == old
    assert [each.note.version for each in site.environments.all("vllm")] == ["1.0"]
    with pytest.raises(InstallRefusedError, match=r"libcuda\.so\.1"):
        site.get(version="2.0", configured="2.0")


def test_with_an_old_one_a_failed_installation_is_not_repeated_at_each_start(site: Site) -> None:
    fake_vllm(site.wheels, "1.0")
    old = site.get()

    async def body() -> Environment:
        installer = site.installer("2.0")
        for _ in range(3):
            assert await site.provide(installer) == old
        fake_vllm(site.wheels, "2.0")
        return await site.provide(site.installer("2.0"))

    assert run(body).note.version == "2.0"
    assert site.runs_of("compile", "2.0") == 2


def test_another_version_than_promised_is_refused(site: Site) -> None:
    fake_vllm(site.wheels, "1.0")
    with pytest.raises(InstallRefusedError, match=r"engine vllm 3\.0 is wanted, but what was built is version 1\.0"):
        site.get(configured="3.0", requirements=["vllm==1.0"])


def test_too_little_disk_is_told_before_anything_is_fetched(site: Site) -> None:
    fake_vllm(site.wheels, "1.0")
    with pytest.raises(InstallFailedError, match=rf"needs about {1000 << 40} bytes of disk, .* free; free space there"):
        site.get(disk="1000TiB")
    assert site.runs_of("venv") == 0


def test_many_who_want_the_same_get_it_once_and_all_see_how_far_it_is(site: Site) -> None:
    fake_vllm(site.wheels, "1.0")
    second: list[Step] = []

    async def body() -> Environment:
        installer, other_agent = site.installer(), site.installer()
        found = await asyncio.gather(
            site.provide(installer), installer.provide("vllm", None, second.append), site.provide(other_agent)
        )
        assert len(set(found)) == 1
        return await site.provide(installer)

    run(body)
    assert second
    assert site.runs_of("venv") == 1


def test_one_who_gives_up_does_not_stop_it_and_the_end_of_the_agent_does(site: Site) -> None:
    hold = site.root / "hold"
    hold.touch()
    fake_vllm(site.wheels, "1.0", code=_wait_while(hold))

    async def body() -> Environment:
        installer = site.installer()
        waiting = asyncio.create_task(site.provide(installer))
        await eventually(_reached(hold).exists, within=WITHIN, what="the smoke test")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert site.unfinished()
        await installer.close()
        assert site.unfinished() == []
        assert site.environments.all("vllm") == []
        hold.unlink()
        return await site.provide(site.installer())

    assert run(body).note.version == "1.0"


def test_an_agent_that_is_killed_in_the_middle_leaves_nothing_that_hinders(site: Site) -> None:
    hold = site.root / "hold"
    hold.touch()
    fake_vllm(site.wheels, "1.0", code=_wait_while(hold))
    child = subprocess.Popen([sys.executable, "-c", _CHILD, str(site.root)])
    wait_until(_reached(hold).exists, within=WITHIN, what="the smoke test")
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert len(site.unfinished()) == 1

    async def body() -> Environment:
        # What the dead agent started still works on the same folder: it is waited for.
        task = asyncio.create_task(site.provide(site.installer()))
        await eventually(lambda: any(each.phase is Phase.WAITING for each in site.steps), within=WITHIN, what="the lock")
        hold.unlink()
        return await task

    assert run(body).note.version == "1.0"
    assert site.unfinished() == []


def test_old_environments_go_unless_something_runs_in_them(site: Site) -> None:
    for version in ("1.0", "2.0", "3.0", "4.0"):
        fake_vllm(site.wheels, version)
    one, two = site.get(), site.get(configured="2.0")
    three = site.get(configured="3.0")
    for each in (one, two, three):
        os.utime(each.path / ".llmgw-used", (1, 1))
    environment = {**os.environ, "VIRTUAL_ENV": str(one.path)}
    engine = subprocess.Popen([one.python, "-c", "input()"], stdin=subprocess.PIPE, env=environment)
    try:
        four = site.get(configured="4.0", keep=0)
        assert {each.note.version for each in site.environments.all("vllm")} == {"1.0", "3.0", "4.0"}, "3.0 was current"
    finally:
        engine.communicate()

    async def body() -> Environment:
        await site.installer("4.0", keep=0).clean()
        return four

    run(body)
    assert [each.note.version for each in site.environments.all("vllm")] == ["4.0"]
    assert site.unfinished() == []


def test_damaged_files_are_mended_by_building_again(site: Site) -> None:
    fake_vllm(site.wheels, "1.0", code="x = 1\n")
    found = site.get()
    module = next(found.path.glob("lib/python*/site-packages/vllm/__init__.py"))
    # In place: a link into the cache of uv then leads to the same wrong bytes.
    with module.open("w") as file:
        file.write("x = 2\n")

    async def body() -> Environment:
        installer = site.installer()
        assert (await site.provide(installer)) == found
        assert module.read_text() == "x = 2\n"
        return await installer.install("vllm", None, site.steps.append, again=True)

    again = run(body)
    assert again.path == found.path
    assert module.read_text() == "x = 1\n"
    assert again.note.installed_at > found.note.installed_at
    assert site.unfinished() == []


def _wait_while(path: Path) -> str:
    reached = f"open({str(_reached(path))!r}, 'w').close()"
    return f"import os, time\n{reached}\nwhile os.path.exists({str(path)!r}):\n    time.sleep(0.02)\n"


def _reached(hold: Path) -> Path:
    return hold.with_suffix(".reached")


_CHILD = """
import asyncio, sys
from pathlib import Path
from llmgw_agent.install.environments import Environments
from llmgw_agent.install.installer import Installer
from llmgw_agent.install.node_settings import NodeSettings
from llmgw_agent.install.settings import EngineInstall
from llmgw_base.clock import SystemClock

root = Path(sys.argv[1])
settings = EngineInstall(version="1.0", find_links=[str(root / "wheels")], offline=True, disk="1MiB")
installer = Installer(Environments(root / "engines"), NodeSettings({"vllm": settings}), SystemClock())
asyncio.run(installer.provide("vllm", None, lambda step: None))
"""
