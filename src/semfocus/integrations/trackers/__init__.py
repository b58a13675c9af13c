"""Experiment trackers that receive metrics during training: TensorBoard, Weights & Biases (offline) and trackio.

    with tracking(callback, ["tensorboard:logs"]) as on_progress:
        train(configs, "runs", on_progress=on_progress)

    tensorboard:DIR      event files under DIR, one folder per run      pip install 'semfocus[trackers]'
    wandb:PROJECT        offline runs under ./wandb; `wandb sync` uploads them
    trackio:PROJECT      trackio's local database; `trackio show` displays it

Every tracker uses the names of metrics.jsonl: train_loss, train_accuracy, heldout_loss, heldout_accuracy, lr and
epoch, by step. The run directory remains authoritative: a tracker that fails is dropped with a warning, and training
continues.
"""

from semfocus.integrations.trackers.sink import Sink, TrackerFailed, parse_sink, tracking

__all__ = ["Sink", "TrackerFailed", "parse_sink", "tracking"]
