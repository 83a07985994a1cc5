"""Bodies and answers about weights, and how an agent's messages become them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from llmgw_coordinator.api.shapes import Shape


class FactsView(Shape):
    """From the headers of the files; null is what they do not say."""

    format: str = Field(description="gguf, safetensors or pickle")
    architecture: str | None = None
    name: str | None = None
    parameters: int | None = None
    quantisation: str | None = None
    dtype: str | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    context_length: int | None = None
    vocabulary: int | None = None
    experts: int | None = None
    weights_bytes: int = 0
    kv_bytes_per_token: int | None = Field(default=None, description="at 16 bits")


class WeightsView(Shape):
    source: str = Field(description="as it was asked for; of signed links without the signature")
    key: str = Field(description="the name under which the node keeps them")
    content: str = Field(description="digest of all names and contents, the same on every node that has the same files")
    bytes: int
    files: int
    path: str
    revision: str | None = Field(description="commit of a hub, or entity tag of a server")
    fetched_at: float = Field(description="Unix time")
    last_used_at: float = Field(description="Unix time")
    used_by: list[str] = Field(description="shards on this node that are assigned and use them")
    facts: FactsView | None


class NodeWeights(Shape):
    node: str
    folder: str
    free_bytes: int = Field(description="what downloads may still take on that disk")
    limit_bytes: int | None = Field(description="weights.limit_bytes of the agent; null: no limit but the disk's")
    weights: list[WeightsView]


class Silent(Shape):
    node: str
    cause: str


class FleetWeights(Shape):
    nodes: list[NodeWeights]
    unreachable: list[Silent] = Field(description="live nodes whose agent did not answer")


class RemovedWeightsView(Shape):
    sources: list[str]
    freed_bytes: int


class VerifyBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: str | None = Field(default=None, description="key, source or the beginning of the content's digest; null: all")


class FetchBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(min_length=1, max_length=4096)


class VerifyStep(Shape):
    """``wrong`` and ``files`` are in the last line only."""

    source: str
    bytes_done: int
    bytes_total: int
    files: int | None = None
    wrong: list[str] | None = Field(default=None, description="files that were wrong and are removed, as source: path")


class FetchStep(Shape):
    """``path`` and ``facts`` are in the last line only, whose phase is ready."""

    phase: str
    bytes_done: int
    bytes_total: int | None = None
    bytes_fetched: int
    bytes_per_second: float
    place: str | None = None
    waits_for: str | None = None
    path: str | None = None
    facts: FactsView | None = None


def node_weights(node: str, found: Any) -> NodeWeights:
    """From a WeightsList."""
    return NodeWeights(
        node=node,
        folder=found.folder,
        free_bytes=found.free_bytes,
        limit_bytes=found.limit_bytes or None,
        weights=[_view(each) for each in found.weights],
    )


def _view(stored: Any) -> WeightsView:
    return WeightsView(
        source=stored.source,
        key=stored.key,
        content=stored.content,
        bytes=stored.bytes,
        files=stored.files,
        path=stored.path,
        revision=stored.revision or None,
        fetched_at=stored.fetched_at,
        last_used_at=stored.last_used_at,
        used_by=list(stored.used_by),
        facts=_facts(stored.facts) if stored.HasField("facts") else None,
    )


def _facts(facts: Any) -> FactsView:
    return FactsView.model_validate({field.name: value for field, value in facts.ListFields()} | {"format": facts.format})


def verify_step(step: Any) -> VerifyStep:
    result = step.result if step.HasField("result") else None
    return VerifyStep(
        source=step.source,
        bytes_done=step.bytes_done,
        bytes_total=step.bytes_total,
        files=result.files if result is not None else None,
        wrong=list(result.wrong) if result is not None else None,
    )


def fetch_step(step: Any) -> FetchStep:
    return FetchStep(
        phase=step.phase,
        bytes_done=step.bytes_done,
        bytes_total=step.bytes_total if step.HasField("bytes_total") else None,
        bytes_fetched=step.bytes_fetched,
        bytes_per_second=round(step.bytes_per_second, 1),
        place=step.place or None,
        waits_for=step.waits_for or None,
        path=step.path or None,
        facts=_facts(step.facts) if step.HasField("facts") else None,
    )
