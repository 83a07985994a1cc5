"""Judges a GGUF by its header as soon as that has come, while the rest is still on its way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Final

from llmgw_base.clock import Clock

from .errors import MetadataError, UnloadableError
from .gguf import read_gguf
from .model_facts import ModelFacts, from_gguf

Judge = Callable[[ModelFacts], str | None]
"""Why a model cannot be loaded; None when it can. Blocking."""
_LOOK_EVERY: Final = 0.25
_FIRST_LOOK: Final = 64 << 10
_LARGEST: Final = 256 << 20


async def watch_header(
    source: str,
    part: Path,
    judge: Judge,
    trusted: Callable[[], bool],
    clock: Clock,
    work: Callable[[Callable[[], str | None]], Awaitable[str | None]],
) -> None:
    """Returns when the header is read and nothing speaks against it, or when it cannot be read. Cancel it at the end.

    Args:
        trusted: whether what is in the part came from a place whose word is enough to refuse the model.
        work: runs something in a thread.

    Raises:
        UnloadableError: the model cannot be loaded.
    """
    least = _FIRST_LOOK
    while least <= _LARGEST:
        await clock.sleep(_LOOK_EVERY)
        size = _size(part)
        if size < least or not trusted():
            continue
        least = 2 * size
        try:
            objection = await work(lambda: judge(_facts(part)))
        except MetadataError:
            continue  # not all of it is here, or it is no GGUF: that is said when it is whole
        if objection is not None and trusted():
            raise UnloadableError(f"{source}: {objection}")
        if objection is None:
            return


def _facts(part: Path) -> ModelFacts:
    with part.open("rb", buffering=0) as file:
        return from_gguf([read_gguf(file.read)], 0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def first_gguf(paths: Collection[str]) -> str | None:
    """The file whose header says what the model is: the first part of a split one."""
    return min((each for each in paths if each.endswith(".gguf")), default=None)
