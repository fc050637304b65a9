"""What benchmarks/rollouts.py is made of: recorded runs of reinforcement learning, arms by replay, seconds, tables.

In: the demo's `--record`. Out: figures by step and arm, each kept in the folder of its run.
"""
