"""The page about the coordinator names every setting and every metric there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel

from llmgw_coordinator.config import CoordinatorConfig, PlacementSection
from llmgw_coordinator.metrics import Metrics

PAGE = (Path(__file__).parents[2] / "docs" / "coordinator.md").read_text()


def rows(heading: str) -> str:
    """The table below a heading (or, for metrics, a header row)."""
    table = PAGE[PAGE.index(heading) :]
    return "\n".join(line for line in table[table.index("|") :].split("\n\n")[0].splitlines()[2:])


def first_column(heading: str) -> set[str]:
    return {name for line in rows(heading).splitlines() for name in re.findall(r"`([^`]+)`", line.split("|")[1])}


def names(section: type[BaseModel], prefix: str = "") -> set[str]:
    return {prefix + name for name in section.model_fields}


def test_every_setting_has_its_row() -> None:
    expected = names(CoordinatorConfig) - {"placement"} | names(PlacementSection, "placement.")
    assert first_column("## Settings") == expected


def test_defaults_are_as_written() -> None:
    config = CoordinatorConfig()
    table = rows("## Settings")
    for key, value in (
        ("listen", f"`{config.listen}`"),
        ("token_failures_per_minute", str(config.token_failures_per_minute)),
        ("cluster_name", f"`{config.cluster_name}`"),
        ("leader_ttl", f"{config.leader_ttl:g}"),
        ("node_grace", f"{config.node_grace:g}"),
        ("placement.reserved_memory", f"`{config.placement.reserved_memory}`"),
        ("placement.brake_share", f"{config.placement.brake_share:g}"),
    ):
        assert f"| `{key}` | {value} |" in table


def test_every_metric_has_its_row() -> None:
    own = {family.name for family in Metrics().registry.collect() if family.name.startswith("llmgw_")} - {"llmgw_build_info"}
    assert first_column("| metric |") == own
