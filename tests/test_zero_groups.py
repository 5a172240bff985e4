"""Engines in groups of ranks: several train at once, each as if its ranks were alone."""

from dataclasses import replace

import pytest
from collective_cases import WORLDS
from zero_cases import VARIANTS, Case, decay_matrices, gpt2, train

from zerolab.collectives import Collectives
from zerolab.ranks import launch

pytestmark = [pytest.mark.timeout(240), pytest.mark.ranks]

CASES = [
    Case(micro_batches=2, clip_norm=0.2, groups=decay_matrices, steps=3, engine={"bucket_numel": 500}),
    Case(model=gpt2, steps=3, engine={"overlap_gather": True}),
]


def every_variant(comm: Collectives, case: Case) -> list[str]:
    found = []
    for stage, variant in VARIANTS:
        # Only stages 1 and 2 let a step return before the new parameters have come.
        options = case.engine if stage in (1, 2) else {**case.engine, "overlap_gather": False}
        found.append(train(comm, replace(case, engine=options), stage, **variant).digest)
    return found


@pytest.mark.parametrize("world", WORLDS[:3], ids="-".join)
def test_two_groups_train_two_models_at_once_with_the_bits_that_each_has_alone(world: tuple[str, str]) -> None:
    def side_by_side(comm: Collectives) -> list[str]:
        half = comm.split(comm.rank % 2, name=f"model {comm.rank % 2}")
        assert half is not None
        return every_variant(half, CASES[comm.rank % 2])

    options = {"world": world[0], "collectives": world[1], "timeout": 100}
    alone = [launch(every_variant, case, ranks=2, **options) for case in CASES]
    assert alone[0][0] != alone[1][0]
    assert launch(side_by_side, ranks=4, **options) == [alone[0][0], alone[1][0]] * 2
