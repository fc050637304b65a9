"""SGLang's processes and what runs beside them: an SGLang plugin that captures draft traces and swaps draft weights.

In: verify rounds from SGLang's scheduler, live draft versions from the board. Out: DraftTrace, heartbeats.
A folder has one duty in one process, named in the first line of its `__init__.py`; what several need is out here.
SGLang imports `plugin`; the command line and the demo start servers through `launch`. A fault in here never costs a
served token. Knows sglang (only in files whose names say so, plugin.py, cpu_host, and hook_targets.py for `paceline
check`) and torch; never celery, mlflow or learner.
"""
