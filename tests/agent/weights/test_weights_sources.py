from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.weights import SourceInvalidError, SourceNotFoundError, parse_source
from llmgw_agent.weights.selection import select
from llmgw_agent.weights.sources import FileSource, HubSource, UrlSource, redacted, source_key, split_names
from llmgw_testing.steady import steady

HEX = "ab" * 32


@pytest.mark.parametrize(
    ("text", "path"),
    [("/srv/m.gguf", "/srv/m.gguf"), ("file:///srv/a%20b.gguf", "/srv/a b.gguf"), ("file://localhost/srv/m", "/srv/m")],
)
def test_files(text: str, path: str) -> None:
    assert parse_source(text) == FileSource(Path(path))


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("hf:org/m", HubSource("org/m", None, None)),
        ("hf:gpt2", HubSource("gpt2", None, None)),
        ("hf://org/m@v1.0", HubSource("org/m", "v1.0", None)),
        ("hf:org/m@refs/pr/3:a/b-*.gguf", HubSource("org/m", "refs/pr/3", "a/b-*.gguf")),
        ("hf:org/m:Q4_K_M", HubSource("org/m", None, "Q4_K_M")),
    ],
)
def test_hub(text: str, parsed: HubSource) -> None:
    assert parse_source(text) == parsed


def test_urls() -> None:
    parsed = parse_source(f"https://user:p%40ss@H.example:8443/a%20b/m.gguf?x=1#sha256={HEX.upper()}")
    assert isinstance(parsed, UrlSource)
    assert parsed.credentials == "user:p@ss"
    assert parsed.files[0].url == "https://h.example:8443/a%20b/m.gguf?x=1"
    assert parsed.canonical == f"https://h.example:8443/a%20b/m.gguf?x=1#sha256={HEX}"
    assert str(parsed.files[0].digest) == f"sha256:{HEX}"
    split = parse_source("http://[::1]:80/m-00002-of-00003.gguf")
    assert isinstance(split, UrlSource)
    assert [each.url for each in split.files] == [f"http://[::1]:80/m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (" /srv/m", "blanks"),
        ("m.gguf", "no known kind"),
        ("s3://bucket/m", "no known kind"),
        ("file://other/srv/m", "on each node"),
        ("https://h", "names no file"),
        ("https://h/", "names no file"),
        ("https:///m.gguf", "names no file"),
        ("https://h/m.gguf#md5=1", "only sha256="),
        ("https://h/m.gguf#sha256=12", "64 hexadecimal"),
        (f"https://h/m-00001-of-00002.gguf#sha256={HEX}", "2 parts but 1 digests"),
        ("https://h:x/m.gguf", "Port"),
        ("hf:", "not a repository"),
        ("hf:a/b/c", "not a repository"),
        ("hf:../m", "not a repository"),
        ("hf:org/m@", "not a revision"),
        ("hf:org/m@../x", "not a revision"),
        ("hf:org/m:", "not a file"),
        ("hf:org/m:/etc/passwd", "not a file"),
        ("hf:org/m:../x", "not a file"),
        ("/srv/m\n", "control"),
    ],
)
def test_refused(text: str, says: str) -> None:
    with pytest.raises(SourceInvalidError, match=says):
        parse_source(text)


@steady
@given(st.text(max_size=60) | st.text("hf:/@.-_#?%[]&=é a", max_size=40).map(lambda rest: "https://" + rest))
def test_any_text_is_a_source_or_an_error_and_its_canonical_form_is_stable(text: str) -> None:
    try:
        parsed = parse_source(text)
    except SourceInvalidError:
        return
    key = source_key(parsed.canonical)
    assert "/" not in key
    assert 17 < len(key) < 80
    if not isinstance(parsed, FileSource):
        again = parse_source(parsed.canonical)
        assert again.canonical == parsed.canonical


def test_messages_show_no_secrets() -> None:
    assert redacted("https://user:pw@h/m.gguf?sig=secret") == "https://h/m.gguf?..."
    with pytest.raises(SourceInvalidError) as caught:
        parse_source("https://user:pw@h/m.gguf?sig=secret#md5=1")
    assert "pw" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_split_names() -> None:
    assert split_names("m-00002-of-00003.gguf") == [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    for name in ("m.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-00001-of-99999.gguf"):
        assert split_names(name) is None


TRANSFORMERS = [
    "README.md", ".gitattributes", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "left_out"),
    [
        (["pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack"], True),
        (["original/consolidated.00.pth", "original/params.json", "onnx/model.onnx", "consolidated.safetensors"], True),
        (["model.gguf", "demo.png", "USE_POLICY.pdf", "runs/x.json"], True),
        (["chat_template.jinja", "modeling_x.py", "1_Pooling/config.json", "tokenizer.model"], False),
    ],
)
def test_what_a_transformers_model_needs(more: list[str], left_out: bool) -> None:
    needed = sorted(set(TRANSFORMERS) - {"README.md", ".gitattributes"})
    assert select(TRANSFORMERS + more, None, "hf:o/m") == (needed if left_out else sorted([*needed, *more]))


@pytest.mark.parametrize(
    ("paths", "pattern", "chosen"),
    [
        (["a.gguf", "mmproj-a.gguf", "README.md"], None, ["a.gguf"]),
        (["config.json", "pytorch_model.bin", "x.txt"], None, ["config.json", "pytorch_model.bin", "x.txt"]),
        (["q/m-00001-of-00002.gguf", "q/m-00002-of-00002.gguf"], None, ["q/m-00001-of-00002.gguf", "q/m-00002-of-00002.gguf"]),
        (["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"], "m-00001*", ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]),
        (["m-Q4_K_M.gguf", "m-Q4_K.gguf", "m-IQ4_K.gguf"], "Q4_K", ["m-Q4_K.gguf"]),
        (["m.Q4_0.gguf", "m.Q4_0_4_4.gguf"], "q4_0", ["m.Q4_0.gguf"]),
    ],
)
def test_which_gguf(paths: list[str], pattern: str | None, chosen: list[str]) -> None:
    assert select(paths, pattern, "hf:o/m") == chosen


@pytest.mark.parametrize(
    ("paths", "pattern", "error", "says"),
    [
        ([], None, SourceInvalidError, "no weights"),
        (["README.md"], None, SourceInvalidError, r"README\.md"),
        (["a.gguf", "b.gguf"], None, SourceInvalidError, r"a\.gguf, b\.gguf"),
        (["a.gguf"], "b.gguf", SourceNotFoundError, r"it has a\.gguf"),
        (["m-00001-of-00002.gguf"], None, SourceNotFoundError, r"part m-00002-of-00002\.gguf is not there"),
    ],
)
def test_no_choice(paths: list[str], pattern: str | None, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        select(paths, pattern, "hf:o/m")
