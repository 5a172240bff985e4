"""`--zero-debug`: what each rank keeps, and what it calls and sends in a step, as lines in the order of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zerolab.collectives import Collectives, phase
from zerolab.collectives.observe import gather_records
from zerolab.run import RunSpec
from zerolab.zero import ZeroEngine

COUNTED = ("all_reduce", "reduce_scatter", "all_gather")
STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""What Megatron-LM calls stages 0 to 3."""


def start_line(config: RunSpec) -> str:
    """What texts on Megatron's flags have a reader look for in a log."""
    return f"Distributed optimizer: enabled={config.zero_stage > 0} strategy={STRATEGIES[config.zero_stage]}"


class ZeroDebug:
    """Says what `--zero-debug` asks for, by `say`, which only rank 0 hears. All ranks make the same calls."""

    def __init__(
        self,
        comm: Collectives,
        engine: ZeroEngine,
        config: RunSpec,
        phases: Sequence[str],
        say: Callable[[str], None],
    ) -> None:
        self.comm, self.engine, self.config, self.phases, self.say = comm, engine, config, phases, say
        self.left = config.zero_debug_max_steps if config.zero_debug else 0
        if config.zero_debug:
            self._tell([self._init_line(), *self._map_lines()])
        self._before = self._counts()

    def step_ended(self, step: int, settle: Callable[[], None]) -> None:
        """After step `step` (the first is 1): its calls and bytes, once `settle` has waited for all of them."""
        if not self.left:
            return
        self.left -= 1
        settle()
        now = self._counts()
        words = [f"step={step}"]
        for name in COUNTED:
            calls, nbytes = (new - old for new, old in zip(now[name], self._before[name], strict=True))
            words += [f"{name}_calls={calls}", f"{name}_bytes={nbytes}"]
        self._before = now
        self._tell([" ".join(words)])

    def _counts(self) -> dict[str, tuple[int, int]]:
        meter = self.comm.meter
        assert meter is not None
        calls, sent = meter.calls_by_collective(*self.phases), meter.bytes_by_collective(*self.phases)
        return {name: (calls.get(name, 0), sent.get(name, 0)) for name in COUNTED}

    def _init_line(self) -> str:
        engine, rank = self.engine, self.engine.owner
        layouts = [plan.layout for plan in engine.plans]
        trained = [plan.layout for plan in engine.plans if plan.trainable]
        if rank is None:
            updated = sum(layout.used for layout in trained)
        else:
            updated = sum(piece.numel for layout in trained for piece in layout.pieces(rank))
        return (
            f"init strategy={STRATEGIES[engine.stage]} zero_stage={engine.stage} ranks={self.comm.size} "
            f"instances={self.config.num_distributed_optimizer_instances} reduction={self._reduction()} "
            f"buckets={len(layouts)} parameters={sum(layout.used for layout in layouts)} updated_here={updated}"
        )

    def _reduction(self) -> str:
        return ["all_reduce", self.config.reduction, "reduce_scatter", "reduce_scatter"][self.engine.stage]

    def _map_lines(self) -> list[str]:
        """Which part of each parameter this rank's optimizer updates, of the first few parameters."""
        lines: list[str] = []
        rank = self.engine.owner
        for plan in self.engine.plans:
            layout = plan.layout
            owned = {} if rank is None else {piece.slot.name: piece for piece in layout.pieces(rank)}
            for slot in layout.slots:
                if len(lines) == self.config.zero_debug_max_params:
                    return lines
                start, stop = 0, slot.numel
                if rank is not None:
                    piece = owned.get(slot.name)
                    start, stop = (0, 0) if piece is None else (piece.start - slot.start, piece.stop - slot.start)
                lines.append(
                    f"shard_map parameter={slot.name} shape={'x'.join(map(str, slot.shape)) or 'scalar'} "
                    f"elements={start}:{stop} of={slot.numel}"
                )
        return lines

    def _tell(self, own_lines: list[str]) -> None:
        with phase("report"):
            of_ranks = gather_records(self.comm, own_lines)
        for rank, lines in enumerate(of_ranks):
            for line in lines:
                self.say(f"[ZeRO Debug][rank={rank}] {line}")
