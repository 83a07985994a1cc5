"""A model's state in one word."""

from __future__ import annotations

import pytest

from llmgw_coordinator.api.model_state import state_of
from llmgw_coordinator.api.shapes import ModelState, ReplicaView

READY, STARTING, SUSPECT = "Ready", "Starting", "Suspect"
REJECTED, RETRYING, BROKEN = "Rejected", "Failed, retrying", "Failed"
LEAVING, AWAY, DRAINED = "Ready, leaving", "Ready, away", "Ready, drained"


def replica(index: int, kind: str) -> ReplicaView:
    state, _, more = kind.partition(", ")
    return ReplicaView(
        id=f"r{index}",
        model="m",
        node="n",
        nodes=["n"],
        epoch=1,
        state=state,
        reason="",
        url=None,
        pid=None,
        port=None,
        restarts=0,
        started_at=None,
        next_attempt_at=9.0 if more == "retrying" else None,
        gpus=[],
        draining=more == "leaving",
        drained=more == "drained",
        generation=0,
        engine="llamacpp",
        engine_version="",
        log_path="",
        shards=[],
    )


@pytest.mark.parametrize(
    ("wanted", "kinds", "flags", "state"),
    [
        (2, [READY, READY], "", ModelState.READY),
        (2, [READY, READY], "waits", ModelState.READY),
        (2, [READY, READY, READY], "", ModelState.PROGRESSING),
        (2, [READY, READY, LEAVING], "", ModelState.READY),
        (2, [READY, DRAINED], "", ModelState.DEGRADED),
        (1, [DRAINED], "", ModelState.DEGRADED),
        (1, [READY, DRAINED], "", ModelState.PROGRESSING),
        (2, [READY, READY], "outdated", ModelState.PROGRESSING),
        (2, [READY, STARTING], "", ModelState.PROGRESSING),
        (2, [READY, RETRYING], "", ModelState.PROGRESSING),
        (2, [READY, REJECTED], "", ModelState.DEGRADED),
        (2, [READY, BROKEN], "waits", ModelState.DEGRADED),
        (2, [READY, SUSPECT], "", ModelState.DEGRADED),
        (2, [READY, AWAY], "", ModelState.DEGRADED),
        (2, [READY], "waits", ModelState.DEGRADED),
        (2, [READY], "", ModelState.PROGRESSING),
        (1, [STARTING], "", ModelState.PROGRESSING),
        (1, [RETRYING], "", ModelState.PROGRESSING),
        (1, [REJECTED], "waits", ModelState.FAILED),
        (2, [REJECTED, BROKEN], "", ModelState.FAILED),
        (2, [REJECTED, STARTING], "", ModelState.PROGRESSING),
        (2, [STARTING], "waits", ModelState.PENDING),
        (1, [], "waits", ModelState.PENDING),
        (1, [], "", ModelState.PROGRESSING),
        (1, [LEAVING], "waits", ModelState.PENDING),
        (0, [], "", ModelState.SCALED_TO_ZERO),
        (0, [LEAVING], "", ModelState.PROGRESSING),
        (1, [READY], "failed", ModelState.FAILED),
    ],
)
def test_state(wanted: int, kinds: list[str], flags: str, state: ModelState) -> None:
    replicas = [replica(index, kind) for index, kind in enumerate(kinds)]
    away = {f"r{index}" for index, kind in enumerate(kinds) if kind == AWAY}
    found = state_of(
        wanted,
        replicas,
        away=away,
        outdated="outdated" in flags,
        planning_failed="failed" in flags,
        waits="waits" in flags,
    )
    assert found is state
