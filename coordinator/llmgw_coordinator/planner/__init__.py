"""Which node runs which replica: plain data in, decisions out. No clock, no I/O; random ids are handed in.

:func:`plan` compares what is wished (models) with what is planned (assignments) and what is true (shards, nodes), and returns
the decisions that bring the plan nearer to the wish. Applying them and planning again ends in a plan without decisions.
"""

from llmgw_coordinator.planner.data import (
    Assigned,
    Create,
    Decision,
    Delete,
    Move,
    Node,
    Placed,
    Plan,
    Settings,
    Update,
    World,
)
from llmgw_coordinator.planner.ids import random_replica_id
from llmgw_coordinator.planner.plan import plan

__all__ = [
    "Assigned",
    "Create",
    "Decision",
    "Delete",
    "Move",
    "Node",
    "Placed",
    "Plan",
    "Settings",
    "Update",
    "World",
    "plan",
    "random_replica_id",
]
