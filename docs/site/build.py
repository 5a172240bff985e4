"""`make site`: the whole course as static pages in build/site, from stored outputs. No network is needed or used."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from icons import trim
from lesson import PageError
from links import broken
from oneclick import AddressError
from stage import ROOT, stage

SOURCE, TARGET = ROOT / "build" / "site-source", ROOT / "build" / "site"


def main(source: Path = SOURCE, target: Path = TARGET) -> int:
    """Build the site. Returns an exit status; what is wrong is said in one sentence."""
    from sphinx.cmd.build import main as sphinx

    began = time.monotonic()
    try:
        stage(source)
    except (PageError, AddressError) as error:
        print(f"site: {error}.", file=sys.stderr)
        return 1
    shutil.rmtree(target, ignore_errors=True)
    status = sphinx(
        ["-q", "-W", "--keep-going", "-b", "html", "-d", str(source / "_doctrees"), str(source), str(target)]
    )
    if status:
        return status
    trim(target)
    wrong = broken(target)
    for sentence in wrong:
        print(f"site: {sentence}.", file=sys.stderr)
    pages = len([*target.rglob("*.html")])
    print(f"{target}: {pages} pages in {time.monotonic() - began:.0f} s; open index.html.")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
