from __future__ import annotations

from pathlib import Path

import pytest

from llmgw_base.config import ConfigError, EtcdSection, LogSection, Section, load


class Inner(Section):
    retries: int = 3
    name: str = "n"


class Config(Section):
    etcd: EtcdSection = EtcdSection()
    log: LogSection = LogSection()
    inner: Inner = Inner()
    required: int


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "agent.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_reads_file_and_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, "required: 1\ninner: {retries: 5}\n")
    config = load(Config, path, ["inner.name=x", "etcd.endpoints=[http://a:1, http://b:2]", "required=7"])
    assert (config.required, config.inner.retries, config.inner.name) == (7, 5, "x")
    assert config.etcd.endpoints == ["http://a:1", "http://b:2"]


def test_no_file_means_defaults_and_overrides() -> None:
    assert load(Config, None, ["required=2"]).log.level == "info"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("required: x\n", ["agent.yaml", "required", "integer", "'x'"]),
        ("", ["agent.yaml", "required", "missing"]),
        ("required: 1\nreqired: 2\n", ["agent.yaml", "reqired", "unknown key", "did you mean required?"]),
        ("required: 1\ninner: {retrys: 2}\n", ["inner.retrys", "did you mean retries?"]),
        ("required: 1\ninner: {zzz: 2}\n", ["inner.zzz", "known here: name, retries"]),
        ("required: 1\nrequired: 2\n", ["agent.yaml", "'required' stands twice", "line 2"]),
        ("required: [1\n", ["agent.yaml", "YAML", "line"]),
        ("- 1\n", ["agent.yaml", "keys and values", "list"]),
        (b"required: \xff\xfe\n", ["agent.yaml", "YAML"]),
        ("required: 1\netcd: {endpoints: [localhost]}\n", ["etcd.endpoints.0", "not an etcd endpoint", "http://host:2379"]),
        ("required: 1\netcd: {endpoints: []}\n", ["etcd.endpoints", "at least 1"]),
        ("required: 1\netcd: {endpoints: ['https://h:1']}\n", ["etcd", "needs tls"]),
        ("required: 1\netcd: {user: u}\n", ["etcd", "password_file", "together"]),
        ("required: 1\nlog: {level: loud}\n", ["log.level", "'debug'"]),
    ],
)
def test_errors_name_file_key_and_cause(tmp_path: Path, text: str | bytes, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(Config, write(tmp_path, text))
    for part in parts:
        assert part in str(caught.value)


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(Config, write(tmp_path, "required: x\ninner: {retries: y}\n"))
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("override", "part"),
    [("required", "key.path=value"), ("=1", "key.path=value"), ("required.x=1", "not a section"), ("required={", "YAML")],
)
def test_bad_overrides(tmp_path: Path, override: str, part: str) -> None:
    with pytest.raises(ConfigError, match="--set") as caught:
        load(Config, write(tmp_path, "required: 1\n"), [override])
    assert part in str(caught.value)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(Config, tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(Config, tmp_path)
