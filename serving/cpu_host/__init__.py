"""The CPU host: what SGLang 0.5.21 lacks on a machine without an accelerator, in plain torch.

In: a server command with `--device cpu` (launch.py asks defaults.py what to add). Out: the attention backend
`cpu_sdpa`, and stand-ins for two packages that exist only as CUDA builds. EAGLE3, STANDALONE and NGRAM run on it,
greedy and sampled.
Only the CPU server process enters: the stand-ins reach it through its PYTHONPATH, the backend through an SGLang
plugin that sleeps unless PACELINE_CPU_HOST=1.
"""
