"""A real package as a wheel again, from the files that are installed here: what an offline bundle holds."""

from __future__ import annotations

import importlib.metadata
import zipfile
from pathlib import Path


def pack(name: str, folder: Path) -> tuple[str, Path]:
    """Writes the wheel into the folder; its version and path."""
    found = importlib.metadata.distribution(name)
    folder.mkdir(parents=True, exist_ok=True)
    tag = next(line.removeprefix("Tag: ") for line in (found.read_text("WHEEL") or "").splitlines() if line.startswith("Tag: "))
    path = folder / f"{name.replace('-', '_')}-{found.version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for each in found.files or []:
            inside, lies = str(each), Path(str(each.locate()))
            # Scripts and caches are made anew where it is installed.
            if not inside.startswith("..") and "__pycache__" not in inside and lies.is_file():
                archive.write(lies, inside)
    return found.version, path
