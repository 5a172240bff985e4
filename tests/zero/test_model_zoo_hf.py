"""Models of transformers as they come: two ranks, three steps, the same bits at every stage; and what their users call
besides. Needs transformers (the `bench` extra)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[bench]'")

from hf_zoo import ASKED, HUGGING_FACE, recomputing, tokens  # noqa: E402
from test_model_zoo import hold, rows_of  # noqa: E402
from zero_models import lockstep  # noqa: E402
from zoo_runs import STEPS, built, part  # noqa: E402

from zerolab.collectives import Collectives  # noqa: E402
from zerolab.errors import DeadlockError, RankError, StateError  # noqa: E402
from zerolab.zero import ZeroEngine  # noqa: E402

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_a_model_of_transformers_trains_as_in_one_process_with_the_same_bits_at_every_stage(name: str) -> None:
    hold(HUGGING_FACE[name])


def test_the_page_of_models_names_those_of_transformers() -> None:
    assert rows_of("transformers") == list(HUGGING_FACE)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ASKED)
def test_gradient_checkpointing_changes_nothing(name: str, reentrant: bool) -> None:
    hold(recomputing(ASKED[name], reentrant))


def test_mixtrals_experts_have_no_token_on_one_rank_or_on_both() -> None:
    """In the batches that it is tried with above."""
    mixtral, kinds = ASKED["Mixtral"], set()
    model = built(mixtral)
    for step in range(STEPS):
        batch = mixtral.batch(step)
        given = [model(**part(batch, rank), output_router_logits=True).router_logits for rank in range(2)]
        for of_ranks in zip(*given, strict=True):
            first, second = (set(logits.argmax(-1).tolist()) for logits in of_ranks)
            kinds |= {("both", bool(first & second)), ("one", first != second), ("none", len(first | second) < 24)}
    assert kinds >= {("both", True), ("one", True), ("none", True)}


def trained(name: str, stage: int, comm: Collectives) -> Any:
    """An engine after a step, whose ranks have the same model."""
    brought = ASKED[name]
    engine = ZeroEngine(built(brought), comm, stage, lr=1e-3)
    engine.backward(brought.loss(engine, part(brought.batch(0), comm.rank)))
    engine.step()
    return engine


def at_each_stage(run: Callable[[Any, Collectives], Any], name: str = "GPT-2") -> list[Any]:
    """What `run(engine, comm)` gives on both ranks, by stage."""
    return [lockstep(lambda comm, stage=stage: run(trained(name, stage, comm), comm)) for stage in range(4)]


def drawn(model: Any, rows: torch.Tensor, more: int = 4) -> list[list[int]]:
    model.eval()
    return model.generate(input_ids=rows, max_new_tokens=more, do_sample=False, pad_token_id=0).tolist()


@pytest.mark.parametrize("name", ["LLaMA", "GPT-2", "T5", "Mixtral"])
def test_generate_gives_the_same_tokens_at_every_stage(name: str) -> None:
    def run(engine: Any, comm: Collectives) -> Any:
        same = drawn(engine.model, tokens(3))
        engine.train()
        return same

    found = at_each_stage(run, name)
    assert len({str(of_rank) for by_rank in found for of_rank in by_rank}) == 1


def own_tokens(engine: Any, comm: Collectives) -> Any:
    """Another prompt on each rank, and another length."""
    return drawn(engine.model, tokens(3 + comm.rank), 3 + 2 * comm.rank)


def test_generate_of_other_lengths_on_the_ranks_works_in_summon_full_params() -> None:
    def summoned(engine: Any, comm: Collectives) -> Any:
        with engine.summon_full_params():
            return own_tokens(engine, comm)

    found = at_each_stage(summoned)
    assert [found[stage] for stage in range(3)] == [found[3]] * 3
    assert lockstep(lambda comm: own_tokens(trained("GPT-2", 2, comm), comm)) == found[2]
    with pytest.raises(DeadlockError, match="rank 0 has returned"):
        lockstep(lambda comm: own_tokens(trained("GPT-2", 3, comm), comm))


def test_save_pretrained_writes_what_from_pretrained_reads(tmp_path: Path) -> None:
    def save(engine: Any, comm: Collectives) -> bool:
        kind, here = type(engine.model), tmp_path / f"{engine.stage}-{comm.rank}"
        state = engine.state_dict()
        engine.model.save_pretrained(here / "state", state_dict=state)
        with engine.summon_full_params():
            engine.model.save_pretrained(here / "summoned")
        again = [kind.from_pretrained(here / way).state_dict() for way in ("state", "summoned")]
        return all(torch.equal(read[key], value) for read in again for key, value in state.items())

    assert at_each_stage(save) == [[True, True]] * 4

    def directly(engine: Any, comm: Collectives) -> None:
        engine.model.save_pretrained(tmp_path / "directly")

    lockstep(lambda comm: directly(trained("GPT-2", 2, comm), comm))
    with pytest.raises(RankError, match=r"summon_full_params.*engine\.state_dict"):
        lockstep(lambda comm: directly(trained("GPT-2", 3, comm), comm))


def test_what_else_users_call_works_or_is_refused_with_the_remedy() -> None:
    def run(engine: Any, comm: Collectives) -> Any:
        model, said = engine.model, []
        for refused in (model.half, lambda: model.resize_token_embeddings(70)):
            with pytest.raises(StateError) as error:
                refused()
            said.append(str(error.value))
        for missing in ("generate", "save_pretrained", "config"):
            with pytest.raises(AttributeError, match=rf"engine\.model\.{missing}"):
                getattr(engine, missing)
        model.gradient_checkpointing_enable()
        model.tie_weights()
        return model.num_parameters(), str(model.device), str(model.dtype), said

    plain = built(ASKED["GPT-2"])
    for by_rank in at_each_stage(run):
        for numel, device, dtype, said in by_rank:
            assert (numel, device, dtype) == (plain.num_parameters(), "cpu", "torch.float32")
            assert "before it is wrapped" in said[0] and "engine" in said[1]
