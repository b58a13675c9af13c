"""Trains one cohort from its first step, or its last checkpoint, to its end: train, evaluate, record, save."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from semfocus.model.forward_fns import EAGER
from semfocus.store import (
    Checkpoint,
    DamagedRuns,
    RunDirectory,
    Save,
    load_common,
    save_checkpoints,
    write_statuses,
)
from semfocus.training.cohort import Cohort
from semfocus.training.evaluation import Evaluator, Scores
from semfocus.training.member import Member, best_value
from semfocus.training.objective import LOSS, Learned
from semfocus.training.progress import Callback, MemberProgress, Progress
from semfocus.training.runtime import Runtime, facts, numerics
from semfocus.training.signals import Interruption
from semfocus.training.step import TrainStep

# That a GPU is given at a time: were it a whole epoch, the queue of one cohort would hold up the others'.
STEPS_A_TURN = 25
# Of a batch, that has to have ended for the rest to go on alone: on a GPU that takes another captured graph.
SHARE_TO_LEAVE = {"cpu": 0.0, "cuda": 0.25}

Ending = tuple[Member, str, dict[str, Any]]  # a member, its last state, and more fields of its status


class Trainer:
    """Trains the members of one cohort until they end; `notes` go into the status of each.

    `ids` are the runs that the cohort was formed of, where some of them have left it since.
    """

    def __init__(
        self,
        members: list[Member],
        runtime: Runtime,
        on_progress: Callback,
        interruption: Interruption,
        notes: Mapping[str, Any] | None = None,
        ids: list[str] | None = None,
    ) -> None:
        self.members, self.runtime, self.on_progress, self.interruption = members, runtime, on_progress, interruption
        self.notes = dict(notes or {})
        self.device, self.threads = runtime.torch_device(), runtime.num_threads()
        self.ids = ids or [member.writer.id for member in members]
        training = members[0].config.training
        with numerics(members[0].config.precision, self.threads):
            self.cohort = Cohort.begin([m.config for m in members], [m.task for m in members], self.device)
        self.learned = self.cohort.objective.learned
        on_validation = training.patience_on == "validation"
        self.watched = Learned(LOSS, 0.0, "heldout") if on_validation else self.learned  # what patience looks at
        self.per_epoch = self.cohort.steps_per_epoch
        self.total = self.cohort.total_steps
        self.evaluations = runtime.evaluations(self.per_epoch, self.total, self.cohort.objective.evaluations)
        self.kept = runtime.kept_steps(self.per_epoch, self.total)
        examples = len(members) * self.total * training.batch_size
        self.parts = runtime.parts(self.cohort.spec, examples, self.device)
        self.began = self.saved_at = time.monotonic()
        self.spent_before = 0.0  # seconds, in earlier sessions
        self.first_step = 0
        self.has_said_saved = False  # whether the statuses say that there is a checkpoint

    def turns(self) -> Iterator[None]:
        """Train until every member has ended, or a signal arrives; then statuses say `interrupted`.

        Each turn queues some steps, or an evaluation. On a GPU they have not been done yet when control comes back:
        whoever asks for the next turn may let other cohorts queue theirs first.
        """
        with numerics(self.members[0].config.precision, self.threads):
            self._resume()
            self._announce()
            if self.cohort.step == 0 and 0 in self.kept:
                self._save(keep=True)
            self._prepare()
            self._settle()
            while self.members and self.cohort.step < self.total:
                yield from self._advance()
                if self.interruption.signal:
                    self._stop_here()
                    return

    def _prepare(self) -> None:
        self.train_step = TrainStep(self.cohort, self.parts, self.runtime.micro_batch)
        self.evaluator = Evaluator(self.cohort, self.parts)
        self.loaded_epoch = -1

    def _resume(self) -> None:
        """Restore every member at the newest step that all have saved; without one, begin at the start."""
        checkpoints = load_common([member.writer for member in self.members], expect=self.cohort.tensors(0))
        for i, member in enumerate(self.members):
            member.writer.rewind(checkpoints[i] if checkpoints else None)
            if checkpoints:
                self._restore(member, checkpoints[i])
        self.first_step = self.cohort.step
        self.has_said_saved = self.cohort.step > 0

    def _restore(self, member: Member, checkpoint: Checkpoint) -> None:
        self.cohort.restore(member.slot, checkpoint.tensors)
        self.cohort.step = checkpoint.step
        try:
            died_at, seconds = int(checkpoint.meta["died_at"]), float(checkpoint.meta["seconds"])
            member.best_value = best_value(checkpoint.meta)
            member.best_step = int(checkpoint.meta["best_step"])
        except (KeyError, TypeError, ValueError) as error:
            reason = f"its checkpoint does not say how it stood: {error!r}"
            raise DamagedRuns({member.writer.id: reason}) from None
        if checkpoint.step > self.total:
            raise DamagedRuns({member.writer.id: f"it has a checkpoint of step {checkpoint.step} of {self.total}"})
        self.cohort.died_at[member.slot] = died_at
        self.cohort.alive[member.slot] = died_at < 0
        self.spent_before = max(self.spent_before, seconds)
        member.last = (member.writer.metrics() or [{}])[-1]

    def _settle(self) -> None:
        """Finish members that had ended when they were saved, but whose process died before their status said so."""
        if self.cohort.step and self.evaluations.is_due(self.cohort.step):
            self._finish(self._endings())

    def _announce(self) -> None:
        self._announce_step()
        self.on_progress(self._progress())

    def _announce_step(self) -> None:
        fields = self._status() | {"step": self.cohort.step}
        write_statuses([(member.writer, "running", fields) for member in self.members])

    def _status(self) -> dict[str, Any]:
        """The fields of every status: all that has to be the same for identical results, and the notes."""
        machine = facts(self.device, self.threads, self.parts is not EAGER)
        kept = {"kept_epochs": list(self.runtime.keep_epochs)} if self.runtime.keep_epochs else {}
        kept |= {"kept_shares": list(self.runtime.keep_shares)} if self.runtime.keep_shares else {}
        parted = {"micro_batch": self.runtime.micro_batch} if self.runtime.micro_batch else {}
        return {"cohort": self.ids, "steps": self.total, **machine, **kept, **parted, **self.notes}

    def _advance(self) -> Iterator[None]:
        """Train up to the next evaluation or checkpoint to keep, the end of the epoch, or a signal; do what is due."""
        step = self.cohort.step
        epoch, inside = divmod(step, self.per_epoch)
        if epoch != self.loaded_epoch:
            self.train_step.begin_epoch(epoch, inside)
            self.loaded_epoch = epoch
        stops = self.evaluations.next_after(step), (epoch + 1) * self.per_epoch
        target = min(*stops, *(kept for kept in self.kept if kept > step))
        yield from self._train_until(target)
        if self.cohort.step < target:
            return
        due, started = self.evaluations.is_due(target), time.monotonic()
        if due:
            self.evaluator.launch()
        if target == (epoch + 1) * self.per_epoch < self.total:
            self.train_step.prepare_epoch(epoch + 1)  # while a GPU is busy with this one
        yield
        ended = self._record_all(self.evaluator.read(), started) if due else []
        keep = target in self.kept
        if keep or ended or self._long_unsaved():
            self._save(keep=keep)
        self.on_progress(self._progress(len(ended)))
        self._finish(ended)

    def _long_unsaved(self) -> bool:
        return time.monotonic() - self.saved_at > self.runtime.checkpoint_seconds

    def _train_until(self, target: int) -> Iterator[None]:
        """On a CPU, look for signals after each step; on a GPU, queue some steps a turn."""
        chunk = STEPS_A_TURN if self.device.type == "cuda" else 1
        reported_at = time.monotonic()
        while self.cohort.step < target and not self.interruption.signal:
            self.train_step.run(min(chunk, target - self.cohort.step))
            if self.cohort.step == target:
                break  # the evaluation there comes first, so that callbacks get that step once
            if self.device.type == "cuda":
                yield
            if self._long_unsaved():
                self._save()
            if time.monotonic() - reported_at > 1:
                self.on_progress(self._progress())
                reported_at = time.monotonic()

    def _record_all(self, scores: Scores, started: float) -> list[Ending]:
        """Record the evaluation of every member that is alive; the members that end here."""
        step, epoch = self.cohort.step, self.cohort.step / self.per_epoch
        lrs = self.cohort.lrs_at(max(0, step - 1)).tolist()
        now = time.monotonic()
        alive = self.cohort.alive.tolist()
        for member in self.members:
            if alive[member.slot]:
                seconds = self.spent_before + now - self.began, now - started
                self._record(member, scores, step, epoch, lrs[member.slot], seconds)
        return self._endings()

    def _endings(self) -> list[Ending]:
        """The members that end by their evaluation at this step, and those that diverged before it."""
        step, ended = self.cohort.step, []
        died = self.cohort.died_at.tolist()
        for member in self.members:
            if died[member.slot] >= 0:
                ended.append((member, "diverged", {"step": died[member.slot], "reason": "loss or gradient not finite"}))
            elif member.last.get("step") == step:
                state, reason = member.ending(step, self.total, self.per_epoch, self.learned, self.watched)
                if reason:
                    ended.append((member, state, {"step": step, "reason": reason}))
        return ended

    def _record(
        self, member: Member, scores: Scores, step: int, epoch: float, lr: float, seconds: tuple[float, float]
    ) -> None:
        values = {column: of_members[member.slot] for column, of_members in scores.items()}
        member.last = {"epoch": int(epoch) if epoch == int(epoch) else epoch, "step": step, "lr": lr, **values}
        member.writer.append_metrics(member.last)
        member.writer.append_timing({"step": step, "seconds": seconds[0], "evaluation_seconds": seconds[1]})
        value, metric = values[self.watched.column], self.watched.metric
        if metric.is_better(value, metric.worst if member.best_value is None else member.best_value):
            member.best_value, member.best_step = value, step

    def _finish(self, ended: list[Ending]) -> None:
        """Write the last statuses of the members that ended, and continue with the others.

        The others become a smaller cohort, where it is cheap. Until then members that have ended stay in the batch, and
        their results are ignored.
        """
        if not ended:
            return
        write_statuses([(member.writer, state, self._status() | more) for member, state, more in ended])
        done = [member for member, _, _ in ended]
        self.members = [member for member in self.members if member not in done]
        if self.members and self._shrinks():
            self.cohort = self.cohort.only([member.slot for member in self.members])
            for slot, member in enumerate(self.members):
                member.slot = slot
            self._prepare()

    def _shrinks(self) -> bool:
        """Whether members that have ended leave the batch now; never where the rest would have to be compiled anew."""
        training = self.cohort.configs[0].training
        if self.device.type == "cuda" and self.runtime.compiles(self.cohort.spec, training):
            return False
        ended = 1 - len(self.members) / self.cohort.members
        return ended >= SHARE_TO_LEAVE.get(self.device.type, 1.0)

    def _stop_here(self) -> None:
        if not self.members:
            return
        self._save()
        fields = self._status() | {"step": self.cohort.step}
        write_statuses([(member.writer, "interrupted", fields) for member in self.members])

    def _save(self, keep: bool = False) -> None:
        saves = []
        died = self.cohort.died_at.tolist()
        seconds = self.spent_before + time.monotonic() - self.began
        for member in self.members:
            meta = {"best_value": member.best_value, "best_step": member.best_step}
            meta |= {"died_at": died[member.slot], "seconds": seconds}
            tensors = {name: tensor.detach().cpu() for name, tensor in self.cohort.tensors(member.slot).items()}
            saves.append(Save(member.writer, self.cohort.step, tensors, meta, keep))
        save_checkpoints(saves)
        self.saved_at = time.monotonic()
        if not self.has_said_saved and self.cohort.step:  # else a loss of all checkpoints would look like a beginning
            self._announce_step()
            self.has_said_saved = True

    def _progress(self, ended: int = 0) -> Progress:
        members = [
            MemberProgress(RunDirectory(member.writer.path), member.config, member.last) for member in self.members
        ]
        return Progress(
            members,
            going_on=len(members) - ended,
            step=self.cohort.step,
            total_steps=self.total,
            steps_per_epoch=self.per_epoch,
            seconds=time.monotonic() - self.began,
            session_steps=self.cohort.step - self.first_step,
        )
