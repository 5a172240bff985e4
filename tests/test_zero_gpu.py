"""The same claims on CUDA; skipped where there is none. Ranks that outnumber the GPUs share them over gloo."""

from pathlib import Path
from typing import Any

import pytest
import torch
from zero_cases import VARIANTS, Case, largest_difference, train, train_alone

from zerolab.collectives import Collectives
from zerolab.offload import Offload
from zerolab.ranks import launch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.ranks,
    pytest.mark.timeout(110),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CASES = [Case(), Case(micro_batches=2, clip_norm=0.2, checkpoint=True, engine={"overlap_gather": True})]


# NCCL's own order of addition is not fixed, the ring's is.
SAME_BITS: dict[str, Any] = {
    "ranks": 2, "device": "cuda", "collectives": "ring", "env": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, "timeout": 100,
}  # fmt: skip


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL wants a GPU for each of two ranks")
def test_nccl_is_what_ranks_with_a_gpu_each_get_and_trains_as_the_ring_does() -> None:
    def run(comm: Collectives) -> tuple[str, list[dict[str, torch.Tensor]]]:
        return type(comm).__name__, [train(comm, Case(), stage).parameters for stage in range(4)]

    alone = train_alone(Case())
    for name, of_stages in launch(run, ranks=2, device="cuda", timeout=100):
        assert name == "TorchCollectives"
        assert all(largest_difference(parameters, alone) < 1e-4 for parameters in of_stages)


@pytest.mark.parametrize("case", CASES, ids=["plain", "all at once"])
def test_all_stages_agree_on_a_gpu_with_each_other_and_with_one_process(case: Case) -> None:
    def run(comm: Collectives) -> list[dict[str, torch.Tensor]]:
        torch.use_deterministic_algorithms(True)
        return [train(comm, case, stage, **variant).parameters for stage, variant in VARIANTS]

    alone = train_alone(case)
    for of_rank in launch(run, **SAME_BITS):
        for parameters in of_rank:
            assert largest_difference(parameters, of_rank[0]) == 0
            assert largest_difference(parameters, alone) < 1e-4


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8", "bf16_fp8_moments", "fsdp2"])
def test_a_precision_ends_with_the_same_bits_at_every_stage_on_a_gpu(precision: str) -> None:
    def run(comm: Collectives) -> set[str]:
        torch.use_deterministic_algorithms(True)
        stages = (3,) if precision == "fsdp2" else range(4)
        return {train(comm, Case(), stage, precision=precision).digest for stage in stages}

    found = launch(run, **SAME_BITS)
    assert len(set.union(*found)) == 1


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_host_and_disk_end_with_the_same_bits_on_a_gpu(precision: str, tmp_path: Path) -> None:
    """Both step on the host; without offload the GPU's own AdamW does, which rounds otherwise."""

    def run(comm: Collectives) -> list[dict[str, torch.Tensor]]:
        torch.use_deterministic_algorithms(True)
        places = [Offload(*tiers, path=tmp_path, sub_group_numel=700) for tiers in TIERS]
        return [train(comm, Case(), 3, precision=precision, offload=place).parameters for place in places]

    for of_rank in launch(run, **SAME_BITS):
        on_device, *others = of_rank
        assert all(largest_difference(others[0], other) == 0 for other in others)
        assert largest_difference(on_device, others[0]) < 1e-2


TIERS = (("device", "device"), ("host", "device"), ("host", "host"), ("disk", "device"), ("disk", "disk"))


def test_stage_3_allocates_less_than_stage_0_at_its_peak() -> None:
    def peak(comm: Collectives, stage: int) -> int:
        train(comm, Case(steps=2), stage)
        torch.cuda.reset_peak_memory_stats()
        train(comm, Case(steps=2), stage)
        return torch.cuda.max_memory_allocated()

    peaks = [max(launch(peak, stage, ranks=2, device="cuda", timeout=60)) for stage in (0, 3)]
    assert peaks[1] < peaks[0]
