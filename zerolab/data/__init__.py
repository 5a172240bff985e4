"""Text that is really there, as tokens, in batches that are the same for every number of ranks.

corpus = load_corpus("embedded", seq_len=128)                       # once, before ranks start
batches = Batches(corpus.train, seq_len=128, batch_size=8, ranks=comm.size, rank=comm.rank)
for inputs, targets in batches.step(0): ...
"""

from zerolab.lazy import TYPE_CHECKING, import_when_asked

if TYPE_CHECKING:
    from zerolab.data.batches import Batches, check_division
    from zerolab.data.bins import find_dataset, prepare, read_meta
    from zerolab.data.corpus import BYTES, Corpus, MappedCorpus, load_corpus, load_dataset, split
    from zerolab.data.text import EMBEDDED, Text, load_text
    from zerolab.data.tokenizer import ByteTokenizer, CharacterTokenizer

import_when_asked(__name__)
