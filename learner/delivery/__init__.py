"""Learner process: from a trained draft to a version on the board and a run in MLflow.

In: a candidate with its scores. Out: a folder of weights, board events, a registered model.
Only the loop enters. MLflow is known to mlflow_registry.py alone.
"""
