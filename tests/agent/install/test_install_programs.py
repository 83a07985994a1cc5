"""llama.cpp installed from archives and from source; the archives are small, cmake and the compiler are real."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from llmgw_agent.install.archives import Archives
from llmgw_agent.install.environments import Environment, Environments
from llmgw_agent.install.errors import InstallFailedError, InstallRefusedError
from llmgw_agent.install.installer import Installer
from llmgw_agent.install.node_settings import NodeSettings
from llmgw_agent.install.progress import Phase, Step
from llmgw_agent.install.settings import EngineInstall
from llmgw_agent.weights import WeightsSettings, WeightStore
from llmgw_base.clock import SystemClock
from llmgw_testing.file_server import FileServer
from llmgw_testing.llama_release import CPP, make_archive, server, source
from llmgw_testing.wheels import make_wheel


class Site:
    """A node's folder of engines, and what was heard."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environments = Environments(root / "engines")
        self.steps: list[Step] = []
        self.alarms: list[str] = []

    async def provide(self, archives: Archives | None = None, wished: str | None = None, **settings: Any) -> Environment:
        install = {"llamacpp": EngineInstall.model_validate({"disk": "1MiB", **settings})}

        def alarm(_: str, text: str | None) -> None:
            if text is not None:
                self.alarms.append(text)

        installer = Installer(self.environments, NodeSettings(install), SystemClock(), alarm, archives)
        found = await installer.provide("llamacpp", wished, self.steps.append)
        assert found is not None
        return found

    def get(self, wished: str | None = None, **settings: Any) -> Environment:
        """One life of an agent that wants the engine."""
        return asyncio.run(self.provide(wished=wished, **settings))

    def release(self, version: str, **files: str) -> dict[str, Any]:
        """Settings for an archive made on the spot."""
        path = self.root / "bundles" / f"llama-{version}.tar.gz"
        contents = files or {f"llama-{version}/llama-server": server(version.removeprefix("b"))}
        return {"version": version, "archive": str(path), "sha256": make_archive(path, contents)}

    def phases(self) -> list[Phase]:
        return list(dict.fromkeys(step.phase for step in self.steps))

    def left(self) -> list[str]:
        """What is there besides whole environments, locks and logs."""
        folder = self.environments.folder("llamacpp")
        names = [each.name for each in folder.iterdir()] if folder.exists() else []
        return [each for each in names if each.startswith((".building", ".trash"))]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_release_is_unpacked_tried_and_made_current(site: Site) -> None:
    found = site.get(**site.release("b4321"))
    located = found.located
    assert located.argv == (str(found.path / "release" / "llama-b4321" / "llama-server"),)
    assert (located.version, located.home) == ("b4321", found.path)
    assert "CUDA0" in located.detail
    assert site.phases() == [Phase.FETCHING, Phase.UNPACKING, Phase.TESTING, Phase.SWITCHING]
    assert site.left() == []
    # The archive may go.
    (site.root / "bundles" / "llama-b4321.tar.gz").unlink()
    settings: dict[str, Any] = {
        "version": "b4321",
        "archive": str(site.root / "bundles" / "llama-b4321.tar.gz"),
        "sha256": "0" * 64,
    }
    with pytest.raises(InstallRefusedError, match="no such file on this node"):
        asyncio.run(Site(site.root / "elsewhere").provide(**settings))


def test_versions_stand_side_by_side_and_the_archive_is_found_by_its_digest_in_a_folder(site: Site) -> None:
    old, new = site.release("b1"), site.release("b2")
    (site.root / "bundles" / "README").write_text("not an archive")
    folder = {"archive": str(site.root / "bundles")}
    first, second = site.get(**old | folder), site.get(**new | folder)
    assert (first.note.found_version, second.note.found_version) == ("1", "2")
    assert {each.note.version for each in site.environments.all("llamacpp")} == {"b1", "b2"}
    assert site.environments.current("llamacpp") == second
    with pytest.raises(InstallRefusedError, match=r"no file in \S+ has the sha256 0000"):
        site.get(wished="b3", **{**new, **folder, "version": "b3", "sha256": "0" * 64})


def test_an_override_knows_how_another_version_is_had(site: Site) -> None:
    old, new = site.release("b1"), site.release("b2")
    both = {**old, "version_overrides": [{**new, "labels": {"ring": "canary"}}]}
    assert site.get(wished="b2", **both).note.found_version == "2"
    with pytest.raises(InstallRefusedError, match="this node's archive is for b1; name one for b3"):
        site.get(wished="b3", **both)


@pytest.mark.parametrize(
    ("files", "links", "says"),
    [
        ({"../../escaped": "x"}, {}, "leads out of the folder"),
        ({"llama-server": "x"}, {"lib": "/etc"}, "leads out of the folder"),
        ({"llama-server": "x"}, {"here": "there", "there": "../.."}, "leads out of the folder"),
        ({"llama-server": "x", "huge": "0" * (80 << 20)}, {}, "bomb"),
    ],
    ids=["path", "absolute link", "link", "bomb"],
)
def test_an_unsafe_archive_is_refused_before_anything_is_written(
    site: Site, files: dict[str, str], links: dict[str, str], says: str
) -> None:
    path = site.root / "bundles" / "bad.tar.gz"
    sha256 = make_archive(path, files, links)
    with pytest.raises(InstallRefusedError) as caught:
        site.get(version="b1", archive=str(path), sha256=sha256)
    assert says in str(caught.value)
    assert site.environments.all("llamacpp") == []
    assert site.left() == []
    assert not (site.root.parent / "escaped").exists()
    assert not list(site.root.rglob("escaped"))


def test_another_content_than_promised_is_refused(site: Site) -> None:
    settings = site.release("b1") | {"sha256": "0" * 64}
    with pytest.raises(InstallRefusedError, match="not what was promised"):
        site.get(**settings)
    assert site.left() == []


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"readme": "hello"}, "there is no llama-server in"),
        ({"llama-server": server("77")}, "the archive holds version 77"),
        (
            {"llama-server": "#!/bin/sh\necho 'error while loading shared libraries: libcudart.so.12' >&2\nexit 127\n"},
            "libcudart",
        ),
        ({"llama-server": "#!/bin/sh\nkill -ILL $$\n"}, "built for another CPU than this node's (illegal instruction)"),
        ({"llama-server": "#!/bin/sh\n[ $1 = --version ] || { echo 'no driver' >&2; exit 1; }\n"}, "--list-devices` fails"),
    ],
    ids=["nothing in it", "version", "library", "cpu", "devices"],
)
def test_what_does_not_run_here_is_not_used_and_the_old_one_goes_on(site: Site, files: dict[str, str], says: str) -> None:
    old = site.get(**site.release("b1"))
    bad = site.release("b2", **files)
    assert site.get(**bad) == old
    assert says in site.alarms[-1]
    assert "llamacpp b1 is used meanwhile" in site.alarms[-1]
    assert site.environments.current("llamacpp") == old
    with pytest.raises(InstallRefusedError):
        site.get(wished="b2", **bad)
    assert site.left() == []


def test_an_archive_with_an_address_is_fetched_once_with_progress(site: Site) -> None:
    release = site.release("b5")
    content = Path(release["archive"]).read_bytes()

    async def body() -> None:
        async with FileServer() as files, _weights(site.root) as weights:
            files.put("/llama-b5.tar.gz", content)
            release["archive"] = files.url("/llama-b5.tar.gz")
            found = await site.provide(Archives(weights), **release)
            assert found.note.found_version == "5"
            assert len(files.gets("/llama-b5.tar.gz")) == 1
            assert any(step.phase is Phase.FETCHING and "MB" in step.text for step in site.steps)
            with pytest.raises(InstallRefusedError, match="sha256"):
                await Site(site.root / "other").provide(Archives(weights), **release | {"sha256": "1" * 64})
            missing = {"archive": files.url("/none.tar.gz"), "version": "b6", "sha256": "2" * 64}
            with pytest.raises(InstallRefusedError, match="cannot be fetched"):
                await Site(site.root / "other").provide(Archives(weights), **missing)

    asyncio.run(body())


def test_built_from_the_source_package_of_a_bundle_with_only_what_is_needed(site: Site) -> None:
    bundle = site.root / "bundle"
    make_archive(bundle / "llama_cpp_python-0.3.36.tar.gz", source())
    settings: dict[str, Any] = {"version": "0.3.36", "build": {"jobs": 2}, "find_links": [str(bundle)], "offline": True}
    found = site.get(**settings)
    assert sorted(each.name for each in (found.path / "bin").iterdir()) == ["ggml-rpc-server", "llama-server"]
    assert (found.located.version, found.note.found_version) == ("0.3.36", "0.5.0-dev")
    assert subprocess.run([found.program, "--version"], check=True, capture_output=True).stdout.startswith(b"version")
    assert not (found.path / "source").exists()
    assert not (found.path / "work").exists()
    assert site.phases()[-3:] == [Phase.BUILDING, Phase.TESTING, Phase.SWITCHING]
    fractions = [step.fraction for step in site.steps]
    assert fractions == sorted(fractions)
    assert any(step.phase is Phase.BUILDING and "server.cpp" in step.text for step in site.steps)
    (bundle / "llama_cpp_python-0.3.36.tar.gz").unlink()
    assert site.get(**settings) == found, "nothing is needed for what is there"
    # What the folder of the bundle then holds is another content than the one that was resolved.
    make_archive(bundle / "llama_cpp_python-0.3.36.tar.gz", source(cpp="int main() { return 1; }"))
    assert site.get(**settings) == found
    with pytest.raises(InstallRefusedError, match=r"llama_cpp_python-9\.tar\.gz is in none of find_links"):
        site.get(wished="9", **settings)


def test_a_build_that_fails_says_why_and_leaves_the_old_one(site: Site) -> None:
    old = site.get(**site.release("b1"))
    path = site.root / "bundles" / "source.tar.gz"
    broken = make_archive(path, source(cpp=CPP.replace("return 0;", "return nonsense;")))
    assert site.get(version="b2", archive=str(path), sha256=broken, build={}) == old
    assert "cannot be built" in site.alarms[-1]
    assert "nonsense" in site.alarms[-1]
    assert site.left() == []
    options = {"options": ["-DGGML_NATIVE=ON"]}
    good = make_archive(path, source())
    assert site.get(version="b3", archive=str(path), sha256=good, build=options) == old
    assert "this is built as it never should be" in site.alarms[-1]


def test_too_little_disk_is_told_before_anything_is_unpacked(site: Site) -> None:
    with pytest.raises(InstallFailedError, match="bytes of disk"):
        site.get(**site.release("b1") | {"disk": "1000TiB"})


def test_a_package_is_installed_where_nothing_else_is_said(site: Site) -> None:
    wheels = site.root / "wheels"
    make_wheel(wheels, "xllamacpp", "2.0", {"xllamacpp/__init__.py": "def get_device_info():\n    return [{'name': 'CPU'}]\n"})
    found = site.get(version="2.0", find_links=[str(wheels)], offline=True)
    located = found.located
    assert located.argv[:2] == (str(found.path / "bin" / "python"), "-P")
    assert located.argv[2].endswith("xllamacpp_server.py")
    assert located.detail.endswith("for CPU")
    assert located.home == found.path


def _weights(root: Path) -> WeightStore:
    settings = WeightsSettings.model_validate({"allow_networks": ["127.0.0.0/8"], "reserve_bytes": 0})
    return WeightStore(root / "weights", clock=SystemClock(), settings=settings)
