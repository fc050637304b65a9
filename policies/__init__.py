"""Pure judgement: numbers in, numbers or a reasoned decision out.

In: arrays, tensors, traces and the random generator to use. Out: losses, lengths, decisions with reasons.
Serving, learner and dashboards may enter. No I/O, no clock, no randomness that was not passed in.
"""
