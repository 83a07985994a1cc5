"""Model specs: read from files, or made from the options of ``model serve``.

Checked here by the same models that the coordinator uses, so that a slip is reported with its file and place before
anything is changed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from llmgw_ctl.errors import BadInputError
from llmgw_proto.records.model import StrictModelSpec

SUFFIXES = (".yaml", ".yml", ".json")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")
_REMEDY = "docs/llmgwctl.md shows what a model file looks like"


@dataclass(frozen=True, slots=True)
class ServeWish:
    """What ``model serve`` was told."""

    name: str
    source: str | None = None
    engine: str | None = None
    replicas: int = 1
    memory: str | None = None
    gpus: int = 0
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    policy: str | None = None
    command: tuple[str, ...] = ()
    gpu_class: str | None = None
    nodes: int = 1


def spec_of(wish: ServeWish, folder: Path) -> dict[str, Any]:
    """The spec as JSON data. A relative SOURCE is meant from ``folder``.

    Raises:
        BadInputError: a setting cannot be used.
    """
    engine = wish.engine or ("command" if wish.command else "llamacpp")
    profile: dict[str, Any] = {"engine": engine, "gpus": wish.gpus, "args": list(wish.args), "env": _environment(wish.env)}
    if wish.gpu_class is not None:
        profile["gpu_class"] = wish.gpu_class
    if wish.nodes > 1:
        profile["nodes"] = wish.nodes
    if wish.memory is not None:
        profile["memory"] = wish.memory
    if wish.command:
        profile["command"] = list(wish.command)
    spec: dict[str, Any] = {"name": wish.name, "profiles": [profile], "replicas": {"min": wish.replicas}}
    if wish.source is not None:
        spec["source"] = absolute_source(wish.source, folder)
    if wish.policy is not None:
        spec["routing"] = {"policy": wish.policy}
    return checked(spec, "model serve")


def absolute_source(source: str, folder: Path) -> str:
    """A relative path from ``folder`` on; an absolute path or what starts with a scheme (``file://…``, ``hf:…``) as it is."""
    if source.startswith("/") or _SCHEME.match(source):
        return source
    return str((folder / Path(source).expanduser()).resolve())


def read_specs(name: str) -> list[dict[str, Any]]:
    """All specs in a file, a folder (its .yaml, .yml and .json files by name) or, for ``-``, stdin; as JSON data.

    Raises:
        BadInputError: nothing there, not readable, not a model, or a model twice; names file, document and key.
    """
    specs: list[dict[str, Any]] = []
    places: dict[str, str] = {}
    for place, document in _documents(name):
        spec = checked(document, place)
        if earlier := places.get(spec["name"]):
            raise BadInputError(f"{place}: model {spec['name']} stands in {earlier} already", "keep one of the two")
        places[spec["name"]] = place
        specs.append(spec)
    if not specs:
        raise BadInputError(f"{'stdin' if name == '-' else name} holds no model", _REMEDY)
    return specs


def checked(document: Any, place: str) -> dict[str, Any]:
    """Raises BadInputError with all that is wrong, one cause a line."""
    if not isinstance(document, dict):
        raise BadInputError(f"{place}: a model is a mapping with name, source and profiles, not {_kind(document)}", _REMEDY)
    try:
        StrictModelSpec.model_validate(document)
    except ValidationError as error:
        causes = "\n".join(f"{place}: {_cause(each)}" for each in error.errors(include_url=False))
        raise BadInputError(causes, _REMEDY) from error
    return document


def _environment(pairs: tuple[str, ...]) -> dict[str, str]:
    result = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise BadInputError(f"--env {pair}: not KEY=VALUE", "write for example --env OMP_NUM_THREADS=2")
        result[key] = value
    return result


def _documents(name: str) -> Iterator[tuple[str, Any]]:
    for place, text in _texts(name):
        found = list(_parse(place, text))
        for number, document in enumerate(found, start=1):
            yield (f"{place}, document {number}" if len(found) > 1 else place), document


def _texts(name: str) -> Iterator[tuple[str, str]]:
    if name == "-":
        yield "stdin", sys.stdin.read()
        return
    path = Path(name)
    files = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES) if path.is_dir() else [path]
    if not files:
        raise BadInputError(f"{path}: no {', '.join(SUFFIXES)} file in this folder", _REMEDY)
    for file in files:
        try:
            yield str(file), file.read_text()
        except UnicodeDecodeError:
            raise BadInputError(f"{file}: not a text file", _REMEDY) from None
        except OSError as error:
            raise BadInputError(f"{file}: cannot be read: {error.strerror}", "check the path and its rights") from None


def _parse(place: str, text: str) -> Iterator[Any]:
    try:
        found = [json.loads(text)] if text.lstrip().startswith(("{", "[")) else list(yaml.safe_load_all(text))
    except json.JSONDecodeError as error:
        raise BadInputError(f"{place}: not JSON: {error.msg} at line {error.lineno}, column {error.colno}", _REMEDY) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise BadInputError(f"{place}: not YAML: {getattr(error, 'problem', None) or error}{where}", _REMEDY) from None
    for document in found:
        if isinstance(document, list):
            yield from document
        elif document is not None:
            yield document


def _cause(error: Any) -> str:
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{path}: unknown key"
    if error["type"] == "missing":
        return f"{path}: missing"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{path}: {message}" if path else message


def _kind(value: Any) -> str:
    return {list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false"}.get(type(value), "nothing")
