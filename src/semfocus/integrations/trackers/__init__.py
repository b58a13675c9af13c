"""Metrics as they are measured, sent to a tracker: TensorBoard, Weights & Biases (offline) or trackio.

    with watched(board, ["tensorboard:logs"]) as watcher:
        train(configs, "runs", watcher=watcher)

    tensorboard:DIR      event files under DIR, a folder a run          pip install 'semfocus[trackers]'
    wandb:PROJECT        offline runs under ./wandb; `wandb sync` them, or do not
    trackio:PROJECT      trackio's own local database; look with `trackio show`

The names are those of metrics.jsonl in every tracker: train_loss, train_accuracy, heldout_loss, heldout_accuracy, lr
and epoch, by step. The run directory stays the truth: a tracker that fails is dropped with a warning, and the run
goes on.
"""

from semfocus.integrations.trackers.sink import Sink, TrackerFailed, parse_sink, watched

__all__ = ["Sink", "TrackerFailed", "parse_sink", "watched"]
