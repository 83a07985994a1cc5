"""docs/agent.md and docs/weights.md say what the code does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw_agent.config import AgentConfig
from llmgw_agent.logs import files
from llmgw_agent.process.logmon import NAME
from llmgw_agent.weights.settings import WeightsSettings
from llmgw_base.config import Section
from llmgw_proto.records import ShardState

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "agent.md").read_text()
#: Explained as a whole, or on a page of their own.
WHOLE = ("etcd", "tls", "log", "weights")


def keys(cls: type[Section], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every key path and its default."""
    for name, field in cls.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section) and name not in WHOLE:
            yield from keys(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, field.get_default(call_default_factory=True)


def rows(text: str) -> dict[str, str]:
    """The row of each key; several keys may share one."""
    found = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            for key in re.findall(r"`([^`]+)`", line.split("|")[1]):
                found[key] = line
    return found


@pytest.mark.parametrize(("page", "config"), [("agent.md", AgentConfig), ("weights.md", WeightsSettings)])
def test_every_key_is_explained_with_its_default(page: str, config: type[Section]) -> None:
    explained = rows((DOCS / page).read_text())
    for key, default in keys(config):
        assert key in explained, f"{key} is not in docs/{page}"
        if type(default) in (int, float) and "ports" not in key and key not in ("reserve_bytes", "stale_seconds"):
            assert re.search(rf"[ ,]{default:g}[ ,]", explained[key]), f"docs/{page} tells another default of {key}"


def test_no_key_is_explained_that_does_not_exist() -> None:
    known = {key for key, _ in keys(AgentConfig)}
    settings = TEXT.partition("## Settings")[2].partition("\n## ")[0]
    assert set(rows(settings)) <= known


def test_every_state_and_log_file_is_named() -> None:
    for state in ShardState:
        assert f"\n| {state} |" in TEXT, state
    for name in (NAME, files.FIRST_FAILURE, files.SUSPECT):
        assert f"`{name}`" in TEXT
