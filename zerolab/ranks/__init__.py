"""N ranks running a function, from anywhere: `launch`; and ranks that are there already: `from_process_group`."""

from zerolab.ranks.compute import SimulatedCompute
from zerolab.ranks.failure import RankFailure
from zerolab.ranks.job import Results
from zerolab.ranks.join import from_process_group
from zerolab.ranks.launch import launch
from zerolab.ranks.lockstep.world import spend

__all__ = ["SimulatedCompute", "RankFailure", "Results", "from_process_group", "launch", "spend"]
