"""What the coordinator knows of etcd: a mirror fed by watches, and consistent views of it."""

from llmgw_coordinator.state.mirror import Mirror
from llmgw_coordinator.state.view import Stored, View

__all__ = ["Mirror", "Stored", "View"]
