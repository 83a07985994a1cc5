"""The page about hardware says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from llmgw_agent.hardware.health_rules import RULES
from llmgw_agent.hardware.metrics import HardwareMetrics
from llmgw_agent.hardware.problems import Code
from llmgw_agent.metrics import AgentMetrics
from llmgw_agent.publisher import Publisher
from llmgw_agent.weights.metrics import Traffic, WeightsMetrics
from llmgw_base.clock import SystemClock
from llmgw_testing.memstore import MemoryStore

TEXT = (Path(__file__).parents[3] / "docs" / "hardware.md").read_text()


async def _no_objection() -> None:
    return None


def test_every_condition_is_explained() -> None:
    explained = set(re.findall(r"`([a-z0-9-]+)`", TEXT))
    assert {str(code) for code in Code} <= explained


def test_every_live_rule_is_explained() -> None:
    running = TEXT.partition("### Found while running")[2].partition("## InfiniBand")[0]
    assert {str(rule.code) for rule in RULES.values()} <= set(re.findall(r"`([a-z0-9-]+)`", running))


def test_metrics_that_are_named_exist() -> None:
    named = set(re.findall(r"`(llmgw_[a-z0-9_]+)`", TEXT))
    exist = set()
    publisher = Publisher(MemoryStore(), SystemClock(), [], 10, _no_objection)
    agents = AgentMetrics(CollectorRegistry(), publisher, list)
    weights = WeightsMetrics(CollectorRegistry(), Traffic())
    for family in [*HardwareMetrics(CollectorRegistry()).collect(), *agents.collect(), *weights.collect()]:
        exist.add(f"{family.name}_total" if family.type == "counter" else family.name)
    assert named <= exist
    # Ports have a counter for each kind of error; the page names them together.
    assert {name for name in exist if not name.startswith("llmgw_rdma_port_")} <= named
