"""What keeps a unit's parameters here, at stage 3."""


class Need:
    """What keeps one unit's parameters here, at stage 3. A run is one call of one of its modules. The unit is needed

    forward     from its first run until each of its modules has run
    backward    from the gradient of a run's output until the gradients of all inputs of its runs and of all its
                parameters are known, at the latest until backward ends

    inside    how many runs have begun and not ended; while there are any, everybody may use its parameters
    ran       how many runs have ended in this forward
    passes    how many runs are in the middle of their backward
    begun     whether its backward has begun. (A reentrant checkpoint's is not noticed: the unit stays to the end.)
    kept      whether it stays after its forward for its backward, though nobody computes with it now
    """

    __slots__ = ("begun", "inside", "kept", "passes", "ran")

    def __init__(self) -> None:
        self.inside = self.ran = self.passes = 0
        self.begun = self.kept = False
