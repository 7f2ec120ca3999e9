"""`transformers` loads what we give back."""

import pytest
from hf_families import FAMILIES, SIZES
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from specjax import checkpoints


@pytest.mark.parametrize("family", ["llama-biased-tied", "qwen2", "gemma3"])
def test_nothing_is_missing_or_unexpected(family, make, torch, transformers, tmp_path):
    model_type, settings = FAMILIES[family]
    module, folder = make(model_type, **settings)
    words = {str(i): i for i in range(SIZES["vocab_size"])}
    Tokenizer(WordLevel(words, unk_token="0")).save(str(folder / "tokenizer.json"))
    checkpoints.from_huggingface(folder, tmp_path / "ours")
    checkpoints.to_huggingface(tmp_path / "ours", tmp_path / "back", shard_bytes=40_000)
    again, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    want = module.state_dict()
    assert all(torch.equal(tensor, want[name]) for name, tensor in again.state_dict().items())
