"""Language models to shard: LLaMA-style and GPT-2, in sizes from a test's to a GPU's.

model = build("llama", "tiny", vocab_size=256)
loss = model(tokens, targets)
for unit in model.units(): ...          # what ZeRO shards one by one
"""

from zerolab.lazy import TYPE_CHECKING, import_when_asked

if TYPE_CHECKING:
    from zerolab.models.common import LanguageModel
    from zerolab.models.gpt2 import GPT2
    from zerolab.models.llama import Llama
    from zerolab.models.make import build, build_model, parameter_count, unit_parameters
    from zerolab.models.sizes import BYTE_VOCABULARY, SIZES, Config, GPT2Config, LlamaConfig, config_of

import_when_asked(__name__)
