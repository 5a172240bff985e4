"""What plans is imported without torch's compiler and without an algebra, whose import takes longer than torch's."""

import subprocess
import sys

# A new Python: this one, and the server of ranks, may have the compiler already.
PROGRAM = """
import sys
import zerolab.apps.cli.plan_text
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


def test_the_planner_is_imported_without_a_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stdout + done.stderr
