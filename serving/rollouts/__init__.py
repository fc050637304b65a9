"""Trainer's process, any thread: makes rollouts on speculating SGLang servers and gives them the trainer's new weights.

In: prompts as token ids, named tensors, a version. Out: completions with log-probabilities and target versions,
figures of each step, asks for learning rounds. Loads no trainer; torch only in `weights`, while weights are pushed.
Nothing of paceline imports it but the package itself, for `from paceline import Rollouts`.
"""
