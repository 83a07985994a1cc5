"""The engine's own parser is asked before the engine is started; here the engine is a few lines that parse like a real one."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmgw_agent.engines.base import Located
from llmgw_agent.engines.rehearse import REMEMBERED, Rehearsals
from llmgw_agent.engines.sglang import Sglang
from llmgw_agent.engines.vllm import Vllm
from llmgw_agent.errors import RejectedError
from llmgw_agent.install.recipes import RECIPES
from llmgw_agent.install.shelf import Shelf
from llmgw_proto.records import AssignmentRecord
from llmgw_testing.wait import eventually, wait_until

VLLM, SGLANG = Vllm(Shelf()), Sglang(Shelf())
SERVER = """
import argparse, os, sys
open(os.environ["RUNS"], "a").write("x")
other = argparse.ArgumentParser()
other.add_argument("--library")
other.parse_args([])
parser = argparse.ArgumentParser(prog="server")
for flag in ("--model", "--model-path", "--host", "--api-key", "--device", "--served-model-name", "--master-addr"):
    parser.add_argument(flag)
for flag in ("--port", "--max-len", "--tensor-parallel-size", "--pipeline-parallel-size", "--nnodes", "--node-rank"):
    parser.add_argument(flag, type=int)
parser.add_argument("--master-port", type=int)
parser.add_argument("--kind", choices=["a", "b"])
for flag in ("--enable-prompt-tokens-details", "--disable-uvicorn-access-log", "--enable-metrics", "--enable-cache-report"):
    parser.add_argument(flag, action="store_true")
parser.parse_args()
raise SystemExit("the server must not start")
"""


class Engines:
    """An environment with fake engines in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs = root / "runs"
        python = root / "environment" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)
        self.python = str(python)
        self.write(SERVER)

    def write(self, server: str) -> None:
        modules = self.root / "modules"
        for name in ("vllm/entrypoints/openai/api_server.py", "sglang/launch_server.py"):
            file = modules / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(server)

    def rehearse(self, driver: Vllm | Sglang, *args: str, limit: float = 60, **fields: Any) -> None:
        asyncio.run(self.asked(driver, *args, limit=limit, **fields))

    async def asked(self, driver: Vllm | Sglang, *args: str, limit: float = 60, **fields: Any) -> None:
        env = {"PYTHONPATH": str(self.root / "modules"), "RUNS": str(self.runs), "HOME": str(self.root)}
        data: dict[str, Any] = {"shard": "m-1.0", "replica": "m-1", "model": "org/m", "epoch": 1, "engine": driver.name}
        wish = AssignmentRecord(**(data | {"args": list(args), "env": env} | fields))
        located = Located("1.0", "", (self.python, *RECIPES[driver.name].arguments))
        await Rehearsals(limit).rehearse(driver, wish, located)

    @property
    def started(self) -> int:
        return self.runs.stat().st_size if self.runs.exists() else 0


@pytest.fixture
def engines(tmp_path: Path) -> Engines:
    return Engines(tmp_path)


@pytest.mark.parametrize("driver", [VLLM, SGLANG])
def test_arguments_that_the_parser_takes_are_remembered(driver: Vllm | Sglang, engines: Engines) -> None:
    engines.rehearse(driver, "--max-len", "7")
    engines.rehearse(driver, "--max-len", "7")
    assert engines.started == 1
    engines.rehearse(driver, "--max-len", "8")
    assert engines.started == 2
    assert len(list((Path(engines.python).parents[1] / REMEMBERED).iterdir())) == 2


@pytest.mark.parametrize("driver", [VLLM, SGLANG])
def test_what_the_parser_refuses_is_told_in_its_own_words(driver: Vllm | Sglang, engines: Engines) -> None:
    with pytest.raises(RejectedError) as caught:
        engines.rehearse(driver, "--max-len", "many")
    said = str(caught.value)
    assert said.startswith(
        f"args: {driver.title} 1.0 does not take them (argument --max-len: invalid int value: 'many'); correct"
    )
    with pytest.raises(RejectedError, match="unrecognized arguments: --bogus"):
        engines.rehearse(driver, "--bogus")
    with pytest.raises(RejectedError, match=r"--kind: invalid choice: 'c' \(choose from"):
        engines.rehearse(driver, "--kind", "c")
    engines.write("print('library: error: none of yours', flush=True)\n" + SERVER)
    with pytest.raises(RejectedError, match=r"does not take them \(unrecognized arguments: --bogus\)"):
        engines.rehearse(driver, "--bogus")
    # Nothing is kept of a refusal: another build of the engine may stand here tomorrow.
    assert not (Path(engines.python).parents[1] / REMEMBERED).exists()


def test_the_arguments_for_several_nodes_are_asked_about_too(engines: Engines) -> None:
    engines.rehearse(VLLM, "--max-len", "7", peers=["n1", "n2"], gpus=["a", "b"])
    engines.write(SERVER.replace('"--nnodes", ', ""))
    with pytest.raises(RejectedError, match="unrecognized arguments: --nnodes 2"):
        engines.rehearse(VLLM, "--max-len", "8", peers=["n1", "n2"])


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("raise SystemExit(3)", "it wrote nothing"),
        ("print('x: error: of a library'); import os; os.kill(os.getpid(), 9)", "of a library"),
    ],
)
def test_an_engine_that_cannot_be_asked_is_started_anyway(
    server: str, says: str, engines: Engines, caplog: pytest.LogCaptureFixture
) -> None:
    engines.write(server)
    with caplog.at_level(logging.WARNING):
        engines.rehearse(VLLM)
    (record,) = caplog.records
    assert "cannot be asked" in record.message
    assert says in record.__dict__["fields"]["cause"]


def test_an_engine_that_is_not_there_is_left_to_the_start(engines: Engines, caplog: pytest.LogCaptureFixture) -> None:
    Path(engines.python).unlink()
    engines.rehearse(VLLM)
    assert "No such file" in caplog.records[0].__dict__["fields"]["cause"]


def test_one_that_hangs_is_not_waited_for_for_ever(engines: Engines, caplog: pytest.LogCaptureFixture) -> None:
    engines.write("import time; time.sleep(600)")
    engines.rehearse(VLLM, limit=1)
    assert "no answer within 1 s" in caplog.records[0].__dict__["fields"]["cause"]


def test_an_end_of_the_agent_ends_it_with_all_that_it_started(engines: Engines) -> None:
    pids = engines.root / "pids"
    engines.write(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r} + '~', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.rename({str(pids)!r} + '~', {str(pids)!r})\n"
        "time.sleep(600)\n"
    )

    async def cancelled() -> None:
        task = asyncio.create_task(engines.asked(VLLM))
        await eventually(pids.exists, within=60, what="the engine to have begun")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    for pid in pids.read_text().split():
        wait_until(partial(gone, int(pid)), within=30, what="the process to end")


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_rehearsal_is_no_engine_to_whoever_looks_for_engines(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMGW_SHARD", "of-the-agent")
    seen = engines.root / "seen"
    engines.write(f"import os; open({str(seen)!r}, 'w').write(repr(sorted(os.environ)))")
    engines.rehearse(VLLM)
    assert "LLMGW_SHARD" in os.environ
    assert "'VIRTUAL_ENV'" in seen.read_text()
    assert "LLMGW_SHARD" not in seen.read_text()
