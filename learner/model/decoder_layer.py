"""The one decoder layer of an EAGLE-3 draft: its modules, under the names that the weights file gives them."""

from torch import Tensor, nn
from torch.nn import functional

from .eagle3_config import Eagle3Config


class Attention(nn.Module):
    """Projections of the one attention layer; queries, keys and values see embedding and hidden side by side."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        width = config.hidden_size
        inner = config.num_attention_heads * config.head_dim
        kv_inner = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(2 * width, inner, bias=False)
        self.k_proj = nn.Linear(2 * width, kv_inner, bias=False)
        self.v_proj = nn.Linear(2 * width, kv_inner, bias=False)
        self.o_proj = nn.Linear(inner, width, bias=False)


class GatedMlp(nn.Module):
    """The feed-forward half of the decoder layer (SwiGLU)."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_NH: Tensor) -> Tensor:
        """down(silu(gate(x)) * up(x)), [N, H] again."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x_NH)) * self.up_proj(x_NH))
        return out


class Midlayer(nn.Module):
    """Modules of the decoder layer under the names the weights file gives them."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.mlp = GatedMlp(config)
