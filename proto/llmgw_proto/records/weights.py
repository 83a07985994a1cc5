"""Which nodes have which weights, so that they can give them to each other."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from llmgw_proto.records.base import Record


class WeightsRecord(Record):
    """``weights/<content>/<node>``, under the agent's lease. Of the nodes that fetch, the one whose key was created first asks
    the source; the others wait for it.
    """

    node: str
    url: str = Field(description="where the node's agent gives files, without the path")
    state: Literal["fetching", "here"]
