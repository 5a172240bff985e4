"""N ranks running a function, from anywhere: `launch`."""

from zerolab.ranks.failure import RankFailure
from zerolab.ranks.launch import launch
from zerolab.ranks.lockstep_world import spend
from zerolab.ranks.pace import Pace
from zerolab.ranks.results import Results

__all__ = ["Pace", "RankFailure", "Results", "launch", "spend"]
