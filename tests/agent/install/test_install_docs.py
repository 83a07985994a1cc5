"""The page about engines says what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import yaml

from llmgw_agent.config import EnginesSection
from llmgw_agent.install.recipes import RECIPES
from llmgw_agent.install.settings import EngineInstall, InstallableEngine
from llmgw_proto.engines import check_args
from llmgw_proto.records.model import EngineName

PAGE = (Path(__file__).parents[3] / "docs" / "engines.md").read_text()


def test_every_setting_is_described_with_its_default() -> None:
    table = PAGE.split("## Settings", 1)[1].split("\n### ", 1)[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", table, re.MULTILINE))
    assert list(rows) == list(EngineInstall.model_fields)
    for name in ("timeout_seconds", "keep"):
        assert rows[name] == f"{EngineInstall.model_fields[name].default:g}"


def test_every_engine_is_described() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.split("## Installing", 1)[0], re.MULTILINE)
    assert sorted(rows) == sorted(get_args(EngineName))
    assert set(RECIPES) == set(get_args(InstallableEngine))


def test_the_examples_are_valid() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 8
    for example in examples:
        assert EnginesSection.model_validate(yaml.safe_load(example)["engines"]).install


def test_flags_said_to_be_refused_are() -> None:
    part = PAGE.split("### Arguments", 1)[1].split("\n## ", 1)[0]
    listed = part[part.index("- where it listens") :]
    flags = re.findall(r"`(--[a-z-]+)(?:…)?`", listed)
    assert len(flags) > 10
    for flag in flags:
        assert any(check_args(engine, [flag]) is not None for engine in RECIPES), flag
