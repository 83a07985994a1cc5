"""Finding the model in a form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.api.multipart import peek, with_model
from llmgw_router.errors import ApiError

TYPE = b"multipart/form-data; boundary=xyz"


def form(*parts: tuple[bytes, bytes]) -> bytes:
    body = b"".join(
        b'--xyz\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name, value) for name, value in parts
    )
    return body + b"--xyz--\r\n"


@given(st.binary(max_size=200).filter(lambda data: b"--xyz" not in data), st.booleans())
def test_model_is_found_beside_any_file(file: bytes, first: bool) -> None:
    parts = [(b"file", file), (b"model", b"org/m")]
    fields = peek(form(*(parts if first else reversed(parts))), TYPE)
    assert fields.model == "org/m"
    assert not fields.stream


def test_model_is_renamed_and_the_rest_kept_to_the_byte() -> None:
    before = form((b"file", bytes(range(256))), (b"model", b"org/m"), (b"prompt", b"model"))
    assert with_model(before, TYPE, "x") == form((b"file", bytes(range(256))), (b"model", b"x"), (b"prompt", b"model"))


def test_quoted_boundary_other_parameters_and_stream() -> None:
    body = form((b"stream", b"true"), (b"model", b"m")).replace(b"xyz", b"a b:c")
    assert peek(body, b'multipart/form-data; charset=utf-8; boundary="a b:c"').stream is True


def test_preamble_is_skipped() -> None:
    assert peek(b"ignored\r\n" + form((b"model", b"m")), TYPE).model == "m"


@pytest.mark.parametrize(
    ("body", "content_type", "code"),
    [
        (form((b"file", b"x")), TYPE, "missing_model"),
        (form((b"model", b"a"), (b"model", b"b")), TYPE, "duplicate_key"),
        (form((b"model", b"\xff")), TYPE, "invalid_multipart"),
        (form((b"model", b"m" * 2000)), TYPE, "invalid_multipart"),
        (form((b"model", b"m"))[:-12], TYPE, "invalid_multipart"),
        (b"nothing of the kind", TYPE, "invalid_multipart"),
        (b"", TYPE, "invalid_multipart"),
        (form((b"model", b"m")), b"application/json", "invalid_content_type"),
        (form((b"model", b"m")), b"multipart/form-data", "invalid_content_type"),
        (form(*[(b"f", b"x")] * 300), TYPE, "invalid_multipart"),
    ],
)
def test_refused(body: bytes, content_type: bytes, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        peek(body, content_type)
    assert (caught.value.status, caught.value.code) == (400, code)
