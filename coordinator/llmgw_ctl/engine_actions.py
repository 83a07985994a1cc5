"""What `engine` commands do besides asking."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmgw_ctl.errors import BadInputError, UnreachableError

if TYPE_CHECKING:
    from llmgw_ctl.client import AdminClient
    from llmgw_ctl.session import Session

#: Between two lines of the same phase, when nobody sees them replaced.
_EVERY = 5.0


def read_labels(labels: list[str] | None) -> dict[str, str]:
    """``key=value`` each. Raises BadInputError."""
    found = {}
    for each in labels or []:
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise BadInputError(f"--label {each!r} is not a label", "write key=value")
        found[key] = value
    return found


def read_lock(path: Path) -> str:
    """Raises BadInputError."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadInputError(
            f"lock {path} cannot be read: {cause}", "make one with `uv pip compile --generate-hashes`"
        ) from error


def tell_settings(session: Session, settings: dict[str, Any]) -> None:
    """What is now set for the engine."""
    from llmgw_ctl.views.engines import settings_grid

    if not session.for_people:
        session.data(settings)
    elif settings.get("version") is None and not settings.get("overrides") and not settings.get("releases"):
        session.terminal.line(f"nothing is set for {settings.get('engine')} any more")
    else:
        session.terminal.grid(settings_grid([settings]))


def install(session: Session, engine: str, node: str, version: str | None, *, again: bool) -> None:
    """Follows an installation to its end."""
    from llmgw_ctl.views.engines import step_line

    async def follow(client: AdminClient) -> dict[str, Any]:
        phase, told, last = "", float("-inf"), {}
        async for step in client.install_engine(node, engine, version, reinstall=again):
            last = step
            now = session.clock.monotonic()
            if session.for_people and (step.get("phase") != phase or now - told >= _EVERY) and not step.get("result"):
                phase, told = str(step.get("phase")), now
                session.terminal.note(step_line(engine, node, step))
        return last

    result = session.call(follow).get("result")
    if not isinstance(result, dict):
        raise UnreachableError(f"the agent of {node} did not say how the installation ended", "see `llmgwctl engine list`")
    if not session.for_people:
        session.data(result)
        return
    detail = f" ({result['detail']})" if result.get("detail") else ""
    session.terminal.line(f"{engine} {result.get('version')} is installed on {node}{detail}")
