"""Runs that begin with the weights of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from zerolab.apps.interop.huggingface import CONFIG, load_folder
from zerolab.errors import InputError
from zerolab.models import Config, GPT2Config
from zerolab.run import RunSpec


class FolderShape(NamedTuple):
    """The shape of the model in a folder, and what titles and errors call it."""

    name: str
    config: Config


def with_shape(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run, with the shape of the model of its `init_from`. Raises InputError if that has none of ours."""
    if settings.get("init_from") is None:
        return dict(settings)
    folder = Path(settings["init_from"]).expanduser()
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"init_from is {str(folder)!r}, which has no {CONFIG}; name a folder that transformers' save_pretrained "
            "or zerolab checkpoint consolidate --huggingface has written"
        )
    config = load_folder(folder)[0]
    kind = "gpt2" if isinstance(config, GPT2Config) else "llama"
    return {**settings, "shape": FolderShape(f"{kind} of {settings['init_from']}", config)}


def weights_of(run: RunSpec) -> Callable[[], Mapping[str, Tensor]] | None:
    """What reads the parameters that a run begins with; None if it draws them."""
    if run.init_from is None:
        return None
    folder = run.init_from.expanduser()
    return lambda: load_folder(folder)[1]
