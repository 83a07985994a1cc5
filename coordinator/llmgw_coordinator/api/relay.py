"""Relays what an agent streams, one JSON object a line, the last of which is the result or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web
from grpc import aio
from pydantic import BaseModel

from llmgw_base.clock import Clock
from llmgw_base.etcd.timers import done_within, reap
from llmgw_coordinator.api import audit
from llmgw_coordinator.api.problems import ApiError
from llmgw_coordinator.api.shapes import ErrorBody, ErrorView

#: Seconds in which a refusal can still become an error answer; after that the answer has begun.
FIRST_WAIT = 1.0
#: Seconds of silence after which it is looked whether the node is still alive; twice not is not.
LOOK_EVERY = 5.0


async def coming(clock: Clock, following: asyncio.Future[Any], gone: Callable[[], ApiError | None]) -> Any:
    """The next message of a stream, however long it takes.

    Raises:
        ApiError: the node is gone, and whoever waits would wait for ever.
        AioRpcError: as the stream does.
    """
    before = None
    while not await done_within(clock, following, LOOK_EVERY):
        now = gone()
        if now is not None and before is not None:
            raise now
        before = now
    return following.result()


async def relay_lines(
    request: web.Request,
    steps: Any,
    shape: Callable[[Any], BaseModel],
    answer: Callable[[aio.AioRpcError], ApiError],
    clock: Clock,
    gone: Callable[[], ApiError | None],
) -> web.StreamResponse:
    """``steps`` is a stream of messages. A failure after the answer has begun is its last line, in the shape of all errors.

    Raises:
        ApiError: a failure before that.
    """
    messages = steps.__aiter__()
    following = asyncio.ensure_future(anext(messages, None))
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
    begun = False
    try:
        await done_within(clock, following, FIRST_WAIT)
        if following.done() and isinstance(error := following.exception(), aio.AioRpcError):
            raise answer(error)
        response.enable_chunked_encoding()
        await response.prepare(request)
        begun = True
        while (message := await coming(clock, following, gone)) is not None:
            await response.write(shape(message).model_dump_json(exclude_none=True).encode() + b"\n")
            following = asyncio.ensure_future(anext(messages, None))
    except (aio.AioRpcError, ApiError) as failure:
        if not begun:
            raise
        error = answer(failure) if isinstance(failure, aio.AioRpcError) else failure
        audit.failed(request, error.code)
        body = ErrorView(error=ErrorBody(code=error.code, message=error.message, remedy=error.remedy))
        await response.write(body.model_dump_json().encode() + b"\n")
    finally:
        await reap(following)
    await response.write_eof()
    return response
