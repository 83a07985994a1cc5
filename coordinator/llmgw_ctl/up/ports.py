"""Listen addresses that are free."""

from __future__ import annotations

import errno
import socket

from llmgw_base.config import ConfigError
from llmgw_base.net import Listen, parse_listen, port_holder
from llmgw_ctl.errors import BadInputError, StackError

DEFAULT_ADMIN = Listen("127.0.0.1", 7080)


def parse(text: str, option: str) -> Listen:
    """Raises BadInputError when it is not an address."""
    try:
        return parse_listen(text, key=option)
    except ConfigError as error:
        raise BadInputError(str(error), f"for example {option} 127.0.0.1:8080") from error


def claim(wanted: Listen, option: str) -> Listen:
    """The address with a port that was free just now; port 0 takes any.

    Raises:
        StackError: taken, or not an address of this machine; names the holder of the port where it can be found.
    """
    family = socket.AF_INET6 if ":" in wanted.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((wanted.host, wanted.port))
            sock.listen()
        except OSError as error:
            raise StackError(*_explain(wanted, option, error)) from error
        return Listen(wanted.host, sock.getsockname()[1])


def claim_admin(text: str | None, remembered: object) -> Listen:
    """``text`` if given; else the port of the last start, the default port, or any free one, whichever is free first."""
    if text is not None:
        return claim(parse(text, "--admin-listen"), "--admin-listen")
    usual = [Listen(DEFAULT_ADMIN.host, remembered)] if isinstance(remembered, int) and 0 < remembered < 65_536 else []
    for candidate in (*usual, DEFAULT_ADMIN):
        try:
            return claim(candidate, "--admin-listen")
        except StackError:
            continue
    return claim(Listen(DEFAULT_ADMIN.host, 0), "--admin-listen")


def _explain(wanted: Listen, option: str, error: OSError) -> tuple[str, str]:
    if error.errno == errno.EADDRINUSE:
        holder = port_holder(wanted.port)
        by = f" by {holder}" if holder else ""
        return (
            f"port {wanted.port} is in use{by}: cannot listen on {wanted}",
            f"stop that, or choose another port with {option}",
        )
    if error.errno == errno.EACCES:
        return f"not allowed to listen on {wanted}", f"choose a port of 1024 or above with {option}"
    return f"cannot listen on {wanted}: {error.strerror or error}", f"choose an address of this machine with {option}"
