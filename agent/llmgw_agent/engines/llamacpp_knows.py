"""What a llama.cpp can load, found out without starting it: its program and libraries hold the names of all they know.

llama.cpp cannot be asked for its architectures and tensor types. Their names are C strings in its files, so a name that is in
none of them is one that it does not know. The other way round nothing is sure: then its log tells when it has tried.
"""

from __future__ import annotations

import importlib.util
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from llmgw_agent.engines.base import Located
from llmgw_agent.weights import ModelFacts, check_loadable

#: What every llama.cpp knows; files that lack these are not all that it consists of, and say nothing.
_ALWAYS: Final = ("llama", "q4_K")
_LIBRARIES: Final = ("libllama*.so*", "libggml*.so*", "xllamacpp*.so", "libmtmd*.so*")


def judge_of(located: Located) -> Callable[[ModelFacts], str | None]:
    """Says of a model why this llama.cpp cannot load it; None when it can, or that is not known. What it returns blocks."""
    return lambda facts: objection(files_of(located), facts)


def objection(files: Sequence[Path], facts: ModelFacts) -> str | None:
    """As :func:`judge_of`, for a llama.cpp that consists of these files."""
    if facts.format != "gguf" or not all(_known(files, each) for each in _ALWAYS):
        return check_loadable(facts, None, None)
    architectures = {each for each in (facts.architecture,) if each and _known(files, each)}
    # Types that have no name here are newer than this program: nothing is known of them.
    types = {each for each in facts.tensor_types if each.startswith("type ") or _known(files, type_name(each))}
    return check_loadable(facts, architectures, types)


def type_name(name: str) -> str:
    """As ggml spells it: ``q4_K``, ``iq2_xxs``, ``f16``."""
    lower = name.lower()
    return lower[:-1] + "K" if lower.endswith("_k") else lower


def files_of(located: Located) -> list[Path]:
    """The program and the libraries beside it, as far as they are found."""
    program = Path(located.argv[0]).resolve()
    if located.home is None and "-m" in located.argv:
        spec = importlib.util.find_spec("xllamacpp")
        folders = [Path(each) for each in (spec.submodule_search_locations or ())] if spec is not None else []
        return sorted(_libraries(folders, ("*.so",)))
    folders = [program.parent, program.parent.parent / "lib"]
    if located.home is not None:
        folders.append(located.home)
        return sorted({program, *_libraries([located.home], tuple(f"**/{each}" for each in _LIBRARIES))})
    below = tuple(pattern for each in _LIBRARIES for pattern in (each, f"*/{each}", f"*/*/{each}"))
    return sorted({program, *_libraries([program.parent], _LIBRARIES), *_libraries(folders[1:], below)})


def _libraries(folders: Iterable[Path], patterns: Iterable[str]) -> Iterator[Path]:
    for folder in folders:
        for pattern in patterns:
            try:
                yield from (each.resolve() for each in folder.glob(pattern) if each.is_file())
            except OSError:
                continue  # a folder that may not be read


def _known(files: Sequence[Path], word: str) -> bool:
    for file in files:
        try:
            facts = file.stat()
            if _holds(file, facts.st_size, facts.st_mtime_ns, word):
                return True
        except (OSError, ValueError):
            continue  # gone, or empty
    return False


@lru_cache(maxsize=1024)
def _holds(file: Path, size: int, changed: int, word: str) -> bool:
    """Linkers let a string begin inside of another one, so only its end is certain."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as content:
        return content.find(word.encode() + b"\0") >= 0
