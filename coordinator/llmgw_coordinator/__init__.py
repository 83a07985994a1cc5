"""The coordinator: one elected leader decides which node runs which replica; all of them serve the admin API.

Where to begin: :mod:`llmgw_coordinator.app` wires everything, :mod:`llmgw_coordinator.planner` decides (pure),
:mod:`llmgw_coordinator.leader` elects and applies, :mod:`llmgw_coordinator.state` mirrors etcd, :mod:`llmgw_coordinator.api`
is the admin API.
"""
