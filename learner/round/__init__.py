"""One learning round: when it starts, what it does, and what it says of itself. Runs in the worker's thread.

In: a LearnerState and claimed traces. Out: a version on the board, a checkpoint, acks, a LearningReport.
"""
