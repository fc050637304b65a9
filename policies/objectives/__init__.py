"""What a draft is trained towards: losses over recorded rounds, and what each of them needs.

In: log-probabilities, weights and labels as tensors. Out: a scalar loss.
Learner and benches enter. No I/O, no clock, no randomness that was not passed in.
"""
