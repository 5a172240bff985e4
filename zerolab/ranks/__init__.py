"""N ranks running a function, from anywhere: `launch`; and ranks that are there already: `from_process_group`."""

from zerolab.lazy import TYPE_CHECKING, import_when_asked

if TYPE_CHECKING:
    from zerolab.ranks.compute import SimulatedCompute
    from zerolab.ranks.failure import RankFailure
    from zerolab.ranks.job import Results
    from zerolab.ranks.join import from_process_group
    from zerolab.ranks.launch import launch
    from zerolab.ranks.lockstep.world import spend

import_when_asked(__name__)
