"""What `width` measures of a trace at a real model's width, station by station. There is no model: tensors are random.

`traffic` acts SGLang's scheduler around the real hook bodies; `deployed` starts the courier and the Redis it sends to;
`stations`, `hand_over`, `ingest`, `fitting` and `staged` measure one thing each.
"""
