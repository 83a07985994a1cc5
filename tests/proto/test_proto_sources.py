"""Sources are read when a model is applied, before any node hears of it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from llmgw_proto.records import ModelSpec
from llmgw_proto.records.model import StrictModelSpec
from llmgw_proto.sources import SourceError, parse_source

COMMAND = {"engine": "command", "command": ["x", "{port}"]}
LLAMACPP = {"engine": "llamacpp"}


def spec(source: str, *profiles: dict[str, Any]) -> dict[str, Any]:
    return {"name": "m", "source": source, "profiles": list(profiles) or [LLAMACPP]}


@pytest.mark.parametrize(
    "source",
    ["/w.gguf", "file:///w.gguf", "https://h/w.gguf", "http://h/w.gguf", "hf:org/repo", "hf:org/repo@main:Q4_K_M"],
)
def test_all_kinds_are_taken(source: str) -> None:
    assert StrictModelSpec.model_validate(spec(source)).source == source


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("w.gguf", "of no known kind; write /path, file:///path, https://host/file"),
        ("org/repo", "of no known kind"),
        ("s3://bucket/w.gguf", "of no known kind"),
        ("hf:", "is not a repository"),
        ("https://h/", "names no file"),
        ("https://h/w.gguf#sha256=12", "is not a digest"),
        ("file://host/w.gguf", "a file source names a path on each node"),
    ],
)
def test_what_cannot_be_read_is_refused_when_it_is_applied(source: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        StrictModelSpec.model_validate(spec(source))
    assert ModelSpec.model_validate(spec(source)).source == source, "what is stored by a newer version is still read"


def test_a_program_of_the_users_own_may_have_a_source_of_its_own_kind() -> None:
    assert StrictModelSpec.model_validate(spec("org/repo", COMMAND)).source == "org/repo"
    for given in (spec("org/repo", COMMAND, LLAMACPP), spec("hf:", COMMAND)):
        with pytest.raises(ValidationError):
            StrictModelSpec.model_validate(given)


def test_a_wrong_digest_gives_no_secret_away() -> None:
    with pytest.raises(SourceError) as caught:
        parse_source("https://user:pw@h/m.gguf?sig=secret#sha256=1")
    assert "pw" not in str(caught.value)
    assert "secret" not in str(caught.value)
