"""For what a unit must be here, at stage 3."""


class Need:
    """For what one unit must be here, at stage 3. It is released when nothing is left:

              first module called         all its modules have run
    nothing ---------------------> forward -----------------------> nothing
            --------------------->         -----------------------> nothing, or backward's end
              an output's gradient backward  all gradients known of its runs' inputs and of its parameters

    inside    runs of its modules that have begun and not ended. Only in those its parameters are for everybody to use
    ran       of its modules, so many runs have ended in this forward
    passes    runs in the middle of their backward
    begun     its backward has begun. (A reentrant checkpoint's never does: its units stay to the end.)
    kept      it has run in a forward and stays for its backward, though nobody computes with it
    """

    __slots__ = ("begun", "inside", "kept", "passes", "ran")

    def __init__(self) -> None:
        self.inside = self.ran = self.passes = 0
        self.begun = self.kept = False
