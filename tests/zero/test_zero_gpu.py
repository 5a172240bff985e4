"""What `make gpu-test` holds, claim by claim; skipped where there is no GPU. (`test_gpucheck.py` tries the checks
themselves without one.)"""

import pytest
import torch
from gpucheck.checks import CHECKS, Place, carried_out

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.ranks,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("name", [name for name in CHECKS if name != "benchmarks.peers"])
def test_what_a_check_claims_holds_on_the_gpus_that_are_here(name: str) -> None:
    outcome = carried_out(name, Place("cuda", torch.cuda.device_count()))
    assert [finding for finding in outcome.findings if finding.ok is False] == []
    assert outcome.findings
