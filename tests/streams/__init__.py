"""A GPU that is not there: what happens before what on streams, seen on tensors of the CPU.

    clocks.py   the checker: who has done what before whom, in vector clocks, and memory that comes and goes in the
                order of streams
    device.py   the fakes: the library's door to a GPU (`zerolab.gpu`), NCCL's collectives, a lane
    runs.py     training runs under the checker, and mutants: the same with one wait, event or guard left out

A tensor is on the pretended GPU if it was made with the device `GPU`, "cpu:0": torch hands that name to its factories
and copies, and makes a tensor of the CPU.
"""
