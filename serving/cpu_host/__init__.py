"""Every process of a CPU server, and of `paceline doctor`: what SGLang lacks without an accelerator, in torch.

In: a server command with `--device cpu`, which launch/server.py completes by defaults.py in the command-line process.
Out: the attention backend `cpu_sdpa`, and stand-ins for two packages that exist only as CUDA builds. EAGLE3,
STANDALONE and NGRAM run on it, greedy and sampled.
The stand-ins come by the server's PYTHONPATH, the backend by an SGLang plugin that does nothing unless
PACELINE_CPU_HOST=1.
"""
