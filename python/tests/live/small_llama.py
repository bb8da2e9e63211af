"""A Llama with random weights, made here: as small as a test wants it, and nothing is downloaded.

The weights are larger than those of a trained model. So an answer depends on all tokens before it, and a wrong byte in the KV
cache shows in the tokens.
"""
import json
import pathlib

import torch
from safetensors.torch import save_file


def make(folder, *, hidden=64, layers=3, heads=2, kv_heads=2, inner=128, vocabulary=512, tokens=8192, dtype="float32", seed=1,
         spread=4.0):
    """Writes the model into the folder, and returns the folder as a text. spread: the standard deviation of attention's
    weights, over that of usual ones."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    head = hidden // heads
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "num_hidden_layers": layers, "head_dim": head,
        "vocab_size": vocabulary, "max_position_embeddings": tokens, "torch_dtype": dtype, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}))
    random = torch.Generator().manual_seed(seed)

    def matrix(rows, columns, times=1.0):
        return (torch.randn(rows, columns, generator=random) * times * columns ** -0.5).to(getattr(torch, dtype))

    ones = torch.ones(hidden, dtype=getattr(torch, dtype))
    weights = {"model.embed_tokens.weight": matrix(vocabulary, hidden, hidden ** 0.5), "model.norm.weight": ones.clone(),
               "lm_head.weight": matrix(vocabulary, hidden)}
    for i in range(layers):
        at = f"model.layers.{i}."
        weights |= {
            at + "self_attn.q_proj.weight": matrix(heads * head, hidden, spread ** 0.5),
            at + "self_attn.k_proj.weight": matrix(kv_heads * head, hidden, spread ** 0.5),
            at + "self_attn.v_proj.weight": matrix(kv_heads * head, hidden, spread),
            at + "self_attn.o_proj.weight": matrix(hidden, heads * head, spread),
            at + "mlp.gate_proj.weight": matrix(inner, hidden), at + "mlp.up_proj.weight": matrix(inner, hidden),
            at + "mlp.down_proj.weight": matrix(hidden, inner),
            at + "input_layernorm.weight": ones.clone(), at + "post_attention_layernorm.weight": ones.clone()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)
