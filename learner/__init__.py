"""The riders behind: Celery workers that retrain the draft from traces and publish versions.

In: claimed DraftTrace. Out: DraftVersion on the board, an MLflow run each, weights in SGLang's layout.
Only Celery, the command line and the demo enter. This room never knows sglang or serving.
"""
