"""These tests install real engines, which takes minutes and gigabytes: they run when they are named, see ``make test-vllm``.

An engine takes most of a minute to start. So all tests share one stack, and those that only ask share one engine.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw_testing.real_engines import MODEL, Served, Site
from llmgw_testing.stack import Stack
from llmgw_testing.vllm_real import START, tiny_model, tiny_spec
from llmgw_testing.wait import wait_until

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    named = [(config.invocation_params.dir / each.partition("::")[0]).resolve() for each in config.args]
    return None if any(each == HERE or HERE in each.parents for each in named) else True


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("engines")
    with pytest.MonkeyPatch.context() as patch:
        # What one node has downloaded is linked, not fetched again, by the next.
        patch.setenv("UV_CACHE_DIR", os.environ.get("UV_CACHE_DIR") or str(root / "uv"))
        with Stack(root / "stack", unix=True) as stack:
            stack.coordinator()
            found = Site(stack, stack.router(), tiny_model(root / "tiny"))
            found.add_node("n1", "single")
            yield found
    # Gigabytes in a hundred thousand files, which pytest would keep for a while.
    subprocess.run(["rm", "-rf", root], check=True)


@pytest.fixture(scope="session")
def served(site: Site) -> Served:
    began, seen = time.monotonic(), list[str]()
    spec = tiny_spec(MODEL, site.source)
    spec["profiles"][0]["node_selector"] = {"kind": "single"}
    # The agent then has KV-cache events published; routers that do not know the policy take their default.
    spec["routing"] = {"policy": "kv"}
    site.stack.apply(spec, "--no-wait")

    def look() -> bool:
        for each in site.stack.replicas(MODEL):
            assert each["state"] not in ("Rejected", "Failed"), each["reason"]
            if each["state"] == "Installing" and each["reason"] and each["reason"] not in seen:
                seen.append(each["reason"])
        return any(each["state"] == "Ready" for each in site.stack.replicas(MODEL))

    wait_until(look, within=2 * START, what="vLLM to be installed and ready", every=0.1)
    return Served(site, seen, time.monotonic() - began)
