"""What paceline keeps in MLflow: a run, a model and a card per draft, aliases, and one run for the whole lineage.

In: records of drafts, the board's state and events, what members counted. Out: calls of MLflow's client. The registry
and the commands about drafts in MLflow import it; only mlflow_library.py imports MLflow.
"""
