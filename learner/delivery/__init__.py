"""Learner process: turns a trained draft into a version on the board and a run in MLflow.

In: a trained draft, and what its line was judged to gain. Out: a folder of weights, board events, a registered model.
The learning loop and what opens its state import it. What is said to MLflow is in tracking/.
"""
