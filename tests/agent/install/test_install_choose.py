"""Which version a node gets, and how, by its own configuration and by the fleet's settings."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from llmgw_agent.config import EnginesSection
from llmgw_agent.install.choose import FleetChoice, Kind, as_install, fits, fleet_choice, own_choice
from llmgw_agent.install.compile import choose_targets, explain, jobs_for, targets
from llmgw_agent.install.errors import InstallFailedError, InstallRefusedError
from llmgw_agent.install.fleet import Fleet
from llmgw_agent.install.index import file_names, links
from llmgw_agent.install.node_settings import NodeSettings
from llmgw_agent.install.plan import want
from llmgw_agent.install.programs import devices_of
from llmgw_agent.install.progress import built
from llmgw_agent.install.recipes import RECIPES
from llmgw_agent.install.run import Done
from llmgw_agent.install.settings import EngineInstall, VersionOverride
from llmgw_base.clock import SystemClock
from llmgw_base.etcd.api import Store
from llmgw_proto import keyspace
from llmgw_proto.records.engine import INSTALLABLE, EngineOverride, EngineRelease, EngineSettings
from llmgw_testing.memstore import MemoryStore
from llmgw_testing.wait import eventually

CANARY = Kind({"ring": "canary", "rack": "r1"}, frozenset({"H100-80GB"}))
PLAIN = Kind({"rack": "r2"}, frozenset({"V100-32GB"}))
LOCK = f"vllm==2.0 --hash=sha256:{'0' * 64}\n"


def test_both_lists_of_engines_are_one() -> None:
    assert set(INSTALLABLE) == set(RECIPES)


@pytest.mark.parametrize(
    ("fields", "canary", "plain"),
    [
        ({"labels": {"ring": "canary"}}, True, False),
        ({"gpu_class": "v100-32gb"}, False, True),
        ({"gpu_class": "H100-80GB", "labels": {"rack": "r1"}}, True, False),
        ({"gpu_class": "H100-80GB", "labels": {"rack": "r2"}}, False, False),
        ({"labels": {"rack": "r1", "ring": "stable"}}, False, False),
    ],
)
def test_all_that_an_override_names_must_fit(fields: dict[str, Any], canary: bool, plain: bool) -> None:
    override = VersionOverride.model_validate({"version": "2.0", **fields})
    assert (fits(override, CANARY), fits(override, PLAIN)) == (canary, plain)


def own(**fields: Any) -> EngineInstall:
    overrides = [
        {"gpu_class": "V100-32GB", "version": "0.8"},
        {"labels": {"ring": "canary"}, "version": "2.0", "lock": "/l2"},
        {"labels": {"rack": "r1"}, "version": "3.0"},
    ]
    return EngineInstall.model_validate({"version": "1.0", "index": "https://i/", "version_overrides": overrides, **fields})


@pytest.mark.parametrize(
    ("kind", "wished", "version", "lock"),
    [
        (Kind(), None, "1.0", None),
        (CANARY, None, "2.0", Path("/l2")),
        (PLAIN, None, "0.8", None),
        # What a model wishes goes before the node's own; its lock is taken from wherever that version stands.
        (Kind(), "2.0", "2.0", Path("/l2")),
        (CANARY, "1.0", "1.0", None),
        (Kind(), "9.0", "1.0", None),
    ],
)
def test_the_first_override_that_fits_counts(kind: Kind, wished: str | None, version: str, lock: Path | None) -> None:
    found = own_choice(own(), kind, wished)
    assert (found.version, found.lock, found.index) == (version, lock, "https://i/")
    wanted = want(RECIPES["vllm"], found, wished, Path("/e")) if wished != "9.0" or lock is None else None
    assert wanted is None or wanted.version == (wished or version)


def fleet(**fields: Any) -> EngineSettings:
    data: dict[str, Any] = {
        "engine": "vllm",
        "version": "1.0",
        "releases": {"1.0": {"index": "https://i/", "requirements": ["vllm-x=={version}"]}, "2.0": {"lock_sha256": "a" * 64}},
        "overrides": [{"version": "2.0", "labels": {"ring": "canary"}}],
    }
    return EngineSettings.model_validate(data | fields)


def test_the_fleets_default_is_by_kind_of_node_and_a_wish_has_its_own_release() -> None:
    assert fleet_choice(fleet(), PLAIN, None) == FleetChoice("1.0", "1.0", fleet().releases["1.0"])
    chosen = fleet_choice(fleet(), CANARY, None)
    assert chosen is not None
    assert (chosen.version, chosen.release.lock_sha256) == ("2.0", "a" * 64)
    wished = fleet_choice(fleet(), PLAIN, "2.0")
    assert wished is not None
    assert (wished.default, wished.release.lock_sha256) == ("1.0", "a" * 64)


def test_a_version_that_only_a_model_names_comes_from_where_the_default_one_does() -> None:
    other = fleet_choice(fleet(), PLAIN, "1.5")
    assert other is not None
    assert as_install(other, None).requirements == ["vllm-x=={version}"]
    on_canary = fleet_choice(fleet(), CANARY, "1.5")
    assert on_canary is not None
    assert on_canary.release == EngineRelease(), "a lock is tied to its version"
    assert fleet_choice(fleet(version=None), PLAIN, None) is None


def test_a_release_in_the_words_of_the_configuration() -> None:
    release = EngineRelease(archive="/b", sha256="0" * 64, build=True, build_options=["-DX=1"])
    found = as_install(FleetChoice("b1", "b1", release), None)
    assert found.build is not None
    assert (found.archive, found.build.options) == ("/b", ["-DX=1"])
    locked = EngineRelease(requirements=["x"], overrides=["y"], lock_sha256="0" * 64)
    assert as_install(FleetChoice("1", "1", locked), Path("/lock")).requirements == []


@pytest.mark.parametrize(
    ("install", "says"),
    [
        ({"llamacpp": {"version": "b1", "archive": "/a"}}, "needs its sha256"),
        ({"llamacpp": {"version": "b1", "sha256": "0" * 64}}, "name the archive"),
        ({"llamacpp": {"version": "b1", "archive": "ftp://h/a", "sha256": "0" * 64}}, "neither an address nor a path"),
        ({"llamacpp": {"version": "b1", "archive": "/a", "sha256": "abc"}}, "is not a sha256"),
        ({"llamacpp": {"version": "b1", "archive": "/a", "sha256": "0" * 64, "lock": "/l"}}, "two ways"),
        ({"vllm": {"version": "1", "version_overrides": [{"version": "2"}]}}, "it fits every node"),
        ({"vllm": {"version": "1", "archive": "/a", "sha256": "0" * 64}}, "made of packages"),
        ({"sglang": {"version": "1", "build": {}}}, "made of packages"),
    ],
)
def test_what_makes_no_sense_is_refused_when_the_agent_starts(install: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        EnginesSection.model_validate({"install": install})


def following(store: Store, root: Path) -> tuple[Fleet, list[str]]:
    heard: list[str] = []
    return Fleet(store, root, lambda: heard.append("changed"), SystemClock()), heard


def test_settings_are_followed_and_a_lock_is_fetched_once_and_checked(tmp_path: Path) -> None:
    async def body() -> None:
        store = MemoryStore()
        other = MemoryStore(server=store.server)
        found, heard = following(store, tmp_path)
        settings = NodeSettings({}, found, lambda: PLAIN)
        task = asyncio.create_task(settings.follow())
        await settings.ready("vllm")
        assert (settings.default("vllm"), settings.origin("vllm"), settings.keep("vllm")) == (None, "", None)
        digest = hashlib.sha256(LOCK.encode()).hexdigest()
        record = fleet(version="2.0", overrides=[], releases={"2.0": {"lock_sha256": digest}})
        await other.put(keyspace.engine("vllm"), record.encode())
        await eventually(lambda: settings.default("vllm") == "2.0", within=30, what="the settings")
        assert (settings.origin("vllm"), settings.keep("vllm")) == ("fleet", 1)
        assert heard
        with pytest.raises(InstallRefusedError, match="its lock is gone from etcd; set it again"):
            await settings.find("vllm", None)
        await other.put(keyspace.engine_lock("vllm", "2.0"), b"another one")
        with pytest.raises(InstallRefusedError, match="its lock is another one than the settings say"):
            await settings.find("vllm", None)
        await other.put(keyspace.engine_lock("vllm", "2.0"), LOCK.encode())
        install = await settings.find("vllm", None)
        assert install is not None
        assert install.lock is not None
        assert install.lock.read_text() == LOCK
        # From then on etcd is not asked.
        await other.delete(keyspace.engine_lock("vllm", "2.0"))
        assert await settings.find("vllm", None) == install
        # What cannot be read changes nothing.
        await other.put(keyspace.engine("vllm"), b'{"engine": "vllm", "releases": 7}')
        await other.put(keyspace.engine("sglang"), EngineSettings(engine="sglang", version="5").encode())
        await eventually(lambda: settings.default("sglang") == "5", within=30, what="the other engine's settings")
        assert settings.default("vllm") == "2.0"
        await other.delete(keyspace.engine("vllm"))
        await eventually(lambda: settings.default("vllm") is None, within=30, what="the end of the settings")
        assert await settings.find("vllm", None) is None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()
        await other.close()

    asyncio.run(body())


def test_without_etcd_a_lock_that_is_not_here_is_for_later(tmp_path: Path) -> None:
    async def body() -> None:
        store = MemoryStore()
        found, _ = following(store, tmp_path)
        store.down("gone")
        with pytest.raises(InstallFailedError, match="which does not answer"):
            await found.lock("vllm", "1", "0" * 64)
        await store.close()

    asyncio.run(body())


def test_the_nodes_own_configuration_goes_before_the_fleets(tmp_path: Path) -> None:
    found, _ = following(MemoryStore(), tmp_path)
    found.settings["vllm"] = fleet()
    settings = NodeSettings({"vllm": own()}, found, lambda: PLAIN)
    assert (settings.default("vllm"), settings.origin("vllm")) == ("0.8", "node")


def test_what_depends_on_gpus_waits_for_the_first_look_at_them(tmp_path: Path) -> None:
    looks: list[str] = []

    async def look() -> None:
        looks.append("looked")

    async def body() -> None:
        by_label = EngineInstall.model_validate({"version": "1", "version_overrides": [{"labels": {"a": "b"}, "version": "2"}]})
        settings = NodeSettings({"vllm": own(), "sglang": by_label}, None, lambda: PLAIN, look)
        await settings.ready("sglang")
        await settings.ready("llamacpp")
        assert looks == []
        await settings.ready("vllm")
        assert looks == ["looked"]

    asyncio.run(body())


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("[ 42%] Building CXX object x.o", 0.42),
        ("[100%] Built target llama-server", 1.0),
        ("[17/40] Linking", 0.425),
        ("[0/0] x", None),
        ("-- Configuring done", None),
    ],
)
def test_how_far_a_build_is(line: str, part: float | None) -> None:
    assert built(line) == part


def test_targets_are_found_in_the_words_of_make_and_of_ninja() -> None:
    make = Done(
        0, ["The following are some of the valid targets:", "... all (the default)", "... llama-server", "... rpc-server"]
    )
    ninja = Done(0, ["llama-server: phony", "ggml-rpc-server: phony", "tools/x/libx.a: CXX_STATIC_LIBRARY_LINKER"])
    wanted = want(RECIPES["llamacpp"], EngineInstall.model_validate({"version": "1", "build": {}}), None, Path("/e"))
    assert choose_targets(wanted, targets(make)) == ["llama-server", "rpc-server"]
    assert choose_targets(wanted, targets(ninja)) == ["llama-server", "ggml-rpc-server"]
    with pytest.raises(InstallRefusedError, match="no target llama-server"):
        choose_targets(wanted, {"all"})


def test_compilers_are_as_many_as_memory_and_cores_allow() -> None:
    gib = 1 << 30
    assert [jobs_for(*each) for each in ((64, 16 * gib), (2, 64 * gib), (8, gib))] == [8, 2, 1]


@pytest.mark.parametrize(
    ("done", "says", "final"),
    [
        (Done(2, ["x.cpp:1: error: 'y' was not declared", "make: *** [x.o] Error 1"]), "'y' was not declared", True),
        (Done(1, ["CMake Error at CMakeLists.txt:3 (find_package):", "  Could not find nvcc"]), "Could not find nvcc", True),
        (Done(2, ["g++: fatal error: Killed signal terminated program cc1plus"]), "lower build.jobs", False),
        (Done(-9, []), "lower build.jobs", False),
        (Done(2, ["fatal error: error writing to /x.s: No space left on device"]), "the disk is full", False),
    ],
)
def test_cmakes_words_become_cause_and_remedy(done: Done, says: str, final: bool) -> None:
    text, vain = explain(done)
    assert says in text
    assert vain is final


def test_devices_are_named_shortly() -> None:
    lines = ["Available devices:", "  CUDA0: NVIDIA H200 (143000 MiB)", "  CUDA1: NVIDIA H200 (143000 MiB)", "  CPU: EPYC"]
    assert devices_of(lines) == "CUDA0, CUDA1"
    assert devices_of(["Available devices:", "  (none)"]) == "for CPU"


def test_the_index_is_read_in_both_of_its_forms() -> None:
    base = "https://h/simple/llama-cpp-python/"
    json = '{"files": [{"filename": "a-1.tar.gz", "url": "../../f/a-1.tar.gz", "hashes": {"sha256": "SHA"}}]}'
    assert links(json, "application/vnd.pypi.simple.v1+json", base) == {"a-1.tar.gz": ("https://h/f/a-1.tar.gz", "SHA")}
    page = f"<a href='https://f/x/a-2.tar.gz#sha256={'0' * 64}' data-x='1'>a-2.tar.gz</a> <a href=\"b-1.whl\">b</a>"
    assert links(page, "text/html", base) == {
        "a-2.tar.gz": ("https://f/x/a-2.tar.gz", "0" * 64),
        "b-1.whl": (f"{base}b-1.whl", None),
    }
    assert links("{", "application/json", base) == {}
    assert file_names("llama-cpp-python", "0.3.36")[0] == "llama_cpp_python-0.3.36.tar.gz"


def test_two_overrides_with_the_same_selector_are_the_same() -> None:
    one = EngineOverride(version="1", labels={"a": "1", "b": "2"})
    assert one.selector == EngineOverride(version="2", labels={"b": "2", "a": "1"}).selector
