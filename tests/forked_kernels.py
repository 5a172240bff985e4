"""A plugin of pytest for `make nbval`: kernels are forks of a server that has imported what lessons import.

A kernel that is a new Python imports IPython and torch for some seconds of a processor, and so does the server of its
ranks. By night each kernel is a new Python, as it is for those who open a lesson (`born.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import born
import inherited  # noqa: F401
from jupyter_client import launcher

from zerolab.ranks import forkserver

LESSONS_IMPORT = ["ipykernel.kernelapp", "ipykernel.zmqshell", "zerolab.course", "matplotlib.pyplot"]


def begun(words: list[str], **options: Any) -> Any:
    """What stands in the place of the Popen by which Jupyter starts a kernel."""
    assert words[0] == sys.executable, words
    return born.python(*(word for word in words[1:] if not word.startswith("-X")), **options)


def pytest_configure(config: pytest.Config) -> None:
    launcher.Popen = begun  # type: ignore[misc]
    if born.FORKS:
        forkserver.PRELOAD += LESSONS_IMPORT
        if hasattr(config, "workerinput"):
            forkserver.start_server()
