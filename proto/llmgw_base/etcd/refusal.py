"""What an error of a gRPC call to etcd means, and what may be done about it. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import grpc

from llmgw_base.etcd.errors import (
    CompactedError,
    LeaseLostError,
    StoreAuthError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
)


class Reaction(enum.Enum):
    NOT_DONE = "the server surely did nothing; anything may be sent again, to another member"
    UNKNOWN = "it may have been done; only what is harmless twice may be sent again"
    AUTHENTICATE = "the token was not accepted, nothing was done; get a new one and send again"
    REFUSED = "an answer like any other; raise it"


Error = type[StoreUnavailableError | StoreRefusedError | CompactedError | LeaseLostError]


@dataclass(frozen=True, slots=True)
class Verdict:
    reaction: Reaction
    error: Error = StoreUnavailableError
    remedy: str = ""


_SPACE = "compact and defragment it or raise its quota, then disarm the alarm (etcdctl alarm disarm)"
_WHO = "check etcd.user and etcd.password_file"

#: By words in the text: etcd's codes alone do not tell these apart.
_BY_TEXT: tuple[tuple[str, Verdict], ...] = (
    ("invalid auth token", Verdict(Reaction.AUTHENTICATE, StoreAuthError, _WHO)),
    ("revision of auth store is old", Verdict(Reaction.AUTHENTICATE, StoreAuthError, _WHO)),
    ("user name is empty", Verdict(Reaction.AUTHENTICATE, StoreAuthError, "set etcd.user and etcd.password_file")),
    ("authentication failed", Verdict(Reaction.REFUSED, StoreAuthError, _WHO)),
    ("permission denied", Verdict(Reaction.REFUSED, StoreAuthError, "grant the user's role the permission on these keys")),
    ("database space exceeded", Verdict(Reaction.REFUSED, StoreFullError, _SPACE)),
    ("lease not found", Verdict(Reaction.REFUSED, LeaseLostError, "it expired or was revoked; grant another")),
    ("revision has been compacted", Verdict(Reaction.REFUSED, CompactedError)),
    ("future revision", Verdict(Reaction.NOT_DONE)),
    ("no leader", Verdict(Reaction.NOT_DONE)),
    ("not capable", Verdict(Reaction.NOT_DONE)),
    ("too many requests", Verdict(Reaction.NOT_DONE)),
    ("for learner", Verdict(Reaction.NOT_DONE)),
)

_CODE = grpc.StatusCode
_BY_CODE: dict[grpc.StatusCode, Verdict] = {
    _CODE.UNAUTHENTICATED: Verdict(Reaction.AUTHENTICATE, StoreAuthError, _WHO),
    _CODE.PERMISSION_DENIED: Verdict(Reaction.REFUSED, StoreAuthError, "grant the user's role the permission on these keys"),
    **dict.fromkeys(
        (
            _CODE.INVALID_ARGUMENT,
            _CODE.FAILED_PRECONDITION,
            _CODE.OUT_OF_RANGE,
            _CODE.NOT_FOUND,
            _CODE.ALREADY_EXISTS,
            _CODE.UNIMPLEMENTED,
            _CODE.RESOURCE_EXHAUSTED,
        ),
        Verdict(Reaction.REFUSED, StoreRefusedError),
    ),
}


def judge(code: grpc.StatusCode | None, details: str) -> Verdict:
    """``code`` None: there is only a text, as when a watch is cancelled."""
    for words, verdict in _BY_TEXT:
        if words in details:
            return verdict
    if code is None:
        return Verdict(Reaction.UNKNOWN)
    return _BY_CODE.get(code, Verdict(Reaction.UNKNOWN))
