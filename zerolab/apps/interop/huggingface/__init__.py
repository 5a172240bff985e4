"""Our models in Hugging Face's folders and theirs in our models: config.json, names, layouts, safetensors files.

    save_folder("out", model.config, export(model.config, model.state_dict().__getitem__))
    model = from_pretrained("out")                      # and LlamaForCausalLM.from_pretrained("out")
    config, tensors = load_folder("out")                # a tensor is read when it is asked for, by our name

`config.py` translates config.json, `names.py` the tensors, one by one, and `folder.py` reads and writes files. Nothing
here imports transformers.
"""

from zerolab.apps.interop.huggingface.config import from_huggingface, to_huggingface
from zerolab.apps.interop.huggingface.folder import from_pretrained, load_folder, save_folder
from zerolab.apps.interop.huggingface.names import Imported, NameRow, export, rows

__all__ = [
    "Imported",
    "NameRow",
    "export",
    "from_huggingface",
    "from_pretrained",
    "load_folder",
    "rows",
    "save_folder",
    "to_huggingface",
]
