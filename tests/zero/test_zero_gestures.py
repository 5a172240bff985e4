"""docs/gestures.md is true: what users of torch do by habit works on an engine as in plain torch, or is refused."""

import copy
import io
import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, parameters_to_vector, vector_to_parameters
from torch.utils.checkpoint import checkpoint

from zerolab import ZeroEngine, launch
from zerolab.collectives import Collectives
from zerolab.errors import StateError

PAGE = (Path(__file__).parents[2] / "docs" / "gestures.md").read_text()
RANKS, ROWS = 2, 8
NAMES = {
    **{"F": F, "checkpoint": checkpoint, "clip_grad_norm_": clip_grad_norm_, "clip_grad_value_": clip_grad_value_},
    **{"copy": copy, "io": io, "nn": nn, "parameters_to_vector": parameters_to_vector, "pickle": pickle},
    **{"torch": torch, "vector_to_parameters": vector_to_parameters, "GradScaler": torch.amp.GradScaler},
    **{"functional_call": torch.func.functional_call, "grad": torch.func.grad, "vmap": torch.func.vmap},
}
sgd = partial(torch.optim.SGD, lr=0.05)


class Model(nn.Module):
    """The model of the page. `more` is what its forward adds at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.layers[2].weight = self.layers[0].weight
        self.head = nn.Linear(6, 4)
        self.extra = nn.ParameterList([torch.full((6, 2), 0.3)])
        self.nested = nn.ModuleDict({"a": nn.ParameterDict({"b": torch.full((2, 4), 0.2)})})
        self.more = ""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        out = self.head(x)
        return out + eval(self.more, {**NAMES, "model": self, "h": x}).mean(1, keepdim=True) if self.more else out


def loss_of(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).square().mean()


def names_for(model: nn.Module, part: slice) -> dict[str, Any]:
    """What a row may use. `x` and `y` are a part of the batch."""
    generator = torch.Generator().manual_seed(3)
    batch = [torch.randn(ROWS, width, generator=generator)[part] for width in (6, 4)]
    state = {
        name: torch.linspace(-1, 1, value.numel()).view(value.shape) for name, value in Model().state_dict().items()
    }
    state["layers.2.weight"] = state["layers.0.weight"]
    count = sum(parameter.numel() for parameter in model.parameters())
    own = {"model": model, "x": batch[0], "y": batch[1], "state": state, "ema": torch.ones(4, 6), "count": count}
    return {**NAMES, **own, "loss_of": loss_of, "sgd": sgd}


def made() -> Model:
    torch.manual_seed(0)
    return Model()


@dataclass(frozen=True)
class Row:
    moment: str
    plain: str
    code: str
    outcomes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.moment}: {self.code}"

    def outcome(self, stage: int) -> str:
        return self.outcomes[stage == 3]

    def at(self, moment: str, code: str, names: dict[str, Any]) -> None:
        if self.moment == moment:
            exec(code, names)
            # As it is now: later steps write to what it may be a view of.
            names["seen"] = copy.deepcopy(names.get("seen"))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def code_in(cell: str) -> str:
    return "\n".join(re.findall(r"`([^`]*)`", cell))


def rows_of(page: str) -> Iterator[Row]:
    for section in page.split("\n## ")[1:]:
        moment, _, text = section.partition("\n")
        for line in [line for line in text.splitlines() if line.startswith("| `")]:
            plain, code, *outcomes = cells(line)
            if len(outcomes) == 2:
                yield Row(moment, code_in(plain), code_in(plain if code == "same" else code), tuple(outcomes))


GESTURES = list(rows_of(PAGE))
STEPS, BACKWARD, LOSS, FORWARD = (
    *("Between two steps", "Between backward and step", "In the loss", "In the model's forward"),
)


@cache
def plainly(row: Row) -> tuple[Any, dict[str, Tensor]]:
    """What the row sees, and the parameters at the end, with torch alone."""
    model = made()
    names = names_for(model, slice(None)) | {"optimizer": sgd(model.parameters())}
    model.more = row.plain if row.moment == FORWARD else ""
    for step in range(2):
        names["loss"] = loss_of(model(names["x"]), names["y"])
        row.at(LOSS, row.plain, names)
        names["loss"].backward()
        row.at(BACKWARD, row.plain, names)
        names["optimizer"].step()
        names["optimizer"].zero_grad()
        if step == 0:
            row.at(STEPS, row.plain, names)
    return names.get("seen"), dict(model.state_dict())


def by_engine(comm: Collectives, rows: list[Row], stage: int, settings: dict[str, Any]) -> list[SimpleNamespace]:
    """The same on a rank, row by row; or what it is told."""
    return [one_by_engine(comm, row, stage, settings) for row in rows]


def one_by_engine(comm: Collectives, row: Row, stage: int, settings: dict[str, Any]) -> SimpleNamespace:
    model = made()
    model.more = row.code if row.moment == FORWARD else ""
    engine = ZeroEngine(model, comm, stage, optimizer=sgd, **settings)
    share = ROWS // comm.size
    names = names_for(model, slice(comm.rank * share, (comm.rank + 1) * share)) | {"engine": engine}
    try:
        for step in range(2):
            names["loss"] = loss_of(engine(names["x"]), names["y"])
            row.at(LOSS, row.code, names)
            engine.backward(names["loss"])
            row.at(BACKWARD, row.code, names)
            engine.step()
            if step == 0:
                row.at(STEPS, row.code, names)
    except (RuntimeError, AttributeError) as error:
        return SimpleNamespace(seen=None, told=str(error), parameters={})
    return SimpleNamespace(seen=names.get("seen"), told="", parameters=engine.state_dict())


def assert_alike(seen: list[Any], wanted: Any) -> None:
    if isinstance(wanted, Tensor):
        joined = seen[0] if seen[0].shape == wanted.shape else torch.cat(seen)
        torch.testing.assert_close(joined, wanted)
    elif isinstance(wanted, dict):
        for each in seen:
            assert list(each) == list(wanted)
            for name, value in wanted.items():
                torch.testing.assert_close(each[name], value)
    else:
        assert seen == [pytest.approx(wanted, rel=1e-5) if isinstance(wanted, float) else wanted] * RANKS


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("stage", range(4))
def test_a_gesture_does_what_the_page_says(stage: int) -> None:
    """Each row at one of stages 0 to 2, in turn, and at stage 3; at stage 2 while new parameters are on their way."""
    rows = [row for number, row in enumerate(GESTURES) if stage in (number % 3, 3)]
    overlap = {"overlap_gather": stage == 2}
    by_rank = launch(by_engine, rows, stage, overlap, ranks=RANKS, world="lockstep", timeout=100)
    wrong = {}
    for row, ranks in zip(rows, zip(*by_rank, strict=True), strict=True):
        told = row.outcome(stage).removeprefix("refused: ")
        if told != "works":
            if not all(told in rank.told for rank in ranks):
                wrong[str(row)] = ranks[0].told or "it was not refused"
            continue
        try:
            assert [rank.told for rank in ranks] == [""] * RANKS
            seen, parameters = plainly(row)
            assert_alike([rank.seen for rank in ranks], seen)
            for rank in ranks:
                torch.testing.assert_close(rank.parameters, parameters)
        except AssertionError as error:
            wrong[str(row)] = str(error)
    assert wrong == {}


def apart_rows() -> Iterator[Row]:
    section = PAGE.split("\n## With a precision")[1]
    for line in [line for line in section.splitlines() if line.startswith("| `")]:
        code, between, inside = cells(line)
        yield Row(STEPS, "", code_in(code), (between, between))
        yield Row(STEPS, "", f"with engine.summon_full_params():\n {code_in(code)}", (inside, inside))


def test_what_main_parameters_would_overwrite_is_refused() -> None:
    rows = list(apart_rows())
    for found in launch(by_engine, rows, 1, {"precision": "bf16"}, ranks=RANKS, world="lockstep", timeout=60):
        for row, its in zip(rows, found, strict=True):
            assert row.outcome(1).removeprefix("refused: ") in its.told, row


def written_before_backward(comm: Collectives, stage: int, precision: str | None) -> str:
    """What backward says of a weight that is written to after the forward, or within backward itself."""
    model = made()
    engine = ZeroEngine(model, comm, stage, optimizer=sgd, precision=precision)
    x = torch.ones(2, 6).requires_grad_()

    def write(_: Any = None) -> None:
        with torch.no_grad():
            model.head.weight.mul_(0.5)

    if stage == 3:
        x.register_hook(write)
    loss = engine(x).float().square().mean()
    if stage != 3:
        write()
    with pytest.raises(StateError) as refused:
        engine.backward(loss)
        engine.step()
    return str(refused.value)


def test_what_would_be_lost_is_refused_before_the_step() -> None:
    for stage, precision in ((1, "bf16"), (3, None)):
        told = launch(written_before_backward, stage, precision, ranks=RANKS, world="lockstep", timeout=60)
        assert all("head.weight was written to, and that would be lost" in one for one in told), told


def test_the_page_has_forty_gestures_and_more_than_works() -> None:
    assert len(GESTURES) >= 40
    outcomes = {row.outcome(stage) for row in GESTURES for stage in range(4)}
    assert "works" in outcomes and len(outcomes) > 5
    assert {outcome.partition(": ")[0] for outcome in outcomes} == {"works", "refused"}
