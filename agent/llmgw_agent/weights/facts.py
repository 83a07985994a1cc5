"""Finds the headers among a model's files, reads them, and keeps what they say beside the weights."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, TypeVar

from pydantic import BaseModel, ValidationError

from .client import Client
from .errors import MetadataError, SourceNotFoundError, SourceUnavailableError
from .gguf import read_gguf
from .layout import write_atomically
from .model_facts import ModelFacts, from_config, from_gguf
from .safetensors import LARGEST_CONFIG, json_object, read_safetensors
from .sources import shown, split_names

if TYPE_CHECKING:
    from .resolve import Plan

__all__ = ["ModelFacts", "inspect_remote", "load", "local_files"]

_T = TypeVar("_T")
_VERSION: Final = 1  # of what is read and how; another one means: read again
_MOST_FILES: Final = 20_000


class _Cached(BaseModel):
    """``stamp`` tells whether the files are still the ones that were read."""

    version: int
    stamp: list[tuple[str, int, int]]
    facts: ModelFacts | None
    problem: str | None


def local_files(path: Path) -> list[Path]:
    """All files of weights that are used in place: the parts of a split file, or what a folder holds. Raises OSError."""
    if path.is_dir():
        found = [Path(folder) / name for folder, _, names in os.walk(path) for name in names if not name.startswith(".")]
        return sorted(each for each in found[:_MOST_FILES] if each.is_file())
    path.stat()
    siblings = [path.with_name(each) for each in split_names(path.name) or [path.name]]
    for each in siblings:
        each.stat()
    return siblings


def load(path: Path, files: Sequence[Path], cache: Path) -> tuple[ModelFacts | None, str | None]:
    """The facts of a file or folder, or None and why there are none. Reads headers again only when files changed. Blocking."""
    stamp = []
    for each in files:
        with contextlib.suppress(FileNotFoundError):
            facts = each.stat()
            stamp.append((str(each), facts.st_size, facts.st_mtime_ns))
    with contextlib.suppress(FileNotFoundError, ValidationError):
        cached = _Cached.model_validate_json(cache.read_bytes())
        if cached.version == _VERSION and cached.stamp == stamp:
            return cached.facts, cached.problem
    try:
        fresh = _Cached(version=_VERSION, stamp=stamp, facts=read_facts(path, files), problem=None)
    except (MetadataError, OSError) as error:
        fresh = _Cached(version=_VERSION, stamp=stamp, facts=None, problem=str(error))
    with contextlib.suppress(OSError):  # a full disk must not keep a model from starting
        write_atomically(cache, fresh.model_dump_json())
    return fresh.facts, fresh.problem


def read_facts(path: Path, files: Sequence[Path]) -> ModelFacts:
    """Raises MetadataError, OSError. Blocking."""
    if not path.is_dir() and path.suffix == ".safetensors":
        return _from_folder(path.parent, files)
    ggufs = [each for each in files if each.suffix == ".gguf"]
    if (
        path.is_dir()
        and not ((path / "config.json").is_file() or any(each.suffix == ".safetensors" for each in files))
        and ggufs
    ):
        ggufs = [ggufs[0].with_name(each) for each in split_names(ggufs[0].name) or [ggufs[0].name]]
    elif path.is_dir():
        return _from_folder(path, files)
    return _from_ggufs(ggufs or list(files))


def _from_ggufs(files: Sequence[Path]) -> ModelFacts:
    headers = []
    for each in files:
        with each.open("rb", buffering=0) as file:
            try:
                headers.append(read_gguf(file.read))
            except MetadataError as error:
                raise MetadataError(f"{each.name}: {error}") from None
    return from_gguf(headers, sum(each.stat().st_size for each in files))


def _from_folder(folder: Path, files: Sequence[Path]) -> ModelFacts:
    config = _small(folder / "config.json")
    tensors = [each for each in files if each.suffix == ".safetensors"]
    headers = []
    for each in tensors:
        with each.open("rb", buffering=0) as file:
            try:
                headers.append(read_safetensors(file.read))
            except MetadataError as error:
                raise MetadataError(f"{each.name}: {error}") from None
    weights = tensors or [each for each in files if each.suffix == ".bin"]
    if config is None and not tensors:
        raise MetadataError(f"{folder.name} holds neither a config.json nor a GGUF or safetensors file")
    kind = "safetensors" if tensors or not weights else "pickle"
    facts = from_config(
        json_object(config, "config.json") if config is not None else {},
        headers,
        sum(each.stat().st_size for each in weights),
        kind,
    )
    template = (folder / "chat_template.jinja").is_file() or b'"chat_template"' in (
        _small(folder / "tokenizer_config.json") or b""
    )
    tokenizer = next((name for name in ("tokenizer.json", "tokenizer.model", "vocab.json") if (folder / name).is_file()), None)
    return facts.model_copy(update={"chat_template": template, "tokenizer": tokenizer})


def _small(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_CONFIG + 1)
    except FileNotFoundError:
        return None
    if len(data) > LARGEST_CONFIG:
        raise MetadataError(f"{path.name} has more than {LARGEST_CONFIG} bytes")
    return data


def inspect_remote(client: Client, plan: Plan) -> ModelFacts:
    """Reads headers over the network, without fetching more than these. Blocking. Raises any WeightsError of a download."""
    names = {each.wish.path: each for each in plan.files}
    size = sum(each.wish.size or 0 for each in plan.files if each.wish.path.endswith((".gguf", ".safetensors", ".bin")))
    ggufs = [each for each in names if each.endswith(".gguf")]
    if ggufs:
        return from_gguf([_remote(client, plan, each, read_gguf) for each in sorted(ggufs)], size)
    if "config.json" not in names:
        raise MetadataError(f"{shown(plan.source)} has neither a GGUF file nor a config.json")
    config = json_object(_remote(client, plan, "config.json", _whole), "config.json")
    tensors = sorted(each for each in names if each.endswith(".safetensors"))
    headers = [_remote(client, plan, each, read_safetensors) for each in tensors]
    facts = from_config(config, headers, size, "safetensors" if tensors else "pickle")
    tokenizer = next((each for each in ("tokenizer.json", "tokenizer.model", "vocab.json") if each in names), None)
    template = any(PurePosixPath(each).name == "chat_template.jinja" for each in names)
    if not template and "tokenizer_config.json" in names:
        template = b'"chat_template"' in _remote(client, plan, "tokenizer_config.json", _whole)
    return facts.model_copy(update={"chat_template": template, "tokenizer": tokenizer})


def _whole(read: Callable[[int], bytes]) -> bytes:
    parts: list[bytes] = []
    size = 0
    while block := read(1 << 16):
        size += len(block)
        if size > LARGEST_CONFIG:
            raise MetadataError(f"a description has more than {LARGEST_CONFIG} bytes")
        parts.append(block)
    return b"".join(parts)


def _remote(client: Client, plan: Plan, path: str, reader: Callable[[Callable[[int], bytes]], _T]) -> _T:
    file = next(each for each in plan.files if each.wish.path == path)
    problem: Exception = SourceNotFoundError(f"{shown(plan.source)}: {path} is nowhere to be had")
    for place in file.places:
        try:
            with client.follow(place.target, {}, promised=file.wish.digest is not None) as exchange:
                if exchange.status == 200:
                    return reader(exchange.read)
                problem = SourceUnavailableError(f"{place.target} answers {exchange.status}")
        except SourceUnavailableError as error:
            problem = error
    raise problem
