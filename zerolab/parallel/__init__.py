"""Grids of parallelism: a mesh of ranks, and layers whose parameters are sharded along its axes."""

from zerolab.lazy import TYPE_CHECKING, import_when_asked

if TYPE_CHECKING:
    from zerolab.parallel.mesh import Grid, Mesh

import_when_asked(__name__)
