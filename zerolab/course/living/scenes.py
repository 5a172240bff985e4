"""The pictures that move: what a reader can set in each, and which settings are recorded for pages without a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

from zerolab.apps.plan import SHAPES
from zerolab.course.living.scene import Control, Layer, Scene
from zerolab.course.viz.calculator import GPUS, bars, judged, mark, wall
from zerolab.course.viz.drawing import Frame
from zerolab.course.viz.film import COLLECTIVES
from zerolab.course.viz.moment import ring_frames
from zerolab.course.viz.picture import MOST_RANKS
from zerolab.course.viz.reshard import reshard_frames
from zerolab.course.viz.shards import shard_frames
from zerolab.course.viz.skyline import step_frames
from zerolab.course.viz.stages import stage_frames
from zerolab.course.viz.step import StepRun
from zerolab.flat import lay_out
from zerolab.models import build
from zerolab.precision import PRECISIONS
from zerolab.run import OFFLOADS, RunSpec
from zerolab.zero.table import STAGES

Shapes = Mapping[str, Sequence[int]]
BOTH = (True, False)
COUNTS = range(1, MOST_RANKS + 1)

RING = Scene(
    "ring",
    (Control("collective", "collective", COLLECTIVES), Control("ranks", "ranks", range(2, MOST_RANKS + 1))),
    (Layer(("collective", "ranks"), ring_frames),),
    stop=Control("step", "steps done", ()),
)
STEP = Scene(
    "stages",
    (Control("stage", "stage", tuple(STAGES)),),
    (Layer(("stage",), stage_frames),),
    stop=Control("moment", "moment", ()),
)


def timeline_frames(**settings: Any) -> list[Frame]:
    return step_frames(StepRun(**settings))


TIMELINE_CONTROLS = (
    Control("stage", "stage", tuple(STAGES)),
    Control("prefetch", "gather ahead (stage 3)", BOTH),
    Control("overlap", "reduce during backward", BOTH),
    Control("offload", "optimizer on the host (1 to 3)", BOTH),
    Control("ranks", "ranks", (4,), (1, 2, 3, 4)),
    Control("gbit_per_s", "gigabits a second", (10.0,), (1.0, 5.0, 10.0, 25.0, 100.0)),
    Control("latency_us", "latency, µs", (5.0,), (0.0, 1.0, 5.0, 20.0, 50.0)),
)
TIMELINE = Scene(
    "timeline",
    TIMELINE_CONTROLS,
    (Layer(tuple(one.name for one in TIMELINE_CONTROLS), timeline_frames),),
)

# Shapes: of the flat buffer, and of checkpoints.

SMALL: Shapes = {"w": (6,), "b": (3,)}
NET: Shapes = {"0.weight": (40, 24), "0.bias": (40,), "3.weight": (8, 40), "3.bias": (8,)}
OWN = "these parameters"
ALIGNS = (1, 2, 4, 8, 16, 32, 64)


def block(model: str) -> Shapes:
    """The shapes of a block of a small model."""
    with torch.device("meta"):
        first = build(model, "nano").blocks[0]
    assert isinstance(first, nn.Module)
    return {name: tuple(parameter.shape) for name, parameter in first.named_parameters()}


@cache
def known() -> dict[str, Shapes]:
    """What is laid out, by name."""
    return {
        "two parameters": SMALL,
        "a block of llama nano": block("llama"),
        "a block of gpt2 nano": block("gpt2"),
        "the net of lesson 08": NET,
    }


def same(shapes: Shapes, name: str) -> bool:
    return [*known()[name].items()] == [(name, tuple(shape)) for name, shape in shapes.items()]


def of_models(shapes: Shapes, *names: str) -> Control:
    """Whose parameters are laid out: those of `names` are recorded, a kernel also draws those of these shapes."""
    more = () if any(same(shapes, name) for name in names) else (OWN,)
    return Control("model", "parameters of", names, (*names, *more))


def name_of(shapes: Shapes, scene: Scene) -> str:
    """What a scene calls parameters of these shapes."""
    return next((name for name in scene.controls[0].values if same(shapes, name)), OWN)


def shards(shapes: Shapes = SMALL) -> Scene:
    """The scene of the flat buffer, which a kernel can also draw for these shapes."""

    def frames(model: str, ranks: int, align: int) -> list[Frame]:
        return shard_frames(lay_out(shapes if model == OWN else known()[model], ranks, align))

    controls = (
        of_models(shapes, "two parameters", "a block of llama nano", "a block of gpt2 nano"),
        Control("ranks", "ranks", COUNTS),
        Control("align", "slots start at multiples of", ALIGNS),
    )
    layer = Layer(("model", "ranks", "align"), frames)
    return Scene("shards", controls, (layer,), Control("picture", "moves done", ()))


def reshard(shapes: Shapes = NET, nbytes: int = 14, align: int = 32) -> Scene:
    """The scene of a checkpoint that other ranks load than have saved it, `nbytes` an element with its states."""
    names = ["the net of lesson 08"] if (nbytes, align) == (14, 32) else []

    def frames(model: str, saved_by: int, loaded_by: int, stage: int) -> list[Frame]:
        found = shapes if model == OWN else known()[model]
        return reshard_frames(lay_out(found, saved_by, align), lay_out(found, loaded_by, align), stage, nbytes)

    controls = (
        of_models(shapes, *names),
        Control("saved_by", "ranks that saved", COUNTS),
        Control("loaded_by", "ranks that load", COUNTS),
        Control("stage", "stage that loads", tuple(STAGES)),
    )
    layer = Layer(("model", "saved_by", "loaded_by", "stage"), frames)
    return Scene("reshard", controls, (layer,), Control("read", "ranks that have read", ()))


# The memory calculator.

TOKENS = tuple(2**power for power in range(6, 14))
ROWS = ("model", "ranks", "precision", "offload", "checkpoint_activations", "seq_len", "micro_batch_size")
"""What the bars hang on."""
MODELS = ("GPT-2 124M", "GPT-2 1.5B", "GPT-3 6.7B", "GPT-3 175B", "Llama 3 8B", "Llama 3 70B", "Mixtral 8x7B")


def run_of(model: str, seq_len: int, stage: int = 3, **settings: Any) -> RunSpec:
    """A run of these settings, at the highest stage if none is named; a sequence is never longer than its model's
    context."""
    shape = SHAPES[model]
    return RunSpec(shape, stage=stage, seq_len=min(seq_len, shape.config.max_seq_len), **settings)


CALCULATOR = Scene(
    "memory",
    (
        Control("model", "model", MODELS, tuple(SHAPES)),
        Control("gpu", "memory of a GPU", tuple(GPUS)),
        Control("ranks", "ranks", (1, 8, 64, 512, 4096), tuple(2**power for power in range(14))),
        Control("stage", "stage", tuple(STAGES)),
        Control("precision", "precision", ("bf16",), tuple(PRECISIONS)),
        Control("offload", "on the host", ("nothing", "optimizer"), tuple(OFFLOADS)),
        Control("micro_batch_size", "sequences a rank", (1,), tuple(2**power for power in range(8))),
        Control("seq_len", "tokens of a sequence", (2048,), TOKENS),
        Control("checkpoint_activations", "recompute activations", BOTH),
    ),
    (
        Layer(ROWS, lambda **settings: [bars(run_of(**settings))]),
        Layer((*ROWS, "gpu"), lambda gpu, **settings: [wall(run_of(**settings), gpu)]),
        Layer((*ROWS, "stage"), lambda **settings: [mark(run_of(**settings))]),
        Layer((*ROWS, "stage", "gpu"), lambda gpu, **settings: [judged(run_of(**settings), gpu)]),
    ),
    about="Other models, lengths and numbers of ranks: zerolab plan --model llama3-8b --ranks 48 --zero-stage 3",
)

SCENES = {scene.name: scene for scene in (RING, STEP, TIMELINE, shards(), reshard(), CALCULATOR)}
"""Every scene by its name."""
