"""Training a small language model on real text with any stage: one rank's loop, the whole run."""

from zerolab.lazy import TYPE_CHECKING, import_when_asked

if TYPE_CHECKING:
    from zerolab.train.run import Report, train, write_json

import_when_asked(__name__)
