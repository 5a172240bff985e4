"""Our models in Hugging Face's folders and theirs in our models: config.json (`config`), and tensors (`weights`)."""

from zerolab.lazy import TYPE_CHECKING, import_when_asked

if TYPE_CHECKING:
    from zerolab.apps.interop.huggingface.config import from_huggingface, to_huggingface
    from zerolab.apps.interop.huggingface.weights import (
        export,
        from_pretrained,
        import_tensors,
        load_folder,
        rows,
        save_folder,
        weights_of,
        with_shape,
    )

import_when_asked(__name__)
