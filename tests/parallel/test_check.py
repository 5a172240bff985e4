"""The checker says nothing of a right program on any mesh, and names the reduction that a wrong one has forgotten."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cover import NIGHTLY
from grid_cases import BATCH, OPTIMIZERS, batch, perturbed
from test_pipeline import MODELS, SCHEDULES

import zerolab.parallel.placement as placement
import zerolab.parallel.tensor as tensor
from zerolab.parallel import GridEngine, Mesh, Pipeline, cut_stages, shard_model
from zerolab.parallel.check import check
from zerolab.parallel.exchange import JOIN, exchange


def train(
    mesh: Mesh,
    name: str = "llama",
    stage: int = 1,
    sequence: bool = False,
    clip: float | None = None,
    optimizer: str = "sgd",
    steps: int = 1,
    share: Callable[[Mesh], int] = lambda mesh: mesh.at["dp"],
) -> None:
    """The program: a model on any mesh, by the engine."""
    torch.manual_seed(3)
    model: Any = shard_model(perturbed(MODELS[name]()), mesh, sequence)
    piped = mesh.sizes["pp"] > 1
    model = mesh.watch(cut_stages(model, mesh) if piped else model)
    engine = GridEngine(model, mesh, stage, optimizer=OPTIMIZERS[optimizer], clip_norm=clip)
    each = BATCH // mesh.sizes["dp"]
    for step in range(steps):
        tokens, targets = batch(step, each * share(mesh), each * (share(mesh) + 1))
        if piped:
            loss = Pipeline(engine, SCHEDULES["1f1b"](mesh.sizes["pp"], 1)).run(tokens, targets)
        else:
            loss = engine(tokens, targets)
            engine.backward(loss)
        norm = engine.step().norm
        whole = mesh.comms["dp"].all_reduce(loss.detach().clone(), average=True)
        mesh.end_step(loss=whole, norm=norm)


RIGHT = [
    ({"dp": 2}, {}),
    ({"tp": 2}, {"clip": 0.1}),
    ({"tp": 2, "dp": 2}, {"sequence": True, "stage": 2, "clip": 0.1}),
    ({"tp": 2, "dp": 2}, {"name": "gpt2", "stage": 0}),
    ({"dp_replicate": 2, "dp": 2}, {"stage": 2, "clip": 0.1}),
    ({"pp": 2, "dp": 2}, {"clip": 0.1}),
    ({"pp": 2, "tp": 2}, {"sequence": True}),
    ({"dp": 4, "ep": 2}, {"name": "mixture", "clip": 0.1}),
    ({"dp": 2, "ep": 2, "tp": 2}, {"name": "mixture", "sequence": True, "clip": 0.1}),
    ({"pp": 2, "dp": 2, "ep": 2}, {"name": "mixture", "optimizer": "adamw"}),
]


@pytest.mark.ranks
@pytest.mark.timeout(100)
@pytest.mark.parametrize(("sizes", "settings"), RIGHT if NIGHTLY else RIGHT[1::2], ids=str)
def test_a_right_program_raises_no_alarm(sizes: dict[str, int], settings: dict[str, Any]) -> None:
    assert check(partial(train, steps=2, **settings), steps=2, **sizes) == []


# Real bugs, each planted by replacing one thing. (Where no issue is cited, none was sought.)


class Bug:
    """A bug: a mesh and settings that show it, what is replaced, and what the checker says of it."""

    def __init__(
        self,
        said: str,
        sizes: dict[str, int],
        settings: dict[str, Any],
        *patches: tuple[Any, str, Any],
        source: str = "",
    ) -> None:
        self.said, self.sizes, self.settings, self.patches, self.source = said, sizes, settings, patches, source


def nothing(*_: Any) -> None:
    """What is left out."""


def with_holders(change: Callable[[Any, str, int], float]) -> Any:
    """An engine's constructor after which so many ranks are said to hold an element."""
    right = GridEngine.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        right(self, *args, **kwargs)
        for bucket in self.buckets:
            bucket.holders = {name: change(self, name, count) for name, count in bucket.holders.items()}

    return init


def without_ep(right: Any) -> Any:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        right(self, *args, **kwargs)
        for hook in self._hooks:
            hook.remove()

    return init


def gathered_logits(self: Any, name: str, module: Any) -> None:
    RIGHT_VOCABULARY(self, name, module)
    module.register_forward_hook(lambda _, __, out: exchange(out, self.comm, JOIN))


def rank_0(comm: Any) -> Any:
    return SimpleNamespace(rank=0, size=comm.size)


def router_over_efsdp(self: Any, parameter: Any) -> Any:
    return self.mesh.comms["efsdp"] if parameter.shape == (4, 16) else RIGHT_COMM(self, parameter)


RIGHT_VOCABULARY = tensor.Sharder.vocabulary
RIGHT_COMM, RIGHT_PART = GridEngine.comm_of, placement.part_of
SP = {"tp": 2, "dp": 2}
MOE, OF_EXPERTS = {"dp": 4, "ep": 2}, {"name": "mixture"}
BUGS = {
    "ranks along dp get the same batch": Bug(
        "the batch is the same along dp between (dp 0, tp 0) and (dp 1, tp 0)", SP, {"share": lambda mesh: 0}
    ),
    "no sum over tp in backward (f)": Bug(
        "although the output is the same: what uses it does not sum over tp in backward",
        SP, {}, (tensor, "COPY", ("keep", "keep")), source="SkyRL#1886",
    ),
    "no sum over tp in forward (g)": Bug(
        "output of embedding differs along tp between (dp 0, tp 0) and (dp 0, tp 1): its sum over tp is missing",
        SP, {}, (tensor, "SUM", ("keep", "keep")),
    ),
    "a sum over tp too many in backward (g)": Bug(
        "2 times one process's", SP, {}, (tensor, "SUM", ("all_reduce", "all_reduce"))
    ),
    "final norm not summed over tp": Bug(
        "it lacks its sum over tp", SP, {"sequence": True}, (tensor.Sharder, "norm", nothing),
        (tensor, "ROLES", {**tensor.ROLES, "norm": nothing}), source="Megatron-LM#1446",
    ),
    "query norm not summed over tp": Bug(
        "gradient of blocks.0.attention.q_norm.weight", SP, {},
        (tensor, "ROLES", {**tensor.ROLES, "q_norm": nothing, "k_norm": nothing}), source="Megatron-LM#7452, no. 11",
    ),
    "gathered logits into a vocabulary loss": Bug(
        "input of loss is the same along tp", SP, {},
        (tensor, "ROLES", {**tensor.ROLES, "lm_head": gathered_logits}), source="Megatron-LM#7452, no. 2",
    ),
    "the norm counts tp replicas each": Bug(
        "of the parameters those replicated count 2 times", SP, {"clip": 0.1},
        (GridEngine, "__init__", with_holders(lambda engine, name, count: 1)), source="TransformerEngine (ROCm)#715",
    ),
    "the norm leaves out experts": Bug(
        "of the parameters those sharded along ep count 0 times", MOE, {**OF_EXPERTS, "clip": 0.1},
        (GridEngine, "__init__", with_holders(
            lambda engine, name, count: float("inf") if ".ffn." in name and "router" not in name else count)),
        source="Megatron-LM#5916",
    ),
    "the norm of a tp rank's own shards": Bug(
        "the norm differs along tp between (dp 0, tp 0) and (dp 0, tp 1): its sum over tp is missing",
        SP, {"clip": 0.1}, (GridEngine, "everybody", property(lambda self: self.comm)), source="Megatron-LM#6489",
    ),
    "experts' gradients divided by edp": Bug(
        "is 2 times too large: divided by 2 (edp) where 4 (dp) is due", MOE, OF_EXPERTS,
        (GridEngine, "__init__", without_ep(GridEngine.__init__)),
        source="megablocks#20, DeepSpeed#6545, pytorch#160285, Megatron-LM#5956",
    ),
    "router not reduced over ep": Bug(
        "it lacks its sum over ep", MOE, OF_EXPERTS,
        (GridEngine, "comm_of", router_over_efsdp),
    ),
    "shards start the same": Bug(
        "start with the same values: they need other seeds", SP, {},
        (placement, "part_of", lambda whole, cut, comm: RIGHT_PART(whole, cut, rank_0(comm))),
    ),
}  # fmt: skip


@pytest.mark.ranks
@pytest.mark.timeout(100)
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    for target, attribute, value in bug.patches:
        monkeypatch.setattr(target, attribute, value)
    found = check(partial(train, **bug.settings), **bug.sizes)
    assert any(bug.said in said for said in found), found or "nothing"
