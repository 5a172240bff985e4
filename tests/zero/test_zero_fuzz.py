"""A bounded share of the fuzzer: nets and settings that were drawn end at every stage with the same bits.

`make soak` runs a thousand.
"""

import pytest
from zero_fuzz import OPTIMIZERS, check, draw

SHARE = [8, 15, 16, 19, 34, 42]
"""Seeds that draw small nets; together there are six optimizers, four precisions, and 2, 3 and 4 ranks."""


@pytest.mark.timeout(110)
def test_stages_agree_on_nets_and_settings_that_were_drawn() -> None:
    assert check(SHARE) == {}


@pytest.mark.ranks
@pytest.mark.timeout(110)
def test_they_do_in_processes_on_shared_memory() -> None:
    assert check([1], world="processes") == {}


def test_what_is_drawn_varies() -> None:
    runs = [draw(seed) for seed in range(300)]
    assert {run.optimizer for run in runs} == set(OPTIMIZERS) and {run.ranks for run in runs} == {2, 3, 4}
    dtypes = {dtype for run in runs for *_, dtype, _ in run.layers}
    assert len(dtypes) == 3 and draw(5) == draw(5) and draw(5) != draw(6)
