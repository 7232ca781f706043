"""Architectures of transformers, in tiny configurations with random weights; the loss is the model's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from netsplit.beside_torchvision import import_torchvision
from tests.models_of_people.cases import Loaded

__all__ = ["MODELS", "load"]

SAMPLES, LENGTH, WORDS, SIDE, CLASSES = 4, 8, 64, 32, 5
COMMON = {
    "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "intermediate_size": 32, "max_position_embeddings": 32, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "head_dim": 8, "image_size": SIDE, "patch_size": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Tiny:
    """A model class, and what its configuration has beside `COMMON`."""

    head: str  # of the class's name, e.g. "ForCausalLM"
    feed: str  # of `_FEEDS`
    given: dict[str, Any] = field(default_factory=dict)
    config: str = ""  # the configuration's class, where its name is not the model's


def _encoder_decoder(**given: Any) -> dict[str, Any]:
    return {
        "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
        "forced_eos_token_id": None, **given,
    }  # fmt: skip


_SPEECH = {
    "conv_dim": (8, 8), "conv_stride": (4, 4), "conv_kernel": (8, 8), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0,
    "apply_spec_augment": False, "classifier_proj_size": 8,
}  # fmt: skip
_STAGES = {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2, "patch_size": 4}
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16, "decoder_sparse_step": 1}  # fmt: skip

MODELS = {
    "Llama": Tiny("ForCausalLM", "language"),
    "Mistral": Tiny("ForCausalLM", "language", {"sliding_window": 4}),
    "Qwen2": Tiny("ForCausalLM", "language"),
    "Qwen3": Tiny("ForCausalLM", "language"),
    "Gemma": Tiny("ForCausalLM", "language"),
    "Phi": Tiny("ForCausalLM", "language"),
    "Falcon": Tiny("ForCausalLM", "language"),
    "GPTNeoX": Tiny("ForCausalLM", "language"),
    "GPTNeo": Tiny("ForCausalLM", "language", {"num_layers": 2, "num_heads": 2, "window_size": 4,
                                               "attention_types": [[["global", "local"], 1]]}),
    "GPT2": Tiny("LMHeadModel", "language", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}),
    "OPT": Tiny("ForCausalLM", "language", {"ffn_dim": 32, "word_embed_proj_dim": 16}),
    "Bloom": Tiny("ForCausalLM", "language", {"n_layer": 2, "n_head": 2}),
    "Mixtral": Tiny("ForCausalLM", "language", _EXPERTS),
    "Qwen2Moe": Tiny("ForCausalLM", "language", _EXPERTS),
    "Mamba": Tiny("ForCausalLM", "language", {"state_size": 4}),
    "Rwkv": Tiny("ForCausalLM", "language", {"attention_hidden_size": 16, "context_length": 32}),
    "Bert": Tiny("ForMaskedLM", "language"),
    "Roberta": Tiny("ForSequenceClassification", "text"),
    "DistilBert": Tiny("ForSequenceClassification", "text", {"dim": 16, "n_layers": 2, "n_heads": 2,
                                                            "hidden_dim": 32}),
    "Albert": Tiny("ForSequenceClassification", "text", {"embedding_size": 8}),
    "Electra": Tiny("ForSequenceClassification", "text", {"embedding_size": 8}),
    "DebertaV2": Tiny("ForSequenceClassification", "text", {"relative_attention": True,
                                                            "pos_att_type": ["p2c", "c2p"]}),
    "RoFormer": Tiny("ForSequenceClassification", "text", {"embedding_size": 16}),
    "ConvBert": Tiny("ForSequenceClassification", "text", {"embedding_size": 16, "head_ratio": 1}),
    "Longformer": Tiny("ForSequenceClassification", "text", {"attention_window": 4}),
    "Funnel": Tiny("ForSequenceClassification", "text", {"d_model": 16, "n_head": 2, "d_head": 8,
                                                         "d_inner": 32, "block_sizes": [1, 1],
                                                         "num_decoder_layers": 1}),
    "MobileBert": Tiny("ForSequenceClassification", "text", {"embedding_size": 8, "intra_bottleneck_size": 8,
                                                             "true_hidden_size": 8}),
    "MPNet": Tiny("ForSequenceClassification", "text"),
    "Nystromformer": Tiny("ForSequenceClassification", "text", {"num_landmarks": 4,
                                                               "segment_means_seq_len": 8}),
    "T5": Tiny("ForConditionalGeneration", "language", {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2,
                                                        "num_heads": 2}),
    "Bart": Tiny("ForConditionalGeneration", "language", _encoder_decoder()),
    "MBart": Tiny("ForConditionalGeneration", "language", _encoder_decoder()),
    "Pegasus": Tiny("ForConditionalGeneration", "language", _encoder_decoder()),
    "Whisper": Tiny("ForConditionalGeneration", "spectrum", _encoder_decoder(
        num_mel_bins=8, max_source_positions=8, max_target_positions=16)),
    "Wav2Vec2": Tiny("ForSequenceClassification", "sound", _SPEECH),
    "Hubert": Tiny("ForSequenceClassification", "sound", _SPEECH),
    "ViT": Tiny("ForImageClassification", "picture"),
    "DeiT": Tiny("ForImageClassification", "picture"),
    "Swin": Tiny("ForImageClassification", "picture", _STAGES),
    "Beit": Tiny("ForImageClassification", "picture"),
    "ConvNext": Tiny("ForImageClassification", "picture", {"hidden_sizes": [8, 16], "depths": [1, 1],
                                                           "num_stages": 2, "patch_size": 4}),
    "ResNet": Tiny("ForImageClassification", "picture", {"embedding_size": 8, "hidden_sizes": [8, 16],
                                                         "depths": [1, 1], "layer_type": "basic"}),
    "Segformer": Tiny("ForSemanticSegmentation", "map", {
        "hidden_sizes": [8, 16], "depths": [1, 1], "num_encoder_blocks": 2, "num_attention_heads": [1, 2],
        "sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2],
        "decoder_hidden_size": 8}),
    "CLIP": Tiny("Model", "both", {"projection_dim": 8}),
}  # fmt: skip


def load(name: str) -> Loaded:
    """The model, fed by keyword."""
    import_torchvision()  # transformers imports it
    import transformers

    tiny = MODELS[name]
    config = getattr(transformers, tiny.config or f"{name}Config")
    if name == "CLIP":
        part = {key: COMMON[key] for key in COMMON if key != "head_dim"}
        text = transformers.CLIPTextConfig(**{**part, "eos_token_id": WORDS - 1})
        made = config(text_config=text.to_dict(), vision_config=part, **tiny.given)
    else:
        known = inspect.signature(config.__init__).parameters
        anything = any(each.kind is each.VAR_KEYWORD for each in known.values())
        made = config(**{k: v for k, v in {**COMMON, **tiny.given}.items() if anything or k in known})
    made.use_cache, made.num_labels = False, CLASSES
    made.decoder_start_token_id = 2
    made._experts_implementation = "eager"  # the grouped product has no float64
    model: nn.Module = getattr(transformers, name + tiny.head)(made)
    model.train()
    batch = _FEEDS[tiny.feed]
    return Loaded(model, None, lambda seed: (batch(torch.Generator().manual_seed(seed)), None))


def _words(generator: torch.Generator) -> Tensor:
    return torch.randint(3, WORDS - 1, (SAMPLES, LENGTH), generator=generator)


def _classes(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(0, CLASSES, (SAMPLES, *shape), generator=generator)


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(SAMPLES, *shape, generator=generator)


_FEEDS: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "language": lambda g: {"input_ids": _words(g), "labels": _words(g)},
    "text": lambda g: {"input_ids": _words(g), "labels": _classes(g)},
    "picture": lambda g: {"pixel_values": _normal(g, 3, SIDE, SIDE), "labels": _classes(g)},
    "map": lambda g: {"pixel_values": _normal(g, 3, SIDE, SIDE), "labels": _classes(g, SIDE, SIDE)},
    "sound": lambda g: {"input_values": _normal(g, 400), "labels": _classes(g)},
    "spectrum": lambda g: {"input_features": _normal(g, 8, 16), "labels": _words(g)},
    "both": lambda g: {
        "input_ids": _words(g),
        "pixel_values": _normal(g, 3, SIDE, SIDE),
        "return_loss": True,
    },
}
