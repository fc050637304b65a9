"""The one decoder layer of a draft: its modules, under the names that the weights file gives them."""

from torch import Tensor, nn
from torch.nn import functional

from .draft_config import DraftConfig


class Attention(nn.Module):
    """Projections of the one attention layer, whose queries, keys and values see `width` numbers."""

    def __init__(self, config: DraftConfig, width: int, *, bias: bool) -> None:
        super().__init__()
        inner = config.num_attention_heads * config.head_dim
        kv_inner = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(width, inner, bias=bias)
        self.k_proj = nn.Linear(width, kv_inner, bias=bias)
        self.v_proj = nn.Linear(width, kv_inner, bias=bias)
        self.o_proj = nn.Linear(inner, config.hidden_size, bias=False)


class GatedMlp(nn.Module):
    """The feed-forward half of the decoder layer (SwiGLU)."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_NH: Tensor) -> Tensor:
        """down(silu(gate(x)) * up(x)), [N, H] again."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x_NH)) * self.up_proj(x_NH))
        return out


class DecoderLayer(nn.Module):
    """A layer of Qwen2's kind: attention with biases, and a norm before each half."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config, config.hidden_size, bias=True)
        self.mlp = GatedMlp(config)


class Midlayer(nn.Module):
    """The layer of an EAGLE-3 draft: its attention sees embedding and hidden state side by side, each normed."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config, 2 * config.hidden_size, bias=False)
        self.mlp = GatedMlp(config)
