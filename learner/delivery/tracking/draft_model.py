"""What `mlflow.pyfunc.load_model` makes of a draft: given tokens and the target's features, the tokens it drafts.

MLflow imports this module by the name that the MLmodel file has, so it needs paceline's extra `learner` installed. No
pickle is read: the weights are a safetensors file, whose digest is checked.
"""

from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from ....buffer.board.weights_file import WEIGHTS_FILE, sha256_of
from ....buffer.drafts.checkpoint import local_folder
from ....buffer.errors import ConfigError, WeightsRefused
from ...model.draft import Draft
from ...model.draft_io import load_draft, load_target_embedding, load_target_head


class PublishedDraft:
    """One published draft. Its target is read at the first prediction, for a draft shares the target's embedding."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        """`folder` holds config.json and model.safetensors; `config` names `draft`, `sha256` and `target_path`.

        WeightsRefused when the weights are not there, or are not those that were published.
        """
        self._folder = folder
        self._config = config
        file = folder / WEIGHTS_FILE
        number = config["draft"]
        if not file.is_file():
            raise WeightsRefused(
                f"draft {number}: got no {WEIGHTS_FILE} in MLflow, expected one: weights are kept of drafts that "
                f"drafted somewhere; `paceline reproduce {number}` may fit it again"
            )
        if (got := sha256_of(file)) != config["sha256"]:
            raise WeightsRefused(f"draft {number}: got sha256 {got[:12]}…, expected {config['sha256'][:12]}…")

    @cached_property
    def draft(self) -> Draft:
        """The draft itself, on the CPU. ConfigError when its target is not to be found here."""
        try:
            target = local_folder(self._config["target_path"])
        except ConfigError as error:
            option = 'model_config={"target_path": "<folder or Hugging Face id of the target>"}'
            raise ConfigError(f"{error}; or load the model with {option}") from error
        return load_draft(self._folder, load_target_embedding(target), partial(load_target_head, target))

    def predict(self, rows: Any, params: Mapping[str, Any] | None = None) -> Any:
        """A table with the column `drafts`: of each row of `rows`, the `params["steps"]` tokens that are drafted next.

        `rows` is a pandas table. `tokens` are target ids, the last one just committed; `features[i]` is what the target
        computed at `tokens[i]`, of all tokens but the last.
        """
        steps = int((params or {}).get("steps", 1))
        found = [self._drafts(*row, steps) for row in zip(rows["tokens"], rows["features"], strict=True)]
        return rows.assign(drafts=found)[["drafts"]]

    @torch.inference_mode()
    def _drafts(self, tokens: Any, features: Any, steps: int) -> list[int]:
        context = [int(token) for token in tokens]
        width = self.draft.config.feature_width
        features_FD = torch.tensor([[float(value) for value in row] for row in features], dtype=torch.float32)
        if len(context) < 2 or features_FD.shape != (len(context) - 1, width):
            raise ValueError(
                f"features: got {tuple(features_FD.shape)} of {len(context)} tokens, expected at least 2 tokens and "
                f"({len(context) - 1}, {width}), one row of every token but the last"
            )
        row_BQ = torch.tensor([[len(context) - 2]])
        for step in range(steps):
            # Each draft is fed to the next step as if it had been committed, which is how a server drafts a chain.
            chains = self.draft.begin(torch.tensor([context]), features_FD[None], row_BQ)
            for _ in range(step + 1):
                hidden_BQH = self.draft.advance(chains)
            context.append(int(self.draft.best_tokens(hidden_BQH[0])[0]))
        return context[-steps:] if steps else []


def _load_pyfunc(path: str, model_config: Mapping[str, Any]) -> PublishedDraft:
    """Called by MLflow under this name."""
    return PublishedDraft(Path(path), model_config)
