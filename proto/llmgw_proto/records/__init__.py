"""The JSON records stored in etcd, one module per writer."""

from llmgw_proto.records.base import BadRecordError, Record
from llmgw_proto.records.cluster import ClusterRecord, CoordinatorRecord, RouterLoad, RouterRecord
from llmgw_proto.records.engine import EngineOverride, EngineRelease, EngineSettings
from llmgw_proto.records.fabric import (
    FabricChange,
    FabricErrors,
    FabricLink,
    FabricMapRecord,
    FabricMissing,
    FabricNode,
    FabricPortsRecord,
)
from llmgw_proto.records.model import Capability, EngineName, ModelSpec, Profile, ReplicaRange, RoutingSpec, VersionOverride
from llmgw_proto.records.node import (
    AliveRecord,
    CpuFacts,
    DiskFacts,
    EngineInfo,
    GpuFacts,
    InventoryRecord,
    MemoryFacts,
    NodeStatusRecord,
)
from llmgw_proto.records.shard import (
    AssignmentRecord,
    EndpointRecord,
    GangPhase,
    GangState,
    ShardRecord,
    ShardRole,
    ShardState,
    Timings,
)
from llmgw_proto.records.weights import WeightsRecord

__all__ = [
    "AliveRecord",
    "AssignmentRecord",
    "BadRecordError",
    "Capability",
    "ClusterRecord",
    "CoordinatorRecord",
    "CpuFacts",
    "DiskFacts",
    "EndpointRecord",
    "EngineInfo",
    "EngineName",
    "EngineOverride",
    "EngineRelease",
    "EngineSettings",
    "FabricChange",
    "FabricErrors",
    "FabricLink",
    "FabricMapRecord",
    "FabricMissing",
    "FabricNode",
    "FabricPortsRecord",
    "GangPhase",
    "GangState",
    "GpuFacts",
    "InventoryRecord",
    "MemoryFacts",
    "ModelSpec",
    "NodeStatusRecord",
    "Profile",
    "Record",
    "ReplicaRange",
    "RouterLoad",
    "RouterRecord",
    "RoutingSpec",
    "ShardRecord",
    "ShardRole",
    "ShardState",
    "Timings",
    "VersionOverride",
    "WeightsRecord",
]
