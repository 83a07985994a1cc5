"""Which files of a model repository serving needs. Decisions only."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from .errors import SourceInvalidError, SourceNotFoundError
from .sources import split_names

# Other formats of the same weights, and folders where repositories keep them.
_OTHER_FORMATS = (
    ".bin",
    ".pt",
    ".pth",
    ".h5",
    ".msgpack",
    ".onnx",
    ".onnx_data",
    ".ot",
    ".tflite",
    ".gguf",
    ".mlmodel",
    ".ckpt",
)
_OTHER_FOLDERS = {"original", "onnx", "openvino", "metal", "coreml", "flax", "tf", "gguf", ".git", ".github", "runs", "assets"}
_SMALL = (".json", ".txt", ".model", ".py", ".jinja", ".tiktoken", ".vocab", ".bpe", ".yaml", ".spm", ".tekken")


def select(paths: Sequence[str], pattern: str | None, where: str) -> list[str]:
    """The wanted paths in order, never empty.

    Raises:
        SourceNotFoundError: nothing fits the pattern.
        SourceInvalidError: the repository holds several models and the source does not say which.
    """
    chosen = _named(paths, pattern, where) if pattern is not None else _servable(paths, where)
    return sorted(chosen)


def _named(paths: Sequence[str], pattern: str, where: str) -> set[str]:
    if pattern in paths:
        found = {pattern}
    elif any(each in pattern for each in "*?["):
        found = {each for each in paths if fnmatch.fnmatchcase(each, pattern)}
    else:
        found = _by_quantisation(paths, pattern)
    if not found:
        known = [each for each in paths if each.endswith((".gguf", ".safetensors"))] or list(paths)
        raise SourceNotFoundError(f"{where} has no file {pattern!r}; it has {_some(known)}")
    present = set(paths)
    for each in list(found):
        siblings = split_names(each)
        if siblings is not None and each.endswith(".gguf"):
            missing = [name for name in siblings if name not in present]
            if missing:
                raise SourceNotFoundError(f"{where}: {each} is split, and its part {missing[0]} is not there")
            found.update(siblings)
    return found


def _by_quantisation(paths: Sequence[str], tag: str) -> set[str]:
    if not re.fullmatch(r"[A-Za-z0-9_]+", tag):
        return set()
    name = re.compile(rf"(?:^|[-._/]){re.escape(tag)}(?:-\d{{5}}-of-\d{{5}})?\.gguf$", re.IGNORECASE)
    return {each for each in paths if name.search(each)}


def _servable(paths: Sequence[str], where: str) -> set[str]:
    kept = [each for each in paths if not _OTHER_FOLDERS.intersection(each.split("/")[:-1])]
    tensors = [each for each in kept if each.endswith(".safetensors")]
    small = {each for each in kept if each.endswith(_SMALL) and not each.endswith((".bin.index.json", ".h5.index.json"))}
    if tensors:
        # Some repositories carry the same weights a second time under this name.
        plain = [each for each in tensors if not each.rpartition("/")[2].startswith("consolidated")]
        return small | set(plain or tensors)
    pickled = [each for each in kept if re.search(r"(?:^|/)pytorch_model[^/]*\.bin$", each)]
    if pickled:
        return small | {each for each in kept if each.endswith(".bin.index.json")} | set(pickled)
    models = sorted({(split_names(each) or [each])[0] for each in paths if each.endswith(".gguf")})
    models = [each for each in models if not each.rpartition("/")[2].startswith("mmproj")]
    if len(models) == 1:
        return _named(paths, models[0], where)
    if models:
        raise SourceInvalidError(f"{where} holds {len(models)} GGUF models; name one: add ':' and a file: {_some(models)}")
    if any(not each.endswith(_OTHER_FORMATS) for each in small) and "config.json" in small:
        return small
    raise SourceInvalidError(f"{where} holds no weights that an engine here can load; it has {_some(list(paths))}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "no files"
