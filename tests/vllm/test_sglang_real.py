"""SGLang's real parser. The engine itself runs on no machine without its kernels, so it never gets further than that here."""

from __future__ import annotations

from typing import Any

from llmgw_testing.real_engines import Site
from llmgw_testing.sglang_real import VERSION
from llmgw_testing.vllm_real import START
from llmgw_testing.wait import wait_until

MODEL = "org/sglang"


def spec(site: Site, *args: str, **profile: Any) -> dict[str, Any]:
    usual = {
        "engine": "sglang",
        "args": ["--load-format", "dummy", *args],
        "memory": "1GiB",
        "node_selector": {"kind": "single"},
    }
    profiles = [usual | profile]
    return {"name": MODEL, "source": str(site.source), "profiles": profiles, "drain_seconds": 1}


def test_the_parser_of_the_installed_sglang_is_asked_before_it_is_started(site: Site) -> None:
    site.stack.apply(spec(site, "--no-such-flag"), "--no-wait")
    said = site.rejection(MODEL)
    assert f"args: SGLang {VERSION} does not take them (unrecognized arguments: --no-such-flag)" in said
    site.stack.ctl("model", "remove", MODEL)


def test_the_command_line_that_the_driver_makes_is_taken(site: Site) -> None:
    """What ends the engine is that nothing of it can run here, not its arguments."""
    site.stack.apply(spec(site, "--context-length", "512"), "--no-wait")

    def ended() -> dict[str, Any] | None:
        states = ("Failed", "Rejected")
        return next((each for each in site.stack.replicas(MODEL) if each["state"] in states and each["reason"]), None)

    replica = wait_until(ended, within=START, what="SGLang to be started and to end", every=0.3)
    assert replica is not None
    log = site.stack.ctl("replica", "logs", replica["id"], "--tail", "400").stdout
    assert f"--model-path {site.source} --served-model-name {MODEL}" in log
    assert "does not take" not in replica["reason"]
    assert "error: " not in log.lower().split("traceback")[0]
    site.stack.ctl("model", "remove", MODEL)
