"""Grids of parallelism: a mesh of ranks, and layers whose parameters are
sharded along its axes."""

from zerolab.lazy import TYPE_CHECKING, import_when_asked

if TYPE_CHECKING:
    from zerolab.parallel.actions import (
        Schedule,
        gpipe,
        interleaved,
        one_forward_one_backward,
        read_schedule,
        zero_bubble,
    )
    from zerolab.parallel.check import check
    from zerolab.parallel.engine import GridEngine
    from zerolab.parallel.exchange import all_to_all, exchange, maximum
    from zerolab.parallel.experts import ExpertLayer, MixtureOfExperts
    from zerolab.parallel.mesh import Grid, Mesh
    from zerolab.parallel.pipeline import Pipeline, cut_stages
    from zerolab.parallel.placement import Cut, sharded, unshard
    from zerolab.parallel.tensor import shard_model

import_when_asked(__name__)
