"""Where a command finds the drafts of a speculator in MLflow, without all that a learner needs."""

from dataclasses import dataclass
from pathlib import Path

from ....buffer.settings.fields import check_fields, setting
from ...config import registered_model, tracking_uri


@dataclass(frozen=True, slots=True)
class TrackingConfig:
    """The settings of these names. ConfigError when one is wrong."""

    data_dir: Path = setting("DATA_DIR")
    mlflow_uri: str = setting("MLFLOW_URI")

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def uri(self) -> str:
        """Where MLflow keeps runs."""
        return tracking_uri(self.mlflow_uri, self.data_dir)

    def model(self, speculator: str) -> str:
        """Name of a speculator's registered model."""
        return registered_model(speculator)
