"""What the resources of the admin API have in common."""

from __future__ import annotations

from dataclasses import dataclass

from llmgw_base.clock import Clock
from llmgw_base.etcd.api import Store
from llmgw_coordinator.api.present import Facts
from llmgw_coordinator.api.problems import ApiError, unavailable
from llmgw_coordinator.leader.election import Election
from llmgw_coordinator.leader.loop import Reconciler
from llmgw_coordinator.specs import Specs
from llmgw_coordinator.state import Mirror


@dataclass(frozen=True, slots=True)
class Context:
    store: Store
    mirror: Mirror
    election: Election
    reconciler: Reconciler
    specs: Specs
    clock: Clock

    def facts(self) -> Facts:
        """What is known now.

        Raises:
            ApiError: 503, nothing is known yet.
        """
        if not self.mirror.is_synced:
            raise unavailable(self.mirror.trouble or "it has not been read yet")
        return Facts(self.mirror.view(), self.reconciler.outcome, self.reconciler.gone_for, self.mirror.stale_for)

    def require_writable(self) -> None:
        """
        Raises:
            ApiError: 503, the store is not the one known before, so nothing may be written into it.
        """
        frozen = self.mirror.frozen
        if frozen is not None:
            raise ApiError(
                503,
                "store_frozen",
                f"etcd is not the store known before: {frozen}",
                "bring the right etcd back, or restart the coordinators to accept this one",
                headers={"Retry-After": "30"},
            )

    def problems(self) -> list[str]:
        """Everything that an operator should look at, the gravest first."""
        mirror = self.mirror
        found = [mirror.trouble, self.election.problem, self.reconciler.trouble]
        if not mirror.is_synced:
            return [each for each in found if each]
        view = mirror.view()
        plan = self.reconciler.outcome
        if view.leader is None:
            found.append("no coordinator leads, so nothing is placed; it takes at most leader_ttl until one does")
        found += plan.problems
        found += [f"{cause}; what was known of it before stays in force" for cause in view.unreadable.values()]
        found += [f"model {name} cannot be planned: {type(error).__name__}: {error}" for name, error in plan.failures.items()]
        found += [f"node {node} is away for {seconds:.0f} s" for node, seconds in sorted(self.reconciler.gone_for.items())]
        for node, stored in sorted(view.inventories.items()):
            found += [f"node {node}: {problem}" for problem in stored.record.problems]
        for node, status in sorted(view.statuses.items()):
            found += [f"node {node}: {problem}" for problem in status.record.problems]
        return [each for each in found if each]
