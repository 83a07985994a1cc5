"""Which header fields pass, in both directions, and which ones the router reads. Pure tables.

A field that is not in a table passes unchanged.
"""

from __future__ import annotations

# What happens to a request field. Small integers, since the parser looks one up for each field of each request.
PASS = -1
DROP = 0
HOST = 1
LENGTH = 2
CODING = 3
CONNECTION = 4
BEARER = 5
API_KEY = 6
EXPECT = 7
REQUEST_ID = 8
ORIGIN = 9
UPGRADE = 10
TYPE = 11
SESSION = 12
PRIORITY = 13
HEADERS_WANTED = 15
PROTOCOLS = 16
ACCEPT = 17

_DROPPED = [
    # hop by hop
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    # the client's own affairs: credentials, and what only makes sense between it and this router
    "cookie",
    "accept-encoding",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
    "forwarded",
    "via",
    "max-forwards",
]

REQUEST: dict[bytes, int] = {name.encode(): DROP for name in _DROPPED} | {
    b"host": HOST,
    b"content-length": LENGTH,
    b"transfer-encoding": CODING,
    b"connection": CONNECTION,
    b"authorization": BEARER,
    b"x-api-key": API_KEY,
    b"api-key": API_KEY,
    b"expect": EXPECT,
    b"x-request-id": REQUEST_ID,
    b"origin": ORIGIN,
    b"upgrade": UPGRADE,
    b"content-type": TYPE,
    b"x-llmgw-priority": PRIORITY,
    b"access-control-request-method": DROP,
    b"access-control-request-headers": HEADERS_WANTED,
    b"sec-websocket-protocol": PROTOCOLS,
    b"accept": ACCEPT,
}

KEPT_AS: dict[int, str] = {
    API_KEY: "api_key",
    EXPECT: "expect",
    ORIGIN: "origin",
    UPGRADE: "upgrade",
    PRIORITY: "priority",
    HEADERS_WANTED: "headers_wanted",
    PROTOCOLS: "protocols",
    ACCEPT: "accept",
}
"""Attributes of a request's head that hold a field's value as it came."""

# What an answer's field is to the router; the rest passes.
R_DROP = 0
R_LENGTH = 1
R_CODING = 2
R_CONNECTION = 3
R_TYPE = 4

RESPONSE: dict[bytes, int] = {
    b"connection": R_CONNECTION,
    b"keep-alive": R_DROP,
    b"proxy-connection": R_DROP,
    b"proxy-authenticate": R_DROP,
    b"te": R_DROP,
    b"trailer": R_DROP,
    b"upgrade": R_DROP,
    b"server": R_DROP,
    b"x-request-id": R_DROP,
    b"set-cookie": R_DROP,
    b"access-control-allow-origin": R_DROP,
    b"access-control-allow-credentials": R_DROP,
    b"access-control-expose-headers": R_DROP,
    b"alt-svc": R_DROP,
    b"strict-transport-security": R_DROP,
    b"content-length": R_LENGTH,
    b"transfer-encoding": R_CODING,
    b"content-type": R_TYPE,
}

REASONS: dict[int, bytes] = {
    200: b"OK",
    201: b"Created",
    202: b"Accepted",
    204: b"No Content",
    206: b"Partial Content",
    301: b"Moved Permanently",
    302: b"Found",
    304: b"Not Modified",
    307: b"Temporary Redirect",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    409: b"Conflict",
    413: b"Content Too Large",
    415: b"Unsupported Media Type",
    417: b"Expectation Failed",
    422: b"Unprocessable Content",
    426: b"Upgrade Required",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    499: b"Client Closed Request",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
    529: b"Overloaded",
}

STATUS_LINES: dict[int, bytes] = {
    status: b"HTTP/1.1 %d %b\r\n" % (status, REASONS.get(status, b"Status")) for status in range(100, 600)
}
