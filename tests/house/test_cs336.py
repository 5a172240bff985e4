"""The adapters of docs/cs336.md do what those of the course are asked for."""

import born
import cs336_ranks
import pytest
import torch

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(300)]


def test_the_adapters_train_as_one_process(tmp_path):
    born.spawn(cs336_ranks.run, str(tmp_path), 2, ranks=2)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        for name in ("ddp", "ddp_bucketed", "fsdp"):
            before, after = found[name]
            # Rank 1's model began otherwise and was given rank 0's values.
            assert before == 0.0 and after < 1e-6, name
        before, after = found["fsdp_half"]
        assert 0.0 < before < 1e-3 and after < 1e-3
        apart, kept = found["sharded_optimizer"]
        assert apart < 1e-6
        # Both of Adam's moments of all that trains, cut in two, with slots rounded up to 16 elements.
        trained = sum(p.numel() for p in cs336_ranks.Net().parameters() if p.requires_grad)
        assert trained <= kept <= trained + 64
