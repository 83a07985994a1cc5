"""docs/llmgwctl.md has exactly the commands and options that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from llmgw_ctl.app import build
from llmgw_ctl.errors import BadInputError, CtlError, NotFoundError, StoppedEarlyError, UnfulfilledError, UnreachableError

PAGE = Path(__file__).parents[2] / "docs" / "llmgwctl.md"
COMMON = {"--server", "--token-file", "--output", "-o", "--help", "-h"}


def documented() -> dict[str, set[str]]:
    """Options in the tables under each command's heading."""
    found: dict[str, set[str]] = {}
    sections = re.split(r"^##+ ", PAGE.read_text(), flags=re.MULTILINE)
    for section in sections:
        title = re.match(r"`llmgwctl ([a-z ]+)`\n", section)
        if title:
            cells = re.findall(r"^\| ([^|]*)\|", section, flags=re.MULTILINE)
            found[title[1]] = {option for cell in cells for option in re.findall(r"`(--?[a-z0-9-]+)`", cell)}
    return found


def commands(group: Any = None, path: tuple[str, ...] = ()) -> dict[str, set[str]]:
    group = group or typer.main.get_command(build())
    found: dict[str, set[str]] = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= commands(command, (*path, name))
        else:
            options = {each for parameter in command.params for each in parameter.opts if each.startswith("-")}
            found[" ".join((*path, name))] = options - COMMON
    return found


def test_every_command_has_its_heading_and_no_other_has_one() -> None:
    assert set(documented()) == set(commands())


@pytest.mark.parametrize("command", sorted(commands()))
def test_every_option_is_in_the_commands_table(command: str) -> None:
    assert documented()[command] == commands()[command]


@pytest.mark.parametrize("command", sorted(commands()))
def test_every_command_and_option_has_a_help_text(command: str) -> None:
    found: Any = typer.main.get_command(build())
    for word in command.split():
        found = found.commands[word]
    assert found.help
    for parameter in found.params:
        assert getattr(parameter, "help", None), f"{command} {parameter.name}"


@pytest.mark.parametrize(
    "error", [CtlError, BadInputError, UnreachableError, NotFoundError, UnfulfilledError, StoppedEarlyError]
)
def test_every_exit_status_is_explained(error: type[CtlError]) -> None:
    assert re.search(rf"^\| {error.exit_code} \|", PAGE.read_text(), flags=re.MULTILINE)


def test_the_example_model_is_one(tmp_path: Path) -> None:
    from llmgw_ctl.spec import read_specs

    example = next(block for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL) if "profiles:" in block)
    (tmp_path / "m.yaml").write_text(example)
    assert read_specs(str(tmp_path / "m.yaml"))[0]["name"] == "org/tiny"
