"""Model weights on a node: fetched once, verified, resumed, shared, and never evicted while something runs them.

::

    async with WeightStore(Path("/var/lib/llmgw/agent/weights"), clock=clock, settings=settings, peers=None) as store:
        weights = await store.ensure("hf:org/repo:Q4_K_M", progress=show, pin="chat-k3x9q.0")
        weights.path, weights.total_bytes, weights.digests, weights.facts
        await store.release("hf:org/repo:Q4_K_M", "chat-k3x9q.0")

Sources: ``/path`` and ``file:///path`` (used in place), ``https://`` and ``http://`` URLs with an optional ``#sha256=``,
``hf:org/repo[@revision][:file, glob or quantisation]``. Peers and the fleet's mirror are asked before the internet.

What a caller relies on:

* one download per content, however many ask, in this process or in another one that shares the root;
* what arrived before a kill, a cut or a full disk is continued, not fetched again;
* a file becomes visible only when it matches its digest and is on the disk;
* connections go only to addresses that were checked, at each redirect and each resolution;
* the event loop is never blocked by network, disk or hashing: these run in the store's own threads.

``peer_app(store, ...)`` serves verified files to other agents. ``check_loadable`` judges a GGUF by its header. ``unpack``
opens archives safely. Errors are in :mod:`.errors`; ``error.recoverable`` says whether a later try can succeed.
"""

from .archives import Limits, unpack
from .errors import (
    AccessDeniedError,
    AddressRefusedError,
    ArchiveError,
    DigestMismatchError,
    DiskError,
    InUseError,
    MetadataError,
    NoSpaceError,
    SourceInvalidError,
    SourceNotFoundError,
    SourceUnavailableError,
    UnloadableError,
    WeightsError,
)
from .loadable import check_loadable
from .manifest import Manifest
from .model_facts import ModelFacts
from .peers import Peer, PeerSource, Sharing, Turn
from .serve import peer_app
from .settings import WeightsSettings
from .sources import parse_source
from .store import WeightStore
from .views import Preflight, Progress, Stored, Weights

__all__ = [
    "AccessDeniedError",
    "AddressRefusedError",
    "ArchiveError",
    "DigestMismatchError",
    "DiskError",
    "InUseError",
    "Limits",
    "Manifest",
    "MetadataError",
    "ModelFacts",
    "NoSpaceError",
    "Peer",
    "PeerSource",
    "Preflight",
    "Progress",
    "Sharing",
    "SourceInvalidError",
    "SourceNotFoundError",
    "SourceUnavailableError",
    "Stored",
    "Turn",
    "UnloadableError",
    "WeightStore",
    "Weights",
    "WeightsError",
    "WeightsSettings",
    "check_loadable",
    "parse_source",
    "peer_app",
    "unpack",
]
