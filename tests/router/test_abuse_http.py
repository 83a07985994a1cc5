"""HTTP as attackers and broken clients write it, over bare sockets: refused or understood, and never passed on as it came."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw_testing.fake_engine import FakeEngine
from llmgw_testing.fake_openai import LAST_CHUNK, chunk
from llmgw_testing.raw_http import Answer, ClosedEarlyError, RawClient, ask, ask_chat, build, chat
from llmgw_testing.router_process import RouterProcess

BODY = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
PATH = b"/v1/chat/completions"
HEAD_SECONDS = 1.0


@dataclass
class Pair:
    router: RouterProcess
    engine: FakeEngine

    @property
    def port(self) -> int:
        return self.router.port


@pytest.fixture(scope="module")
def running() -> Iterator[Pair]:
    limits = {
        "limits.head_seconds": HEAD_SECONDS,
        "limits.body_grace_seconds": 1,
        "limits.keep_alive_seconds": 3,
        # Probes would be seen by the engine among what the abuse left there.
        "health.probe_all": "false",
    }
    names = ["m", "org/m", "größe-模型"]
    with FakeEngine(*names) as engine, RouterProcess({"e1": (engine.url, names)}, settings=limits) as router:
        yield Pair(router, engine)


@pytest.fixture
def pair(running: Pair) -> Iterator[Pair]:
    """Before and after each abuse the router serves, and the engine has seen nothing that is not well-formed."""
    running.engine.reset_state()
    yield running
    running.engine.default = running.engine.engine.answer
    assert ask(running.port, "GET", "/health").status == 200
    assert ask_chat(running.port).status == 200
    assert not running.engine.broken, running.engine.broken


def lines(*items: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([*items, b"", b""]) + body


def post(*headers: bytes, body: bytes = BODY, version: bytes = b"HTTP/1.1", target: bytes = PATH) -> bytes:
    return lines(b"POST " + target + b" " + version, b"Host: r", *headers, body=body)


LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKS = b"Transfer-Encoding: chunked"
CHUNKED_BODY = chunk(BODY) + LAST_CHUNK
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: r\r\n\r\n"

# Each must be refused with a 4xx or 5xx of the router, the connection closed, the engine untouched.
REFUSED: dict[str, bytes] = {
    # two readings of where the body ends
    "length and chunked": post(LENGTH, CHUNKS, body=CHUNKED_BODY),
    "chunked and length": post(CHUNKS, LENGTH, body=CHUNKED_BODY),
    "length zero and chunked": post(b"Content-Length: 0", CHUNKS, body=CHUNKED_BODY),
    "length and chunked with smuggled request": post(b"Content-Length: 4", CHUNKS, body=LAST_CHUNK + SMUGGLED),
    "two lengths that differ": post(LENGTH, b"Content-Length: 5"),
    "two lengths that agree": post(LENGTH, LENGTH),
    "length list": post(b"Content-Length: %d, %d" % (len(BODY), len(BODY))),
    "length with plus": post(b"Content-Length: +%d" % len(BODY)),
    "length negative": post(b"Content-Length: -1"),
    "length hexadecimal": post(b"Content-Length: 0x39"),
    "length with inner space": post(b"Content-Length: 5 7"),
    "length not a number": post(b"Content-Length: many"),
    "length empty": post(b"Content-Length:"),
    "length beyond 64 bits": post(b"Content-Length: 99999999999999999999"),
    "length with underscore": post(b"Content-Length: 5_7"),
    "coding unknown": post(b"Transfer-Encoding: xchunked", body=CHUNKED_BODY),
    "coding gzip then chunked": post(b"Transfer-Encoding: gzip, chunked", body=CHUNKED_BODY),
    "coding chunked twice": post(b"Transfer-Encoding: chunked, chunked", body=CHUNKED_BODY),
    "coding chunked not last": post(b"Transfer-Encoding: chunked, identity", body=CHUNKED_BODY),
    "coding identity": post(b"Transfer-Encoding: identity", LENGTH),
    "two codings": post(CHUNKS, b"Transfer-Encoding: identity", body=CHUNKED_BODY),
    "coding with space before the colon": post(b"Transfer-Encoding : chunked", body=CHUNKED_BODY),
    "coding with vertical tab": post(b"Transfer-Encoding:\x0bchunked", body=CHUNKED_BODY),
    "coding in quotes": post(b'Transfer-Encoding: "chunked"', body=CHUNKED_BODY),
    "coding empty": post(b"Transfer-Encoding:", LENGTH),
    "coding in HTTP/1.0": post(CHUNKS, body=CHUNKED_BODY, version=b"HTTP/1.0"),
    # chunks
    "chunk size not hexadecimal": post(CHUNKS, body=b"zz\r\n" + BODY + b"\r\n" + LAST_CHUNK),
    "chunk size negative": post(CHUNKS, body=b"-1\r\n" + BODY + b"\r\n" + LAST_CHUNK),
    "chunk size with 0x": post(CHUNKS, body=b"0x5\r\nabcde\r\n" + LAST_CHUNK),
    "chunk size beyond 64 bits": post(CHUNKS, body=b"fffffffffffffffff\r\n" + BODY),
    "chunk size empty": post(CHUNKS, body=b"\r\n" + BODY + b"\r\n" + LAST_CHUNK),
    "chunk longer than its size": post(CHUNKS, body=b"5\r\n" + BODY + b"\r\n" + LAST_CHUNK),
    "chunk size line ended by a bare LF": post(CHUNKS, body=b"%x\n%b\r\n" % (len(BODY), BODY) + LAST_CHUNK),
    "chunk extension of 20 kB": post(CHUNKS, body=b"%x;%b\r\n%b\r\n" % (len(BODY), b"e" * 20_000, BODY) + LAST_CHUNK),
    # the head
    "bare LF everywhere": post(LENGTH).replace(b"\r\n", b"\n"),
    "bare LF in one line": post(b"X-A: 1\nX-B: 2", LENGTH),
    "bare CR in a value": post(b"X-A: 1\rX-B: 2", LENGTH),
    "NUL in a value": post(b"X-A: 1\x002", LENGTH),
    "control character in a value": post(b"X-A: 1\x072", LENGTH),
    "folded line": post(b"X-A: 1\r\n 2", LENGTH),
    "folded line with tab": post(b"X-A: 1\r\n\t2", LENGTH),
    "first line begins with a space": lines(b"POST " + PATH + b" HTTP/1.1", b" Host: r", LENGTH, body=BODY),
    "name with a space": post(b"X A: 1", LENGTH),
    "space before the colon": post(b"X-A : 1", LENGTH),
    "name empty": post(b": 1", LENGTH),
    "no colon": post(b"X-A", LENGTH),
    "name not ascii": post(b"X-\xc4: 1", LENGTH),
    "name with brackets": post(b"X(A): 1", LENGTH),
    "no host": lines(b"POST " + PATH + b" HTTP/1.1", LENGTH, body=BODY),
    "two hosts": post(b"Host: other", LENGTH),
    "two hosts that agree": post(b"Host: r", LENGTH),
    "one header of 100 kB": post(b"X-A: " + b"a" * 100_000, LENGTH),
    "a name of 100 kB": post(b"X" * 100_000 + b": 1", LENGTH),
    "1000 headers": post(*[b"X-%d: 1" % number for number in range(1000)], LENGTH),
    "a target of 100 kB": post(LENGTH, target=PATH + b"?" + b"a" * 100_000),
    "a method of 100 kB": b"P" * 100_000,
    # the request line
    "HTTP/0.9": b"GET /health\r\n\r\n",
    "HTTP/0.9 with version": lines(b"GET /health HTTP/0.9", b"Host: r"),
    "HTTP/2.0": post(LENGTH, version=b"HTTP/2.0"),
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "HTTP/9.9": post(LENGTH, version=b"HTTP/9.9"),
    "version in small letters": post(LENGTH, version=b"http/1.1"),
    "version with junk": post(LENGTH, version=b"HTTP/1.1x"),
    "no version": post(LENGTH, version=b""),
    "method with a space": lines(b"PO ST " + PATH + b" HTTP/1.1", b"Host: r", LENGTH, body=BODY),
    "method not a token": lines(b"P\x00ST " + PATH + b" HTTP/1.1", b"Host: r", LENGTH, body=BODY),
    "target empty": lines(b"POST  HTTP/1.1", b"Host: r", LENGTH, body=BODY),
    "target without slash": post(LENGTH, target=b"v1/chat/completions"),
    "target with a space": post(LENGTH, target=b"/v1/chat completions"),
    "target with a tab": post(LENGTH, target=b"/v1/chat\t/completions"),
    "target with NUL": post(LENGTH, target=b"/v1/chat/completions\x00"),
    "absolute form": post(LENGTH, target=b"http://r" + PATH),
    "absolute form of another host": post(LENGTH, target=b"http://169.254.169.254/latest/meta-data"),
    "CONNECT": lines(b"CONNECT 127.0.0.1:22 HTTP/1.1", b"Host: 127.0.0.1:22"),
    # not HTTP at all
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    "binary": bytes(range(128, 256)) * 8 + b"\r\n\r\n",
    "only line ends": b"\r\n" * 2000,
}


def one_answer(client: RawClient, data: bytes) -> Answer | None:
    """What comes back; None when the peer closes without a word."""
    client.send_tolerant(data)
    try:
        return client.answer()
    except ClosedEarlyError as error:
        assert not error.got, f"half an answer: {error.got!r}"
        return None


def used(client: RawClient, pair: Pair, times: int) -> None:
    """Requests that are in order, on the same connection before; nothing learnt from them may help what follows."""
    for _ in range(times):
        client.send(post(LENGTH))
        assert client.answer().status == 200
    pair.engine.reset_state()


@pytest.mark.parametrize("before", [0, 3], ids=["first", "after others"])
@pytest.mark.parametrize("name", REFUSED)
def test_refused_and_closed_with_the_engine_untouched(pair: Pair, name: str, before: int) -> None:
    with RawClient(pair.port) as client:
        used(client, pair, before)
        answer = one_answer(client, REFUSED[name])
        assert answer is None or answer.status >= 400, answer
        assert client.closed_by_peer(), "the connection stayed open, or more came"
    assert not pair.engine.requests


@pytest.mark.parametrize(
    "name",
    [
        "length and chunked",
        "two lengths that differ",
        "two hosts",
        "no host",
        "bare LF in one line",
        "1000 headers",
        "one header of 100 kB",
        "absolute form",
        "chunk size not hexadecimal",
        "name with a space",
    ],
)
def test_refusals_say_why_in_the_shape_of_openai(pair: Pair, name: str) -> None:
    with RawClient(pair.port) as client:
        answer = one_answer(client, REFUSED[name])
    assert answer is not None
    assert answer.status in (400, 413, 414, 431)
    assert answer.error()["type"] == "invalid_request_error"
    assert answer.header("connection") == "close"


UNDERSTOOD: dict[str, bytes] = {
    "plain": post(LENGTH),
    "names in any case": post(b"cOnTeNt-LeNgTh: %d" % len(BODY)),
    "no space after the colon": post(b"Content-Length:%d" % len(BODY)),
    "spaces around the value": post(b"Content-Length: \t %d \t" % len(BODY)),
    "leading zeros": post(b"Content-Length: 000%d" % len(BODY)),
    "empty lines first": b"\r\n" + post(LENGTH),
    "chunked in capitals": post(b"Transfer-Encoding: CHUNKED", body=CHUNKED_BODY),
    "one byte a chunk": post(CHUNKS, body=b"".join(chunk(BODY[at : at + 1]) for at in range(len(BODY))) + LAST_CHUNK),
    "short chunk extension": post(CHUNKS, body=b"%x;a=b\r\n%b\r\n" % (len(BODY), BODY) + LAST_CHUNK),
    "sizes with leading zeros": post(CHUNKS, body=b"000%X\r\n%b\r\n000\r\n\r\n" % (len(BODY), BODY)),
    "trailers": post(CHUNKS, body=chunk(BODY) + b"0\r\nX-Late: 1\r\nAuthorization: Bearer late\r\n\r\n"),
    "a length among the trailers": post(CHUNKS, body=chunk(BODY) + b"0\r\nContent-Length: 3\r\n\r\n"),
    "80 headers": post(*[b"X-%d: 1" % number for number in range(80)], LENGTH),
    "bytes above ascii in a value": post(b"X-A: gr\xc3\xbc\xdf", LENGTH),
    "query": post(LENGTH, target=PATH + b"?a=b&c=%2F"),
}


@pytest.mark.parametrize("before", [0, 3], ids=["first", "after others"])
@pytest.mark.parametrize("name", UNDERSTOOD)
def test_understood_and_rebuilt(pair: Pair, name: str, before: int) -> None:
    with RawClient(pair.port) as client:
        used(client, pair, before)
        client.send(UNDERSTOOD[name])
        assert client.answer().status == 200
    (request,) = pair.engine.requests
    assert request.body == BODY
    assert request.path == PATH.decode()
    assert request.header("content-length") == str(len(BODY))
    assert not request.values("transfer-encoding")
    assert b"late" not in request.raw.lower()
    assert request.header("host") == f"127.0.0.1:{pair.engine.port}"


def test_body_that_looks_like_a_request_stays_a_body(pair: Pair) -> None:
    body = b'{"model":"m","messages":[],"x":"' + SMUGGLED.replace(b"\r\n", b"\\r\\n") + b'"}\r\n\r\n'
    with RawClient(pair.port) as client:
        client.send(post(b"Content-Length: %d" % len(body), body=body))
        assert client.answer().status == 200
        client.send(build("GET", "/v1/models"))
        assert client.answer().status == 200
    assert [request.body for request in pair.engine.requests] == [body]


def test_hop_by_hop_and_named_headers_and_credentials_stay_here(pair: Pair) -> None:
    headers = [
        "Connection: keep-alive, X-Secret-Hop",
        "X-Secret-Hop: 1",
        "Keep-Alive: timeout=5",
        "Proxy-Authorization: Basic x",
        "TE: trailers",
        "Upgrade: h2c",
        "Trailer: X-T",
        "Authorization: Bearer client-key",
        "x-api-key: client-key",
        "api-key: client-key",
        "Cookie: session=client-key",
        "X-Kept: yes",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ]
    assert ask(pair.port, "POST", "/v1/chat/completions", chat(), *headers).status == 200
    (request,) = pair.engine.requests
    assert b"client-key" not in request.raw
    for name in ("x-secret-hop", "keep-alive", "proxy-authorization", "te", "upgrade", "trailer", "authorization", "cookie"):
        assert not request.values(name), name
    assert request.header("x-kept") == "yes"
    assert (request.header("traceparent") or "").startswith("00-0af7651916cd43dd8448eb211c80319c-")


# More than one request on a connection


def test_each_request_of_a_connection_is_read_for_itself(pair: Pair) -> None:
    """Heads that are nearly the same, one after the other: length, fields, target and id are always those of this request."""
    small, large = BODY, BODY[:-1] + b',"x":"' + b"y" * 2000 + b'"}'
    variants = [
        (small, [], PATH),
        (large, [], PATH),
        (small, [b"X-A: 1"], PATH),
        (small, [b"X-A: 2"], PATH),
        (large, [b"X-A: 2", b"Connection: X-A"], PATH),
        (small, [b"X-Request-Id: one"], PATH),
        (small, [b"X-Request-Id: two"], PATH),
        (small, [], PATH + b"?a"),
        (small, [], b"/v1/completions"),
    ]
    source = random.Random(5)
    order = [source.choice(variants) for _ in range(120)] + [each for each in variants for _ in range(3)]
    ids = set()
    with RawClient(pair.port) as client:
        for body, headers, target in order:
            client.send(post(b"Content-Length: %d" % len(body), *headers, body=body, target=target))
            answer = client.answer()
            assert answer.status == 200
            ids.add(answer.header("x-request-id"))
    assert len(ids) == sum(not any(b"Request-Id" in line for line in headers) for _, headers, _ in order) + 2
    for (body, headers, target), request in zip(order, pair.engine.requests, strict=True):
        assert request.body == body
        assert request.path == target.partition(b"?")[0].decode()
        kept = b"X-A: 1" in headers or (b"X-A: 2" in headers and b"Connection: X-A" not in headers)
        assert request.values("x-a") == ([headers[0][-1:].decode()] if kept else [])


def test_pipelined_requests_are_answered_in_order(pair: Pair) -> None:
    wire = b"".join(build("POST", "/v1/chat/completions", chat(max_tokens=count)) for count in (1, 2, 3))
    with RawClient(pair.port) as client:
        client.send(wire + build("GET", "/v1/models") + build("POST", "/v1/chat/completions", chat(stream=True)))
        counts = [client.answer().json()["usage"]["completion_tokens"] for _ in range(3)]
        assert counts == [1, 2, 3]
        assert client.answer().json()["object"] == "list"
        assert client.answer().events()[-1] == "[DONE]"


def test_pipelined_after_a_stream_and_before_rubbish(pair: Pair) -> None:
    with RawClient(pair.port) as client:
        client.send(build("POST", "/v1/chat/completions", chat(stream=True)) + post(LENGTH) + REFUSED["two hosts"])
        assert client.answer().events()[-1] == "[DONE]"
        assert client.answer().status == 200
        assert client.answer().status == 400
        assert client.closed_by_peer()
    assert len(pair.engine.requests) == 2


def test_a_thousand_pipelined_requests_are_all_answered(pair: Pair) -> None:
    with RawClient(pair.port) as client:
        for _ in range(10):
            client.send(build("GET", "/v1/models") * 100)
            assert [client.answer().status for _ in range(100)] == [200] * 100


# Expect, HTTP/1.0, HEAD


def test_expect_continue_is_answered_before_the_body(pair: Pair) -> None:
    with RawClient(pair.port) as client:
        client.send(post(LENGTH, b"Expect: 100-continue", body=b""))
        assert client.receive_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(BODY)
        assert client.answer().status == 200
    (request,) = pair.engine.requests
    assert not request.values("expect")


def test_expect_continue_is_not_asked_for_a_body_that_is_too_large(pair: Pair) -> None:
    with RawClient(pair.port) as client:
        client.send(post(b"Content-Length: 99999999", b"Expect: 100-continue", body=b""))
        assert client.receive_until(b"\r\n").startswith(b"HTTP/1.1 413 ")


def test_unknown_expectation_is_417(pair: Pair) -> None:
    with RawClient(pair.port) as client:
        client.send(post(LENGTH, b"Expect: miracles"))
        assert client.answer().status == 417


def test_http_1_0_gets_no_chunks_and_is_closed(pair: Pair) -> None:
    for stream in (False, True):
        body = BODY[:-1] + (b',"stream":true}' if stream else b"}")
        with RawClient(pair.port) as client:
            client.send(lines(b"POST " + PATH + b" HTTP/1.0", b"Content-Length: %d" % len(body), body=body))
            answer = client.stream_to_end()
            assert answer.status == 200
            assert "transfer-encoding" not in {name.lower() for name, _ in answer.headers}
            assert answer.body.endswith(b"data: [DONE]\n\n") == stream
            assert client.closed_by_peer()


def test_http_1_0_keep_alive_is_kept_when_the_client_asks(pair: Pair) -> None:
    with RawClient(pair.port) as client:
        for _ in range(2):
            client.send(post(LENGTH, b"Connection: keep-alive", version=b"HTTP/1.0"))
            answer = client.answer()
            assert answer.status == 200
            assert (answer.header("connection") or "").lower() == "keep-alive"


ONCE = {
    "POST": post(LENGTH, b"Connection: close"),
    "POST without body": post(b"Content-Length: 0", b"Connection: close", body=b""),
    "GET": lines(b"GET /v1/models HTTP/1.1", b"Host: r", b"Connection: close"),
    "GET in capitals": lines(b"GET /health HTTP/1.1", b"Host: r", b"Connection: CLOSE"),
    "GET with more": lines(b"GET /health HTTP/1.1", b"Host: r", b"Connection: x-a, close"),
    "GET metrics": lines(b"GET /metrics HTTP/1.1", b"Host: r", b"Connection: close"),
    "not found": lines(b"GET /nowhere HTTP/1.1", b"Host: r", b"Connection: close"),
    "GET in HTTP/1.0": lines(b"GET /health HTTP/1.0"),
    "GET in HTTP/1.0 with host": lines(b"GET /v1/models HTTP/1.0", b"Host: r"),
}


@pytest.mark.parametrize("name", ONCE)
def test_connection_close_is_honoured(pair: Pair, name: str) -> None:
    with RawClient(pair.port) as client:
        client.send(ONCE[name])
        assert client.answer().header("connection") == "close"
        assert client.closed_by_peer()


def test_head_and_options(pair: Pair) -> None:
    for target in ("/health", "/v1/models", "/metrics"):
        head = ask(pair.port, "HEAD", target)
        assert head.status == 200, target
        with RawClient(pair.port) as client:
            client.send(build("HEAD", target, None, "Connection: close"))
            assert client.receive_to_end().endswith(b"\r\n\r\n"), f"HEAD {target} was answered with a body"
    preflight = ask(
        pair.port,
        "OPTIONS",
        "/v1/chat/completions",
        None,
        "Origin: https://app.example",
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization, content-type",
    )
    assert preflight.status in (200, 204)
    assert preflight.header("access-control-allow-origin") in ("*", "https://app.example")
    assert "POST" in (preflight.header("access-control-allow-methods") or "")
    with RawClient(pair.port) as client:
        client.send(lines(b"OPTIONS * HTTP/1.1", b"Host: r"))
        assert client.answer().status < 500
    assert not pair.engine.requests


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "BREW"])
def test_wrong_method_is_405_or_404_and_untouched(pair: Pair, method: str) -> None:
    answer = ask(pair.port, method, "/v1/chat/completions")
    assert answer.status in (400, 404, 405, 501)
    assert answer.error()
    assert not pair.engine.requests


# Paths


NOT_PATHS = [
    "/v1/..%2fadmin",
    "/v1/%2e%2e/admin",
    "/v1/../v1/chat/completions",
    "/../../etc/passwd",
    "/v1/chat%2Fcompletions",
    "/v1%2fchat/completions",
    "//v1/chat/completions",
    "/v1//chat/completions",
    "/V1/Chat/Completions",
    "/v1/chat/completions%00",
    "/v1/chat/completions;a=b",
    "/v1/chat/completions%20",
    "/v1/chat/completions/extra",
    "/v1\\chat\\completions",
    "/admin",
    "/admin/v1/status",
    "/v1",
    "/v1/unknown",
    "/%",
    "/%zz",
    "/v1/models/../../metrics",
]


@pytest.mark.parametrize("target", NOT_PATHS)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_what_is_not_on_the_list_of_paths_is_not_there(pair: Pair, method: str, target: str) -> None:
    answer = ask(pair.port, method, target, chat() if method == "POST" else None)
    assert answer.status in (400, 404, 405), answer.raw[:300]
    assert answer.error()["message"]
    assert not pair.engine.requests
    assert not pair.engine.probes


def test_models_with_slashes_and_other_letters(pair: Pair) -> None:
    for target, name in {
        "/v1/models/m": "m",
        "/v1/models/m/": "m",
        "/v1/models/org/m": "org/m",
        "/v1/models/org%2Fm": "org/m",
        "/v1/models/org%2fm": "org/m",
        "/v1/models/gr%C3%B6%C3%9Fe-%E6%A8%A1%E5%9E%8B": "größe-模型",
    }.items():
        answer = ask(pair.port, "GET", target)
        assert (answer.status, answer.json()["id"]) == (200, name), target
    raw = ask(pair.port, "GET", "/v1/models/größe-模型".encode().decode("latin-1"))
    assert raw.status in (200, 400)
    for target in ("/v1/models/nope", "/v1/models/org%252Fm", "/v1/models/%2e%2e%2fm"):
        assert ask(pair.port, "GET", target).status == 404, target
    assert ask(pair.port, "GET", "/v1/models/%ff").status in (400, 404)
    assert {card["id"] for card in ask(pair.port, "GET", "/v1/models/").json()["data"]} == {"m", "org/m", "größe-模型"}


# Slow


def test_slow_head_is_cut_off_and_others_are_served(pair: Pair) -> None:
    wire = post(LENGTH)
    slow = [RawClient(pair.port) for _ in range(40)]
    began = time.monotonic()
    for number, client in enumerate(slow):
        client.send(wire[: 10 + number])
    assert ask_chat(pair.port).status == 200
    while time.monotonic() - began < HEAD_SECONDS * 0.6:
        for client in slow:
            client.send_tolerant(b"X")
        time.sleep(0.1)
    for client in slow:
        data = client.receive_to_end()
        assert data == b"" or b" 408 " in data or b" 400 " in data
        client.close()
    assert time.monotonic() - began < 10
    assert len(pair.engine.requests) == 1


def test_slow_body_is_cut_off_and_others_are_served(pair: Pair) -> None:
    with RawClient(pair.port) as client:
        client.send(post(b"Content-Length: 100000", body=b'{"model":"m","x":"'))
        began = time.monotonic()
        while time.monotonic() - began < 15 and client.send_tolerant(b"x"):
            client.sock.settimeout(0.1)
            try:
                client.receive()
                break
            except TimeoutError:
                continue
        assert time.monotonic() - began < 10
        assert ask_chat(pair.port).status == 200
    assert len(pair.engine.requests) == 1


def test_idle_connections_are_closed_and_busy_ones_are_not(pair: Pair) -> None:
    with RawClient(pair.port) as idle, RawClient(pair.port) as used:
        used.send(build("GET", "/health"))
        assert used.answer().status == 200
        assert used.closed_by_peer()
        assert idle.closed_by_peer()


# Fuzzing

FRAGMENTS = st.sampled_from(
    [
        b"POST /v1/chat/completions HTTP/1.1\r\n",
        b"GET /health HTTP/1.1\r\n",
        b"GET /v1/models/x HTTP/1.0\r\n",
        b"Host: r\r\n",
        b"Host: r\n",
        LENGTH + b"\r\n",
        b"Content-Length: 3\r\n",
        CHUNKS + b"\r\n",
        b"Expect: 100-continue\r\n",
        b"Connection: close\r\n",
        b"Connection: upgrade\r\nUpgrade: websocket\r\n",
        b"\r\n",
        b"\r\n\r\n",
        BODY,
        CHUNKED_BODY,
        LAST_CHUNK,
        b"\x00",
        b"\xff\xfe",
        b"  ",
        b": x\r\n",
        b"X-A: b\r\n",
        b"{",
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(parts=st.lists(FRAGMENTS | st.binary(max_size=20), min_size=1, max_size=12))
def test_any_mixture_of_fragments_leaves_router_and_engine_unharmed(pair: Pair, parts: list[bytes]) -> None:
    with RawClient(pair.port, limit=5) as client:
        client.send_tolerant(b"".join(parts))
        client.sock.shutdown(1)
        data = client.receive_to_end()
    assert data == b"" or data.startswith((b"HTTP/1.1 ", b"HTTP/1.0 "))
    assert b"HTTP/1.1 500" not in data
    assert not pair.engine.broken
