"""The section ``engines.gang`` of the configuration."""

from __future__ import annotations

from pydantic import Field

from llmgw_base.config import Section


class GangSection(Section):
    """For replicas over several nodes."""

    address: str | None = Field(
        default=None, description="by which engines on other nodes reach those on this one; None: node.address"
    )
    wait_seconds: float = Field(
        default=600, gt=0, description="how long the head waits for other nodes of which nothing new is heard"
    )
    link_test: bool = Field(default=True, description="the head tests its link to each other node before each start")
    link_seconds: float = Field(default=0.5, gt=0, le=10, description="how long it measures")
    minimum_gbps: float = Field(default=0, ge=0, description="a link that gives less is too slow to start; 0: any will do")
