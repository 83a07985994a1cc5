"""Model specs from files and from the options of ``model serve``."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from llmgw_ctl.errors import BadInputError
from llmgw_ctl.spec import ServeWish, read_specs, spec_of

TWO = """\
name: a
source: /srv/a.gguf
profiles: [{engine: llamacpp}]
---
name: org/b
source: /srv/b.gguf
profiles:
  - engine: llamacpp
    memory: 2GiB
"""


def test_several_documents(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(TWO)
    assert [spec["name"] for spec in read_specs(str(file))] == ["a", "org/b"]


def test_a_folder_is_read_by_name_and_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "2.json").write_text('\t{"name": "j", "source": "/m", "profiles": [{"engine": "llamacpp"}]}')
    (tmp_path / "1.yml").write_text(TWO)
    (tmp_path / "README.md").write_text("not: [a, model")
    assert [spec["name"] for spec in read_specs(str(tmp_path))] == ["a", "org/b", "j"]


def test_a_json_list_and_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('[{"name": "x", "source": "/m", "profiles": [{"engine": "llamacpp"}]}]'))
    assert read_specs("-")[0]["name"] == "x"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no model"),
        ("name: [", "not YAML: .* at line 1"),
        ('{"name": }', "not JSON: .* at line 1, column 10"),
        ("just words", "a model is a mapping .* not text"),
        ("name: a\nsource: /m\nprofiles: [{engine: vlmm}]", r"profiles\.0\.engine"),
        ("name: a\nsource: /m\nprofiles: [{engine: llamacpp, gpu: 1}]", r"profiles\.0\.gpu: unknown key"),
        ("name: a\nprofiles: [{engine: llamacpp}]", "source is missing"),
        ("name: a\nsource: /m\nprofiles: []", "profiles"),
        (TWO.replace("org/b", "a"), r"document 2: model a stands in .*document 1 already"),
    ],
)
def test_what_is_wrong_is_named_with_file_document_and_key(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / ("models.json" if text.startswith("{") else "models.yaml")
    file.write_text(text)
    with pytest.raises(BadInputError, match=said) as caught:
        read_specs(str(file))
    assert str(file) in caught.value.message
    assert caught.value.remedy


def test_files_that_are_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="No such file"):
        read_specs(str(tmp_path / "none.yaml"))
    (tmp_path / "bin.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInputError, match="not a text file"):
        read_specs(str(tmp_path / "bin.yaml"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInputError, match=r"no \.yaml"):
        read_specs(str(tmp_path / "empty"))


def test_serve_makes_a_spec() -> None:
    wish = ServeWish("m", "models/m.gguf", None, 2, "2GiB", 1, ("-c", "4096"), ("A=b=c",), "round_robin")
    assert spec_of(wish, Path("/home/me")) == {
        "name": "m",
        "source": "/home/me/models/m.gguf",
        "profiles": [
            {"engine": "llamacpp", "gpus": 1, "args": ["-c", "4096"], "env": {"A": "b=c"}, "memory": "2GiB"},
        ],
        "replicas": {"min": 2},
        "routing": {"policy": "round_robin"},
    }


def test_words_after_dashes_mean_engine_command_without_a_source() -> None:
    spec = spec_of(ServeWish("m", command=("python3", "serve.py", "{port}")), Path("/"))
    assert spec["profiles"][0]["engine"] == "command"
    assert spec["profiles"][0]["command"] == ["python3", "serve.py", "{port}"]
    assert "source" not in spec


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (ServeWish("m"), "source is missing"),
        (ServeWish("m", "/m", engine="warp"), "engine"),
        (ServeWish("m", "/m", engine="command"), "needs command"),
        (ServeWish("m", "/m", memory="lots"), "'lots' is not a size"),
        (ServeWish("m", "/m", env=("A",)), "--env A: not KEY=VALUE"),
        (ServeWish("bad name", "/m"), "name 'bad name'"),
        (ServeWish("m", "/m", engine="llamacpp", command=("x",)), "only for engine 'command'"),
    ],
)
def test_wishes_that_cannot_be_granted(wish: ServeWish, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        spec_of(wish, Path("/"))


@pytest.mark.parametrize("source", ["/srv/m.gguf", "file:///srv/m.gguf", "hf:org/model"])
def test_absolute_sources_stay_as_they_are(source: str) -> None:
    assert spec_of(ServeWish("m", source), Path("/x"))["source"] == source
