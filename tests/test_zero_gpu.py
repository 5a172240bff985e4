"""The same claims on CUDA; skipped where there is none. Ranks that outnumber the GPUs share them over gloo."""

import pytest
import torch
from zero_cases import VARIANTS, Case, largest_difference, train, train_alone

from zerolab.collectives import Collectives
from zerolab.ranks import launch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.ranks,
    pytest.mark.timeout(110),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CASES = [Case(), Case(micro_batches=2, clip_norm=0.2, checkpoint=True, engine={"overlap_gather": True})]


@pytest.mark.parametrize("case", CASES, ids=["plain", "all at once"])
def test_all_stages_agree_on_a_gpu_with_each_other_and_with_one_process(case: Case) -> None:
    def run(comm: Collectives) -> list[dict[str, torch.Tensor]]:
        torch.use_deterministic_algorithms(True)
        return [train(comm, case, stage, **variant).parameters for stage, variant in VARIANTS]

    alone = train_alone(case)
    for of_rank in launch(run, ranks=2, device="cuda", env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, timeout=100):
        for parameters in of_rank:
            assert largest_difference(parameters, of_rank[0]) == 0
            assert largest_difference(parameters, alone) < 1e-4


def test_stage_3_allocates_less_than_stage_0_at_its_peak() -> None:
    def peak(comm: Collectives, stage: int) -> int:
        train(comm, Case(steps=2), stage)
        torch.cuda.reset_peak_memory_stats()
        train(comm, Case(steps=2), stage)
        return torch.cuda.max_memory_allocated()

    peaks = [max(launch(peak, stage, ranks=2, device="cuda", timeout=60)) for stage in (0, 3)]
    assert peaks[1] < peaks[0]
