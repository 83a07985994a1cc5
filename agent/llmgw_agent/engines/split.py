"""Over how many GPUs and nodes a model is split, and what cannot be split so. Pure.

Within a node the tensors are split, over nodes the layers: links inside a node are many times as fast as those between nodes.
Nodes without GPUs are the exception, since there one process has all of a node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmgw_agent.errors import RejectedError
from llmgw_proto.records import AssignmentRecord


@dataclass(frozen=True, slots=True)
class Split:
    """``tensor`` × ``pipeline`` processes on ``nodes`` nodes."""

    tensor: int = 1
    pipeline: int = 1
    nodes: int = 1


def split_of(wish: AssignmentRecord) -> Split:
    nodes = max(1, len(wish.peers))
    return Split(len(wish.gpus), nodes, nodes) if wish.gpus else Split(nodes, 1, nodes)


def check_split(split: Split, heads: int | None, layers: int | None) -> None:
    """``heads`` of attention and ``layers`` of the model; None where the files do not say.

    Raises:
        RejectedError: they cannot be split so.
    """
    if heads is not None and heads % split.tensor:
        fitting = max(each for each in range(1, split.tensor) if heads % each == 0)
        key, things = ("gpus", "GPUs") if split.pipeline == split.nodes else ("nodes", "nodes without GPUs")
        raise RejectedError(
            f"{key}: the model's {heads} attention heads cannot be split over {split.tensor} {things}; "
            f"take {fitting} or another divisor"
        )
    if layers is not None and layers < split.pipeline:
        raise RejectedError(
            f"nodes: the model's {layers} layers cannot be split over {split.pipeline} nodes; take {layers} nodes at most"
        )


def older(version: str, than: tuple[int, ...]) -> bool:
    """Whether a version is below ``than``. One that cannot be read, such as a build of one's own, is not."""
    found = re.match(r"v?(\d+(?:\.\d+)+)", version)
    return found is not None and tuple(map(int, found[1].split("."))) < than
