"""A fitted table on disk: a folder with the posterior and its encoding."""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import linmodels as lm
from linmodels.cli._encoding import VERSION, Encoding
from linmodels.cli._errors import InputError

POSTERIOR = "posterior.linmodels"
ENCODING = "encoding.json"


def save_model(folder: Path, posterior: lm.Posterior, encoding: Encoding) -> None:
    """Writes the model; a model that was there is replaced as a whole, or not at all.

    Raises:
        InputError: the folder holds something else than a model, or cannot be written.
    """
    refuse_foreign(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as work:
            new = Path(work) / "new"
            new.mkdir()
            posterior.save(new / POSTERIOR)
            contents = {
                "format": "linmodels table model",
                "version": VERSION,
                "posterior_sha256": _digest(new / POSTERIOR),
                "encoding": encoding.to_json(),
            }
            (new / ENCODING).write_text(
                json.dumps(contents, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )
            if folder.exists():
                folder.replace(Path(work) / "old")
            new.replace(folder)
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written: {error}") from error


def load_model(folder: Path) -> tuple[lm.Posterior, Encoding]:
    """Reads a model.

    Raises:
        InputError: the folder is no model, is damaged, or comes from a newer version.
    """
    if not (folder / ENCODING).is_file():
        raise InputError(
            f"{folder}: not a model: it has no {ENCODING}. `linmodels fit … --out` writes one."
        )
    contents = _contents(folder)
    try:
        encoding = Encoding.from_json(contents["encoding"])
        if _digest(folder / POSTERIOR) != contents["posterior_sha256"]:
            raise ValueError(f"{POSTERIOR} is not the file that {ENCODING} was written with")
        posterior = lm.Posterior.load(folder / POSTERIOR)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise InputError(f"{folder}: the model is damaged: {error}. Fit it again.") from error
    return posterior, encoding


def refuse_foreign(folder: Path) -> None:
    """Refuses a path that exists and is neither a model nor empty.

    Raises:
        InputError: as said.
    """
    if not folder.exists() or (folder / ENCODING).is_file():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise InputError(
            f"--out {folder}: it exists and is not a model, so it is kept. Give another name."
        )


def _contents(folder: Path) -> dict[str, Any]:
    try:
        contents = json.loads((folder / ENCODING).read_text(encoding="utf-8"))
        version = contents["version"]
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise InputError(f"{folder}: {ENCODING} is damaged: {error}. Fit it again.") from error
    if version != VERSION:
        raise InputError(
            f"{folder}: the model has version {version!r}, this linmodels reads {VERSION}: "
            "fit it again, or use the linmodels that wrote it."
        )
    return contents


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


__all__ = ["load_model", "refuse_foreign", "save_model"]
