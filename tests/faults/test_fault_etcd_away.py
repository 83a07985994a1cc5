"""etcd is away for twice the lease: nothing that serves is touched."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from llmgw_testing.etcd_server import Series
from llmgw_testing.load import Load
from llmgw_testing.stack import Stack, fake_model
from llmgw_testing.wait import wait_until


@pytest.mark.parametrize("version", ["3.4", "3.5"])
def test_stopped_for_twice_the_lease_and_started_again(tmp_path: Path, version: Series) -> None:
    with Stack(tmp_path, etcd_version=version, lease_ttl=3, leader_ttl=3) as stack:
        stack.coordinator()
        stack.agent()
        router = stack.router()
        stack.apply(fake_model("m", replicas={"min": 2}))
        before = stack.ready("m", 2)
        engines = stack.engines()

        with Load(router.url, "m") as load:
            stack.etcd.stop()
            began, seen = time.monotonic(), load.done
            wait_until(lambda: time.monotonic() - began > 6, within=30, what="twice the lease to pass", every=0.1)
            assert load.done > seen, "no request was answered while etcd was away"
            assert stack.engines() == engines
            stack.etcd.start()
            wait_until(lambda: stack.leader() == "c1", within=30, what="a leader after the outage")
            stack.ctl("model", "scale", "m", "3")
            after = stack.ready("m", 3)
            assert set(engines) < set(stack.engines())
        assert load.failures == []
        kept = {each["id"]: (each["pid"], each["epoch"], each["restarts"]) for each in after}
        assert {each["id"]: (each["pid"], each["epoch"], each["restarts"]) for each in before}.items() <= kept.items()


def test_a_frozen_etcd_that_forgets_all_leases(tmp_path: Path) -> None:
    with Stack(tmp_path, lease_ttl=2, leader_ttl=2) as stack:
        stack.coordinator()
        agent = stack.agent()
        router = stack.router()
        stack.apply(fake_model("m"))
        stack.ready("m", 1)
        engines = stack.engines()
        with Load(router.url, "m") as load:
            stack.etcd.sigstop()
            began = time.monotonic()
            wait_until(lambda: time.monotonic() - began > 6, within=30, what="the leases to expire", every=0.1)
            stack.etcd.sigcont()
            wait_until(
                lambda: stack.admin("/admin/v1/nodes")["nodes"][0]["alive"], within=30, what="the agent to be registered again"
            )
            stack.ready("m", 1)
        assert load.failures == []
        assert stack.engines() == engines
        assert agent.running


def test_a_wiped_store_deletes_nothing(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        coordinator = stack.coordinator()
        agent = stack.agent()
        router = stack.router()
        stack.apply(fake_model("m"))
        stack.ready("m", 1)
        engines = stack.engines()
        with Load(router.url, "m") as load:
            stack.etcd.kill()
            stack.etcd.wipe()
            stack.etcd.start()
            wait_until(lambda: "frozen" in agent.log().lower(), within=30, what="the agent to notice another store")
            wait_until(lambda: "frozen" in coordinator.log().lower(), within=30, what="the coordinator to notice another store")
            seen = load.done
            wait_until(lambda: load.done > seen + 20, within=30, what="requests with the wiped store")
        assert load.failures == []
        assert stack.engines() == engines
