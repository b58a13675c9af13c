"""The configuration of a run: one frozen, strict, validated value. Its id is the hash of all that decides the result.

    RunConfig(task=TaskConfig(name="even_pairs"), attention=AttentionConfig(mechanism="topk:5"), seed=153476998)

Device, threads, the cadence of evaluations and kept checkpoints are not part of it: they do not change the result.
"""

from semfocus.config.model import AttentionConfig, ModelConfig
from semfocus.config.run import RunConfig
from semfocus.config.task import TaskConfig
from semfocus.config.training import TrainingConfig

__all__ = ["AttentionConfig", "ModelConfig", "RunConfig", "TaskConfig", "TrainingConfig"]
