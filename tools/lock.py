"""Resolve every extra in a throw-away environment and write down what came out.

`make lock` runs this. It rewrites constraints.txt (a pin for every package that any extra installs) and the
pins in environment.yml (the packages that pyproject.toml names). The torch version is given, not resolved, and
its local label (`+cpu`, `+cu130`) is left out: the same pin then fits the build that suits the machine.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# Every package that an extra of zerolab installs, at the version that was tested. Written by `make lock`.
"""
# Not a dependency of ours: pip, and what DeepSpeed's build needs before it can be installed.
LEFT_OUT = {"zerolab", "pip", "wheel"}


def resolve(torch: str) -> dict[str, str]:
    """Install every extra beside torch==`torch` in a temporary environment; return its versions by name."""
    with tempfile.TemporaryDirectory(prefix="zerolab-lock-") as folder:
        venv.create(folder, with_pip=True)
        pip = [str(Path(folder) / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        pin = f"torch=={torch}"
        source = str(ROOT)
        # torch goes first and stays pinned: DeepSpeed's build imports it.
        for arguments in (
            [pin, "setuptools>=77", "wheel"],
            [pin, "-e", f"{source}[dev,instructor,site]"],
            [pin, "--no-build-isolation", "-e", f"{source}[dev,instructor,site,bench]"],
        ):
            subprocess.run([*pip, "install", "--quiet", *arguments], check=True)
        frozen = subprocess.run([*pip, "list", "--format=freeze"], check=True, capture_output=True, text=True).stdout
    pairs = (line.split("==", 1) for line in frozen.splitlines() if "==" in line)
    return {name: version.split("+")[0] for name, version in pairs if name.lower() not in LEFT_OUT}


def normalized(name: str) -> str:
    """The one spelling of a package's name that all others map to."""
    return re.sub(r"[-_.]+", "-", name).lower()


def repin(text: str, versions: dict[str, str]) -> str:
    """Replace the version in every `name==version` of `text` by the resolved one."""
    by_name = {normalized(name): version for name, version in versions.items()}

    def pin(match: re.Match[str]) -> str:
        return f"{match[1]}=={by_name[normalized(match[1])]}"

    return re.sub(r"(?<=- )([A-Za-z0-9._-]+)==[^\s#]+", pin, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", required=True, help="the torch version to pin, without a local label")
    versions = resolve(parser.parse_args().torch)
    lines = [f"{name}=={versions[name]}\n" for name in sorted(versions, key=str.lower)]
    (ROOT / "constraints.txt").write_text(HEADER + "".join(lines))
    environment = ROOT / "environment.yml"
    environment.write_text(repin(environment.read_text(), versions))
    print(f"constraints.txt pins {len(lines)} packages; environment.yml follows it.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
