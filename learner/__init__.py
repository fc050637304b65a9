"""Learner process: Celery workers that retrain the draft from traces and publish versions; one trains at a time.

In: claimed DraftTrace. Out: DraftVersion on the board, an MLflow run for each, weights in SGLang's layout.
Celery, the command line and the demo import it. It never imports sglang or serving.
"""
