"""Small GGUF files, written the way llama.cpp's converter writes them; nothing here looks at how we read them."""

from typing import NamedTuple

import gguf
import gguf_words
import hugging
import numpy as np

ROWS, IDS = gguf_words.count(gguf_words.BYTES)
SIZES = {**hugging.CONFIG, "vocab_size": ROWS, "num_attention_heads": 4, "num_key_value_heads": 2}
del SIZES["dtype"]
LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3"}
KEYS = {
    "max_position_embeddings": "context_length", "hidden_size": "embedding_length", "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length", "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv", "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}  # fmt: skip


class Blocks(NamedTuple):
    """A quantised tensor: for each row its bytes."""

    kind: str
    rows: np.ndarray


def values_of(**changes):
    """A small config."""
    return {**SIZES, **changes}


def tensors(dtype="f32", **changes):
    """Random ones for it, by their Hugging Face names."""
    made = hugging.tensors(dtype, **values_of(**changes))
    return {name: array / 8 if array.ndim > 1 else array for name, array in made.items()}


def metadata(values):
    """The fields of a Hugging Face config, in the dialect of its authors."""
    family, width = ARCHITECTURES[values["model_type"]], values.get("head_dim")
    own = {key: values[name] for name, key in KEYS.items() if values.get(name)}
    own["attention.layer_norm_rms_epsilon"] = values.get("rms_norm_eps", 1e-6)
    if width:
        own |= {"attention.key_length": width, "attention.value_length": width}
    if family == "llama":
        own |= {"vocab_size": values["vocab_size"]}
        own |= {"rope.dimension_count": width or values["hidden_size"] // values["num_attention_heads"]}
    if family == "gemma3":
        own |= {"attention.sliding_window": values["sliding_window"], "rope.freq_base": values.get("rope_theta", 1e6)}
        if "rope_local_base_freq" in values:
            own |= {"rope.freq_base_swa": values["rope_local_base_freq"]}
    scaling = values.get("rope_scaling") or {}
    if scaling.get("rope_type") in ("linear", "yarn"):
        own |= {"rope.scaling.type": scaling["rope_type"], "rope.scaling.factor": float(scaling["factor"])}
    if scaling.get("rope_type") == "yarn":
        own["rope.scaling.original_context_length"] = scaling["original_max_position_embeddings"]
        own |= {f"rope.scaling.yarn_{name}": float(scaling[name])
                for name in ("beta_fast", "beta_slow", "attention_factor") if name in scaling}  # fmt: skip
    return {f"{family}.{key}": value for key, value in own.items()}


def rope_factors(values):
    """What Llama 3 divides the frequency of each pair by."""
    s = values["rope_scaling"]
    width = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
    factors = []
    for pair in range(width // 2):
        wavelength = 2 * np.pi * values["rope_theta"] ** (2 * pair / width)
        turns = s["original_max_position_embeddings"] / wavelength
        kept = (turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
        kept = min(1, max(0, kept))
        factors.append(1 / (kept + (1 - kept) / s["factor"]))
    return np.array(factors, np.float32)


def _rows(values, name, array):
    """Rows of llama's queries and keys: of a head, `0, d/2, 1, d/2 + 1, ...`."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    module = name.split(".")[-2]
    if ARCHITECTURES[values["model_type"]] != "llama" or module not in heads:
        return array
    count = values[heads[module]]
    return array.reshape(count, 2, len(array) // count // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def put_tensor(writer, name, array):
    """By the type of the array; of `bfloat16` and of blocks the package knows bytes only."""
    if isinstance(array, Blocks):
        writer.add_tensor(name, array.rows, raw_dtype=gguf.GGMLQuantizationType[array.kind])
    elif array.dtype.name == "bfloat16":
        writer.add_tensor(name, array.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, array)


def put_field(writer, key, value):
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
              list: writer.add_array}  # fmt: skip
    adder = writer.add_int32 if isinstance(value, int) and value < 0 else adders[type(value)]
    adder(key, value)


def write(path, values, made, *, words=gguf_words.BYTES, fields=None, extra=None, per_file=0, **options):
    """A file of a config and tensors by their Hugging Face names.

    Args:
      words: the fields `tokenizer.*`.
      fields: more fields, or others; None for a value leaves the field out.
      extra: tensors by their GGUF names.
      per_file: so many tensors in each of several files, of which the first is returned; 0 writes one.
      options: of `gguf.GGUFWriter`.
    """
    family = ARCHITECTURES.get(values["model_type"], values["model_type"])
    writer = gguf.GGUFWriter(path, family, split_max_tensors=per_file, **options)
    for key, value in ({"general.name": "Tiny"} | metadata(values) | words | (fields or {})).items():
        if value is not None:
            put_field(writer, key, value)
    theirs = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.upper()], values["num_hidden_layers"])
    for name, array in made.items():
        if isinstance(array, Blocks):
            array = array._replace(rows=_rows(values, name, array.rows))
        else:
            array = _rows(values, name, array)
            if family == "gemma3" and name.endswith("norm.weight"):
                array = array + np.ones((), array.dtype)
        put_tensor(writer, theirs.get_name(name, (".weight", ".bias")), array)
    if (values.get("rope_scaling") or {}).get("rope_type") == "llama3":
        put_tensor(writer, "rope_freqs.weight", rope_factors(values))
    for name, array in (extra or {}).items():
        put_tensor(writer, name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return min(path.parent.glob(f"{path.stem}-*.gguf")) if per_file else path
