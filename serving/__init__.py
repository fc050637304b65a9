"""The rider in front: an SGLang general plugin that captures draft traces and swaps draft weights.

In: verify rounds from SGLang's scheduler, live draft versions from the board. Out: DraftTrace, heartbeats.
Only the SGLang process and the command line enter. A fault in here never costs a served token.
This room knows sglang (only in files whose names say so) and torch; never celery, mlflow or learner.
"""
