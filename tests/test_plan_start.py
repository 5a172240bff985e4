"""A plan starts as fast as torch does: it imports neither torch's compiler nor an algebra, and says the same."""

import subprocess
import sys

# A new Python: this one, and the server of ranks, may have the compiler already.
PROGRAM = """
import contextlib
import io
import sys
import threading

import torch

from zerolab import cli
from zerolab.models import config_of
from zerolab.plan import trace
from zerolab.plan.mixture import MixtureConfig
from zerolab.plan.uncompiled import COMPILER, SYMBOLS, ALGEBRA, FUNCTIONS, uncompiled

LARGE = (COMPILER, SYMBOLS, ALGEBRA, FUNCTIONS)
RUN = "plan --model llama-3-405b --ranks 1024 --gpu H100 --zero-stage 3 --checkpoint-activations --json /dev/null"

with uncompiled():
    print("where the library is imported there are", [name for name in LARGE if name in sys.modules])
with contextlib.redirect_stdout(io.StringIO()):
    sys.argv = ["zerolab", *RUN.split()]
    assert cli.main() == 0
cases = [
    (config_of("gpt2", "nano"), trace.Work(1, 16, attention="eager")),
    (config_of("llama", "nano"), trace.Work(1, 64)),
    (MixtureConfig(64, 32, 3, 2, 1, 64, experts=4), trace.Work(2, 32, torch.bfloat16, checkpoint=True)),
]
traces = [trace.run_once(*case) for case in cases]
print("a plan has imported", [name for name in LARGE if name in sys.modules])

waits = threading.Event()
other = threading.Thread(target=waits.wait)
other.start()
with uncompiled():
    print("beside another thread there are", [name for name in LARGE if name in sys.modules])
waits.set()
other.join()

with uncompiled():
    import sympy
    assert type(sympy).__name__ == "StandIn"
    assert sympy.Symbol("x") + 1 == 1 + sympy.Symbol("x")
    assert not any(type(sys.modules.get(name)).__name__ == "StandIn" for name in LARGE)
assert issubclass(sympy.Symbol, sympy.Basic), "what was kept is the algebra now"

import torch._dynamo
from torch.utils._sympy.functions import Max
assert torch._dynamo.config.error_on_nested_fx_trace is True
print("torch with its compiler says the same:", traces == [trace.run_once(*case) for case in cases])
"""


def test_a_plan_imports_no_compiler_and_says_what_torch_says_with_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        "where the library is imported there are []",
        "a plan has imported []",
        "beside another thread there are []",
        "torch with its compiler says the same: True",
    ], done.stdout + done.stderr
