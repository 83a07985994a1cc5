"""What uv's words mean for the operator. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """``final``: trying again cannot help."""

    text: str
    final: bool


@dataclass(frozen=True, slots=True)
class _Rule:
    regex: re.Pattern[str]
    text: str
    final: bool


_RULES = (
    _Rule(
        re.compile(r"Hash mismatch for `([^`]+)`"),
        "the file of {0} has another hash than the lock says: it was changed or damaged, or the lock is for another build. "
        "Check where it comes from, then correct the file or the lock",
        True,
    ),
    _Rule(
        re.compile(r"no trusted hash was provided for: `([^`]+)`|all requirements must have their versions pinned.*?: (\S+)"),
        "the lock has no hash for {0}. Make the lock again with `uv pip compile --generate-hashes`",
        True,
    ),
    _Rule(
        re.compile(r"No space left on device|os error 28|Disk quota exceeded"),
        "the disk is full. Free space below the agent's state_dir",
        False,
    ),
    _Rule(
        re.compile(
            r"Failed to (?:fetch|download)|error sending request|dns error|[Cc]onnection (?:refused|reset)|operation timed out"
            r"|Request failed after|tunnel error|invalid peer certificate"
        ),
        "a package source does not answer: {line}. Check the network and the index, or use an offline bundle",
        False,
    ),
    _Rule(
        re.compile(r"ecause (\S+) has no wheels with a matching|no (?:matching )?wheels? .*?for ([\w.=-]+)"),
        "there is no build of {0} for this Python and platform. Choose another version or another engines.install.…python",
        True,
    ),
    _Rule(
        re.compile(
            r"ecause (?:there (?:is|are) no versions? of )?([\w.\[\]=<>!-]+)[^\n]*? (?:was|were) not found|"
            r"ecause there (?:is|are) no versions? of ([\w.=<>!-]+)"
        ),
        "{0} is not where packages are looked for. Correct version, index and find_links, or add its wheel to the bundle",
        True,
    ),
    _Rule(
        re.compile(r"No solution found when resolving|requirements are unsatisfiable"),
        "the requirements contradict each other: {line}. Correct requirements or overrides",
        True,
    ),
    _Rule(
        re.compile(r"No interpreter found|Failed to inspect Python|not a valid interpreter|Querying Python"),
        "Python cannot be used: {line}. Correct engines.install.…python",
        True,
    ),
    _Rule(
        re.compile(r"Failed to build `?([^`\s]+)`?"),
        "{0} has no wheel and cannot be built here. Add a wheel of it to find_links, or install what building needs",
        True,
    ),
    _Rule(
        re.compile(r"Couldn't parse requirement|Expected .*?(?:found|to start)|Invalid (?:hash|version|requirement)"),
        "a requirement cannot be read: {line}. Correct the lock or requirements",
        True,
    ),
)


def explain(status: int, lines: Sequence[str]) -> Reason:
    """``lines``: what uv wrote, oldest first."""
    whole = " ".join(" ".join(lines).split())
    for rule in _RULES:
        match = rule.regex.search(whole)
        if match is not None:
            name = next((group for group in match.groups() if group), "")
            line = next((each.strip() for each in lines if rule.regex.search(each)), match[0])
            return Reason(rule.text.format(name.strip("`,. "), line=line[:200]), rule.final)
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if status < 0:
        return Reason(f"uv was killed by signal {-status}. If nobody did that, the host may be out of memory", False)
    return Reason(f"uv exited with {status}: {last[:300]}", False)
