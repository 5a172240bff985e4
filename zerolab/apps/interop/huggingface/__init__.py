"""Our models in Hugging Face's folders and theirs in our models: config.json, names, layouts, safetensors files.

    save_folder("out", model.config, export(model.config, model.state_dict().__getitem__))
    model = from_pretrained("out")                      # and LlamaForCausalLM.from_pretrained("out")
    config, tensors = load_folder("out")                # a tensor is read when it is asked for, by our name

`config.py` translates config.json, and `folder.py` tensors, one by one. Nothing here imports transformers.
"""

from zerolab.apps.interop.huggingface.config import from_huggingface, to_huggingface
from zerolab.apps.interop.huggingface.folder import (
    export,
    from_pretrained,
    import_tensors,
    load_folder,
    rows,
    save_folder,
)

__all__ = [
    "export",
    "from_huggingface",
    "from_pretrained",
    "import_tensors",
    "load_folder",
    "rows",
    "save_folder",
    "to_huggingface",
]
