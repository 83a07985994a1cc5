"""KV-cache events of vLLM and SGLang: what each engine has cached, as it changes.

::

    await Subscriber("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558").run(deliver)

``deliver`` gets, in order: :class:`Batch` (decoded events and the payload as it was sent), :class:`Restarted` (forget all),
:class:`Lost` (some batches cannot be had), :class:`Undecodable`. :func:`decode_batch` reads one batch of any engine's version.
"""

from .decode import decode_batch, decode_event
from .errors import KvEventError
from .events import (
    AllBlocksCleared,
    Batch,
    BlockHash,
    BlockRemoved,
    BlockStored,
    Delivery,
    Event,
    Lost,
    Restarted,
    Token,
    Undecodable,
    UnknownEvent,
)
from .follow import Follower, ReplayIncompleteError
from .subscriber import Subscriber

__all__ = [
    "AllBlocksCleared",
    "Batch",
    "BlockHash",
    "BlockRemoved",
    "BlockStored",
    "Delivery",
    "Event",
    "Follower",
    "KvEventError",
    "Lost",
    "ReplayIncompleteError",
    "Restarted",
    "Subscriber",
    "Token",
    "Undecodable",
    "UnknownEvent",
    "decode_batch",
    "decode_event",
]
