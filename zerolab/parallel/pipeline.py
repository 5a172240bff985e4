"""Pipeline parallelism: a model is cut between its layers, and micro-batches
pass from stage to stage in the order that a schedule says (`actions.py`).

    engine = GridEngine(cut_stages(model, mesh), mesh, stage=1, lr=1e-3)
    pipeline = Pipeline(engine, one_forward_one_backward(ranks, micro_batches))
    loss = pipeline.run(tokens, targets)      # forward and backward of a whole batch
    engine.step()

A composition of functions is cut at any place: what goes forward is the
hidden states, and what comes back is their gradient. Names of parameters are
those of the whole model on every stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from zerolab.collectives.call import backward_phase, phase
from zerolab.collectives.transport import Request
from zerolab.errors import InputError
from zerolab.flat.layout import chunk_bound
from zerolab.parallel.actions import Action, Schedule
from zerolab.parallel.engine import GridEngine
from zerolab.parallel.mesh import Mesh


class StagedModel(nn.Module):
    """What one rank has of a language model: the layers of its stages, with
    the embedding before the first of all and the head after the last."""

    def __init__(self, model: Any, mesh: Mesh, chunks: int) -> None:
        super().__init__()
        self.config, self.mesh = model.config, mesh
        self.sequence = getattr(model, "sequence", False)
        self.stages = mesh.sizes["pp"] * chunks
        layers = len(model.blocks)
        bounds = [chunk_bound(layers, self.stages, stage) for stage in range(self.stages)]
        own = range(mesh.at["pp"], self.stages, mesh.sizes["pp"])
        self.layers = {stage: [*map(str, range(*bounds[stage]))] for stage in own}
        if 0 in own:
            self.embedding = model.embedding
        self.blocks = nn.ModuleDict({name: model.blocks[int(name)] for its in self.layers.values() for name in its})
        if self.stages - 1 in own:
            self.head, self.loss = model.head, model.loss
        self.context = model.context
        self.auxiliary: float = getattr(model, "coefficient", 0.0) / layers

    def units(self) -> list[nn.Module]:
        ends = [getattr(self, name, None) for name in ("embedding", "head")]
        return [*filter(None, [ends[0]]), *self.blocks.values(), *filter(None, [ends[1]])]

    def forward(self, stage: int, x: Tensor, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        """What a stage makes of tokens, or of the hidden states before it:
        hidden states, or the last the loss; and what its layers add to the
        loss, if any."""
        context = self.context(tokens)
        hidden = self.embedding(x) if stage == 0 else x
        added: list[Tensor] = []
        for name in self.layers[stage]:
            block: Any = self.blocks[name]
            hidden = block(hidden, *context)
            if self.auxiliary:
                added.append(self.auxiliary * block.ffn.auxiliary)
        if stage == self.stages - 1:
            hidden = self.loss(self.head(hidden), targets)
        return [hidden, *added]


def cut_stages(model: Any, mesh: Mesh, chunks: int = 1) -> StagedModel:
    """This rank's stages of a language model, `chunks` of them, as a model.
    Every rank gives the whole model, sharded over the mesh before, if it
    is."""
    if getattr(model, "mesh", mesh) is not mesh:
        raise InputError(f"the model is sharded over another mesh ({model.mesh.grid}); cut it on that one")
    stages = mesh.sizes["pp"] * chunks
    if not 1 <= stages <= len(model.blocks):
        raise InputError(f"{stages} stages cannot share {len(model.blocks)} layers; give each at least one")
    if stages > 1 and model.config.tied_head:
        raise InputError(
            "the head is tied to the embedding, which is on another stage; build the model with tied_head=False"
        )
    if model.dropout or model.checkpoint:
        raise InputError("dropout and recomputed activations are not yet for pipelines; leave them out")
    if not hasattr(model, "mesh") and mesh.sizes["tp"] * mesh.sizes["ep"] > 1:
        raise InputError(f"the model is whole, and the mesh is {mesh.grid}; call shard_model(model, mesh) before")
    if not hasattr(model, "mesh"):
        with torch.no_grad():
            for parameter in model.parameters():
                mesh.world.broadcast(parameter.data)
    return StagedModel(model, mesh, chunks)


class Pipeline:
    """Runs a schedule's actions on this rank.

    reduce  when gradients are reduced over the data-parallel ranks: once a "step",
            or with each "micro-batch", which keeps less and sends more
    """

    def __init__(self, engine: GridEngine, schedule: Schedule, reduce: str = "step") -> None:
        model: Any = engine.model
        sizes = engine.mesh.sizes
        if (len(schedule.rows), schedule.stages) != (sizes["pp"], model.stages):
            raise InputError(
                f"the schedule has {schedule.stages} stages on {len(schedule.rows)} ranks, and the model "
                f"{model.stages} on {sizes['pp']}; make one for the other"
            )
        if reduce not in ("step", "micro-batch"):
            raise InputError(f"reduce is {reduce!r}; choose step or micro-batch")
        self.engine, self.model, self.schedule, self.reduce = engine, model, schedule, reduce
        self.comm = engine.mesh.comms["pp"]
        own = schedule.rows[self.comm.rank]
        self.last = [action for action in own if action.kind in "BW"][-1]

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Forward and backward of a batch [batch, seq], in the schedule's
        micro-batches of equal size; gradients are then reduced. Returns the
        batch's mean loss."""
        count = self.schedule.micro_batches
        if len(tokens) % count:
            raise InputError(f"{count} micro-batches cannot share {len(tokens)} sequences evenly; change one")
        run = BatchRun(self, tokens.chunk(count), targets.chunk(count))
        for action in self.schedule.rows[self.comm.rank]:
            run.do(action)
        return run.end()


class BatchRun:
    """One batch on its way: what came in and went out of each stage, until
    its backward has been."""

    def __init__(self, pipeline: Pipeline, tokens: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        self.pipeline, self.tokens, self.targets = pipeline, tokens, targets
        self.model, self.engine, self.comm = pipeline.model, pipeline.engine, pipeline.comm
        self.rank_of = [pipeline.schedule.rank_of(stage) for stage in range(self.model.stages)]
        self.inputs: dict[tuple[int, int], Tensor] = {}
        self.outputs: dict[tuple[int, int], list[Tensor]] = {}
        self.gradients: dict[tuple[int, int], list[Tensor | None]] = {}
        self.here: dict[Action, Tensor] = {}
        self.coming: dict[Action, tuple[Request, Tensor]] = {}
        self.sent: list[Request] = []
        self.losses: list[Tensor] = []
        # Messages between two ranks come in the order in which they were sent: who
        # waits for one has asked for those before it.
        self.orders = {rank: self.order_from(rank) for rank in range(self.comm.size) if rank != self.comm.rank}

    def order_from(self, rank: int) -> list[Action]:
        """The actions of another rank whose results come here, in their
        order."""
        row = self.pipeline.schedule.rows[rank]
        return [action for action in row if self.receiver(action) == self.comm.rank]

    def receiver(self, action: Action) -> int | None:
        """The rank to which an action's result goes."""
        to = action.stage + (1 if action.kind == "F" else -1)
        return self.rank_of[to] if action.kind != "W" and 0 <= to < len(self.rank_of) else None

    def do(self, action: Action) -> None:
        key = action.stage, action.micro
        if action.kind == "F":
            self.forward(action, key)
        elif action.kind == "W":
            outputs, gradients = self.outputs.pop(key), self.gradients.pop(key)
            self.inputs.pop(key)
            self.backward(action, outputs, gradients, [*self.model.parameters()])
        else:
            self.inward(action, key)

    def forward(self, action: Action, key: tuple[int, int]) -> None:
        stage, micro = key
        x = self.tokens[micro]
        if stage:
            x = self.result_of(Action(stage - 1, "F", micro)).requires_grad_()
        with phase("forward"):
            made = self.engine(stage, x, self.tokens[micro], self.targets[micro])
        count = self.pipeline.schedule.micro_batches
        own = made if stage == len(self.rank_of) - 1 else made[1:]
        # What is a loss counts as one of so many micro-batches'.
        scaled = [part / count for part in own]
        self.losses += [part.detach() for part in scaled]
        self.inputs[key], self.outputs[key] = x, [*made[: len(made) - len(own)], *scaled]
        if len(own) < len(made):
            self.send(action, made[0].detach())

    def inward(self, action: Action, key: tuple[int, int]) -> None:
        """The gradient of a stage's input, and of its weights, too, if they
        do not wait."""
        stage, micro = key
        x, outputs = self.inputs[key], self.outputs[key]
        scale = self.engine.loss_scale
        gradients: list[Tensor | None] = [torch.full_like(part, scale) for part in outputs]
        if stage < len(self.rank_of) - 1:
            (before,) = self.orders_of(stage + 1, micro)
            gradients[0] = self.result_of(before)
        if action.kind == "B":
            self.backward(action, outputs, gradients, None)
            self.outputs.pop(key), self.inputs.pop(key)
            gradient = x.grad
        else:
            self.gradients[key] = gradients
            (gradient,) = torch.autograd.grad(outputs, [x], gradients, retain_graph=True) if stage else (None,)
        if stage:
            assert gradient is not None
            self.send(action, gradient)

    def orders_of(self, stage: int, micro: int) -> list[Action]:
        row = self.pipeline.schedule.rows[self.rank_of[stage]]
        return [a for a in row if a.kind in "BI" and (a.stage, a.micro) == (stage, micro)]

    def backward(
        self,
        action: Action,
        outputs: list[Tensor],
        gradients: list[Tensor | None],
        inputs: list[nn.Parameter] | None,
    ) -> None:
        reduce = self.pipeline.reduce == "micro-batch" or action == self.pipeline.last
        self.engine.check_ready()
        with ExitStack() as stack:
            stack.enter_context(backward_phase("backward"))
            self.engine.begin_backward(reduce)
            stack.enter_context(self.engine.taking_gradients())
            torch.autograd.backward(outputs, gradients, inputs=inputs)

    # Messages.

    def send(self, action: Action, tensor: Tensor) -> None:
        receiver = self.receiver(action)
        if receiver == self.comm.rank:
            self.here[action] = tensor
        elif receiver is not None:
            with phase("pipeline"):
                self.sent.append(self.comm.isend(tensor.contiguous(), receiver))

    def result_of(self, action: Action) -> Tensor:
        """What another action has made: hidden states, or their gradient."""
        rank = self.rank_of[action.stage]
        if rank == self.comm.rank:
            return self.here.pop(action)
        while action not in self.coming:
            before = self.orders[rank].pop(0)
            buffer = self.make_hidden(before.micro)
            self.coming[before] = self.comm.irecv(buffer, rank), buffer
        request, tensor = self.coming.pop(action)
        request.wait()
        return tensor

    def make_hidden(self, micro: int) -> Tensor:
        """Memory for the hidden states of a micro-batch, as they go from
        stage to stage."""
        batch, seq = self.tokens[micro].shape
        if self.model.sequence:
            seq //= self.engine.mesh.sizes["tp"]
        dtype = self.engine.buckets[0].dtype
        return torch.empty(batch, seq, self.model.config.dim, dtype=dtype, device=self.comm.device)

    def end(self) -> Tensor:
        """When all is done: the loss of the whole batch, on every stage."""
        for request in self.sent:
            request.wait()
        total = torch.stack(self.losses).sum() if self.losses else torch.zeros(())
        return self.comm.all_reduce(total.float().to(self.comm.device))
