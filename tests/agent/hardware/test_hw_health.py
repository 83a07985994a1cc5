"""Live health as tables: observation → condition, quarantine, how it is lifted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw_agent.hardware.health import Health
from llmgw_agent.hardware.health_rules import RULES, Lift, xid
from llmgw_agent.hardware.health_store import HealthStore
from llmgw_agent.hardware.observations import Observer
from llmgw_agent.hardware.raw import GpuSample, Link, PortSample

GPU = "GPU-1"


def gpu(**values: Any) -> GpuSample:
    facts: dict[str, Any] = {
        "utilization": [0, 0],
        "throttle": 1,
        "pcie_gen": 1,
        "pcie_width": 16,
        "ecc_uncorrected": 0,
        "temperature": 40,
    }
    return GpuSample(index=0, uuid=GPU, **facts | {"remapped": [0, 0, 0, 0]} | values)


def port(**values: Any) -> PortSample:
    facts: dict[str, Any] = {"state": "ACTIVE", "phys_state": "LinkUp", "rate": 400.0}
    return PortSample(hca="mlx5_0", port=1, **facts | values)


class Loop:
    """Feeds samples at given seconds and says what stands."""

    def __init__(self) -> None:
        self.health, self.observer = Health(), Observer()

    def gpu(self, at: float, **values: Any) -> list[str]:
        self.health.observe(at, self.observer.gpus([gpu(**values)]), [GPU])
        return self.codes()

    def port(self, at: float, **values: Any) -> list[str]:
        sample = port(**values)
        self.health.observe(at, self.observer.ports(at, [sample]), [sample.name])
        return self.codes()

    def codes(self) -> list[str]:
        return [problem.code for problem in self.health.report().problems]

    def quarantined(self) -> list[str]:
        return list(self.health.report().quarantine)


@pytest.mark.parametrize(
    ("before", "during", "code", "lasting", "quarantine"),
    [
        ({}, {"error": 15}, "gpu-lost", 0, True),
        ({}, {"reset_required": True}, "gpu-reset-required", 0, True),
        ({}, {"recovery_action": 1}, "recovery-action", 0, True),
        ({}, {"remapped": [0, 1, 1, 0]}, "row-remap-pending", 0, True),
        ({}, {"remapped": [0, 1, 1, 1]}, "row-remap-failed", 0, True),
        ({}, {"retired_pending": 1}, "retired-pages-pending", 0, True),
        ({}, {"ecc_uncorrected": 2}, "ecc-uncorrected", 0, True),
        ({}, {"throttle": 0x40}, "thermal-throttle", 10, True),
        ({}, {"throttle": 0x20}, "thermal-throttle", 60, False),
        ({}, {"throttle": 0x80}, "power-brake", 10, True),
        ({}, {"pcie_width": 8}, "pcie-width", 3, True),
        ({"pcie_gen": 5, "utilization": [90, 9]}, {"pcie_gen": 3, "utilization": [90, 9]}, "pcie-speed", 30, True),
        ({"links": [Link(0, 1), Link(1, 1)]}, {"links": [Link(0, 1), Link(1, 0)]}, "nvlink-degraded", 0, True),
    ],
)
def test_gpu_observation(before: dict[str, Any], during: dict[str, Any], code: str, lasting: float, quarantine: bool) -> None:
    loop = Loop()
    assert loop.gpu(0, **before) == []
    if lasting:
        assert loop.gpu(1, **during) == []
        assert loop.gpu(lasting, **during) == []
    assert loop.gpu(1 + lasting, **during) == [code]
    assert loop.quarantined() == ([GPU] if quarantine else [])


@pytest.mark.parametrize(
    "values",
    [
        {"throttle": 0x4},
        {"throttle": None, "remapped": None, "ecc_uncorrected": None, "pcie_width": None, "utilization": None},
        # An idle card lowers its PCIe speed, and links sleep.
        {"pcie_gen": 1},
        {"links": [Link(0, 2), Link(1, 1)]},
        {"ecc_corrected": 5000},
        {"remapped": [3, 1, 0, 0]},
    ],
)
def test_normal_samples_raise_nothing(values: dict[str, Any]) -> None:
    loop = Loop()
    loop.gpu(0, pcie_gen=5, utilization=[99, 50], links=[Link(0, 1), Link(1, 1)])
    for at in range(1, 200):
        assert loop.gpu(at, **values) == []


def test_short_heat_is_nothing() -> None:
    loop = Loop()
    for at in range(0, 60, 6):
        loop.gpu(at, throttle=0x40)
        assert loop.gpu(at + 5, throttle=0x40) == []
        loop.gpu(at + 5.5, throttle=0)


def test_condition_clears_after_its_quiet_time() -> None:
    loop = Loop()
    for at in range(11):
        loop.gpu(at, throttle=0x40)
    quiet = RULES["thermal"].quiet

    assert loop.gpu(10 + quiet - 1) == ["thermal-throttle"]
    assert loop.gpu(10 + quiet) == []


def test_remap_clears_with_the_reset() -> None:
    loop = Loop()
    assert loop.gpu(0, remapped=[0, 1, 1, 0]) == ["row-remap-pending"]
    assert loop.gpu(1, remapped=[0, 1, 0, 0]) == []


def test_ecc_is_lifted_by_a_retest_only() -> None:
    loop = Loop()
    loop.gpu(0)
    loop.gpu(1, ecc_uncorrected=1)
    quiet = RULES["ecc"].quiet

    assert loop.gpu(1 + 2 * quiet, ecc_uncorrected=1) == ["ecc-uncorrected"]
    assert loop.health.due_for_retest(quiet) == []
    assert loop.health.due_for_retest(1 + quiet) == [GPU]
    assert not loop.health.retested(1 + quiet, GPU, passed=False)
    # A failed one waits another quiet time.
    assert loop.health.due_for_retest(2 + quiet) == []
    assert loop.health.retested(1 + 2 * quiet, GPU, passed=True)
    assert loop.codes() == []


@pytest.mark.parametrize(
    ("number", "quarantine", "lift"),
    [
        (13, False, Lift.CLEARED),
        (31, False, Lift.CLEARED),
        (43, False, Lift.CLEARED),
        (48, True, Lift.RETEST),
        (63, False, Lift.CLEARED),
        (74, True, Lift.RETEST),
        (79, True, Lift.OPERATOR),
        (94, False, Lift.CLEARED),
        (95, True, Lift.RETEST),
        (119, True, Lift.RETEST),
        (9999, False, Lift.CLEARED),
    ],
)
def test_xid(number: int, quarantine: bool, lift: Lift) -> None:
    health = Health()
    name, detail = xid(number)

    assert health.event(0, (GPU, name, detail))

    (problem,) = health.report().problems
    assert problem.code == "xid"
    assert f"XID {number}" in problem.text
    assert list(health.report().quarantine) == ([GPU] if quarantine else [])
    assert RULES[name].lift is lift


def test_fatal_xid_stays_until_the_operator_lifts_it() -> None:
    health = Health()
    health.event(0, (GPU, *xid(79)))
    health.observe(1e6, [], [GPU])
    assert health.due_for_retest(1e6) == []

    assert health.lift(GPU)
    assert health.report().problems == []
    assert not health.lift(GPU)


def test_operator_can_hold_a_gpu() -> None:
    health = Health()

    health.hold(0, GPU, "fan is being replaced")
    health.observe(1e6, [], [GPU])

    assert health.report().quarantine == {GPU: "operator: fan is being replaced; lifted by the operator"}


def test_port_that_goes_down_and_comes_back() -> None:
    loop = Loop()
    assert loop.port(0) == []
    assert loop.port(1, state="DOWN", phys_state="Polling", rate=None) == ["ib-port-down"]
    assert loop.quarantined() == ["mlx5_0:1"]
    quiet = RULES["port-down"].quiet
    assert loop.port(2) == ["ib-port-down"]
    assert loop.port(1 + quiet) == []


def test_port_that_was_never_up_is_unused() -> None:
    loop = Loop()
    for at in range(100):
        assert loop.port(at, state="DOWN", phys_state="Polling", rate=None) == []


def test_flapping_is_told_by_the_counter_between_samples() -> None:
    loop = Loop()
    loop.port(0, counters={"link_downed": 7})
    assert loop.port(100, counters={"link_downed": 8}) == []
    assert loop.port(200, counters={"link_downed": 10}) == ["ib-port-flapping"]
    # Ten minutes after the last the window is empty, half an hour later the quarantine is lifted.
    assert loop.port(900, counters={"link_downed": 10}) == ["ib-port-flapping"]
    assert loop.port(2900, counters={"link_downed": 10}) == []


def test_counters_that_were_cleared_are_no_errors() -> None:
    loop = Loop()
    loop.port(0, counters={"symbol_error": 10_000, "link_downed": 50})
    assert loop.port(1, counters={"symbol_error": 0, "link_downed": 0}) == []
    assert loop.port(2, counters={"symbol_error": 59}) == []
    assert loop.port(3, counters={"symbol_error": 61}) == ["ib-port-errors"]
    assert loop.quarantined() == []


def test_port_that_falls_back_in_speed() -> None:
    loop = Loop()
    loop.port(0)
    assert loop.port(1, rate=100.0) == []
    assert loop.port(6, rate=100.0) == ["ib-port-slow"]


def test_state_survives_a_restart_of_the_agent_but_not_of_the_node(tmp_path: Path) -> None:
    health = Health()
    health.event(100, (GPU, *xid(79)))
    health.event(130, ("GPU-2", *xid(48)))
    health.event(150, ("GPU-3", "thermal", ""))
    health.hold(160, "mlx5_0:1", "cable")
    HealthStore(tmp_path / "state" / "health.json", "boot-1").save(health.export(200))

    again = Health()
    again.restore(5000, HealthStore(tmp_path / "state" / "health.json", "boot-1").load())

    assert sorted(again.report().quarantine) == [GPU, "GPU-2", "mlx5_0:1"]
    # 70 of its 600 quiet seconds had passed.
    assert again.due_for_retest(5000 + 529) == []
    assert again.due_for_retest(5000 + 530) == ["GPU-2"]
    assert HealthStore(tmp_path / "state" / "health.json", "boot-2").load() == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot_id": "b"}', '{"boot_id": "b", "conditions": 3}'])
def test_damaged_state_is_as_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "health.json").write_text(text)
    assert HealthStore(tmp_path / "health.json", "b").load() == []


def test_state_of_a_newer_version_is_read_as_far_as_known() -> None:
    health = Health()
    health.restore(0, [{"subject": GPU, "observation": "from-the-future"}, {"subject": GPU, "observation": "lost"}])
    assert [problem.code for problem in health.report().problems] == ["gpu-lost"]


def test_every_rule_has_a_text_that_can_be_filled_in() -> None:
    for rule in RULES.values():
        assert rule.text.format(detail="x")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 60), st.sampled_from([0, 0x20, 0x40, 0x80, 0xE0]), st.integers(0, 3)), max_size=60))
def test_quiet_gpu_ends_without_clearing_conditions(steps: list[tuple[float, int, int]]) -> None:
    """Whatever happened: an hour of normal samples later only what needs a re-test or the operator stands."""
    loop, now, ecc = Loop(), 0.0, 0
    for step, mask, errors in steps:
        now, ecc = now + step, ecc + errors
        loop.gpu(now, throttle=mask, ecc_uncorrected=ecc)
    loop.gpu(now + 1, ecc_uncorrected=ecc)
    loop.gpu(now + 3600, ecc_uncorrected=ecc)
    assert set(loop.codes()) <= {"ecc-uncorrected"}
