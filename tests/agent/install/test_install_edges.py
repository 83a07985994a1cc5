"""Installing at the edges: names that are no engines, disks that fail, addresses with secrets, builds with libraries."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from llmgw_agent.install import compile as from_source
from llmgw_agent.install import index
from llmgw_agent.install.archives import Archives
from llmgw_agent.install.environments import Environments, Note, write_note
from llmgw_agent.install.errors import InstallFailedError, InstallRefusedError, UnknownEngineError
from llmgw_agent.install.installer import Installer
from llmgw_agent.install.node_settings import NodeSettings
from llmgw_agent.install.plan import want
from llmgw_agent.install.progress import Step
from llmgw_agent.install.recipes import RECIPES
from llmgw_agent.install.settings import EngineInstall
from llmgw_agent.weights import WeightsSettings, WeightStore
from llmgw_base.clock import SystemClock
from llmgw_testing.file_server import FileServer
from llmgw_testing.llama_release import make_archive


def installer(root: Path, engine: str = "llamacpp", **settings: Any) -> Installer:
    own = {engine: EngineInstall.model_validate({"disk": "1MiB", **settings})} if settings else {}
    return Installer(Environments(root / "engines"), NodeSettings(own), SystemClock())


@pytest.mark.parametrize("engine", ["../victim", "whisper", ""])
def test_what_is_no_engine_is_not_removed_from(tmp_path: Path, engine: str) -> None:
    (tmp_path / "engines").mkdir()
    precious = tmp_path / "victim" / ".trash-precious"
    precious.mkdir(parents=True)
    with pytest.raises(UnknownEngineError, match="agents install vllm, sglang, llamacpp"):
        asyncio.run(installer(tmp_path).remove(engine, None))
    assert precious.exists()


def test_a_disk_that_fails_while_packages_are_resolved_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    with pytest.raises(InstallFailedError, match=r"engine vllm 1\.0: .*No space left on device"):
        asyncio.run(installer(tmp_path, "vllm", version="1.0").install("vllm", None, lambda _: None))


def test_a_signature_in_an_archives_address_is_told_to_nobody(tmp_path: Path) -> None:
    sha256 = make_archive(tmp_path / "served" / "a.tgz", {"README": "no program in here"})
    heard: list[Step] = []

    async def body() -> str:
        async with FileServer() as server:
            server.put("/a.tgz", (tmp_path / "served" / "a.tgz").read_bytes())
            address = f"{server.url('/a.tgz')}?signature=SECRET"
            settings = WeightsSettings(allow_networks=["127.0.0.0/8"], reserve_bytes=0)
            async with WeightStore(tmp_path / "weights", clock=SystemClock(), settings=settings) as store:
                own = EngineInstall.model_validate({"version": "b1", "archive": address, "sha256": sha256, "disk": "1MiB"})
                both = (Environments(tmp_path / "engines"), NodeSettings({"llamacpp": own}))
                agent = Installer(*both, SystemClock(), archives=Archives(store))
                with pytest.raises(InstallRefusedError, match="there is no llama-server in") as caught:
                    await agent.install("llamacpp", None, heard.append)
                return str(caught.value)

    said = asyncio.run(body())
    assert "SECRET" not in said
    assert heard
    assert not [step for step in heard if "SECRET" in step.text]


def test_an_indexs_password_stays_out_of_what_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def page(_wanted: object, url: str) -> tuple[str, str, str]:
        return '<a href="llama_cpp_python-1.0.tar.gz">', "text/html", url

    monkeypatch.setattr(index, "_ask", page)
    settings = EngineInstall.model_validate({"version": "1.0", "build": {}, "index": "https://user:SECRET@example.org/simple"})
    with pytest.raises(InstallRefusedError, match=r"example\.org does not tell the sha256") as caught:
        asyncio.run(index.find_source_package(want(RECIPES["llamacpp"], settings, None, tmp_path)))
    assert "SECRET" not in str(caught.value)


def test_libraries_that_two_programs_share_are_taken_once(tmp_path: Path) -> None:
    built = tmp_path / "work" / "bin"
    built.mkdir(parents=True)
    for name in ("llama-server", "ggml-rpc-server", "libllama.so.0"):
        (built / name).write_text(name)
    (built / "libllama.so").symlink_to("libllama.so.0")
    from_source._collect(tmp_path / "work", tmp_path / "bin", ["llama-server", "ggml-rpc-server"])
    assert sorted(each.name for each in (tmp_path / "bin").iterdir()) == sorted(each.name for each in built.iterdir())
    assert (tmp_path / "bin" / "libllama.so").readlink() == Path("libllama.so.0")


def test_what_cannot_be_removed_is_not_said_to_be_removed(tmp_path: Path) -> None:
    agent = installer(tmp_path)
    path = tmp_path / "engines" / "llamacpp" / "b1-0"
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "llama-server").write_text("")
    write_note(path, Note("llamacpp", "b1", "1", "for CPU", 0.0, "bin/llama-server"))
    trash = path.with_name(".trash-b1-0")
    trash.touch()  # no folder can be moved there
    with pytest.raises(InstallFailedError, match=r"engine llamacpp b1: .*b1-0 cannot be removed"):
        asyncio.run(agent.remove("llamacpp", "b1"))
    assert asyncio.run(agent.remove("llamacpp", None)) == ([], 0)
    trash.unlink()
    # What an interrupted removal left.
    (trash / "bin").mkdir(parents=True)
    assert asyncio.run(agent.remove("llamacpp", "b1"))[0] == ["b1"]
    assert not list(path.parent.glob("*b1-0"))
