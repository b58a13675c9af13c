"""The driver: which cohort goes out next, what came of it, what was lost and is tried again.

    Dispatcher(cohorts, store, runtime, transport, settings, on_progress).run()     the ids of runs that failed

Few attempts wait at the engine beyond those that it can train, so that a change of mind costs nothing and other users
of the cluster get their turn. Small studies go first: they are through while large ones still train.

Each attempt has an id of its own and a lease. A worker that is not heard of for that time is given up, and its runs
go on elsewhere from their last checkpoint; should it come back, its id is no longer known and nothing that it says or
brings counts. A cohort that is lost again and again without coming further is split, a single run then recorded as
failed: the one that does not fit into a machine's memory does not take the others with it.

A worker whose last word is that it has ended is believed only as far as its runs are there.

The driver may die at any time. What it knows beyond the run directories can be made again from them.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from semfocus.archive.merge import Arrivals
from semfocus.archive.parcel import unwrap
from semfocus.errors import CorruptData, Locked, SemfocusError
from semfocus.execution.cluster.flights import Flight, Load, adopted, board_row, progress_of, share_of, shortest_first
from semfocus.execution.cluster.leaving import Detached, wants_to_detach
from semfocus.execution.cluster.losing import after_loss, tell_of_loss
from semfocus.execution.cluster.messages import Gone, Message, Transport, new_attempt, warn_of_build
from semfocus.execution.cluster.packing import Packer, Settings
from semfocus.execution.processes import raised
from semfocus.store import RunStore
from semfocus.store.board import BOARD_SECONDS, MAX_LOG_BYTES, MAX_ROWS, Board, open_board
from semfocus.training.progress import Callback
from semfocus.training.runtime import Runtime
from semfocus.training.session import CORRUPT, ENDED, Job, note_failure
from semfocus.training.signals import Interrupted, Interruption, listening

POLL_SECONDS = 0.2
STOP_SECONDS = 60.0  # for workers to save and bring their runs


class Dispatcher:
    """Drives one study on one engine."""

    def __init__(
        self,
        cohorts: Sequence[Sequence[Job]],
        store: RunStore,
        runtime: Runtime,
        transport: Transport,
        settings: Settings,
        on_progress: Callback,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self.runtime, self.transport, self.settings = store, runtime, transport, settings
        self.on_progress, self.clock = on_progress, clock
        self.queue = deque(Load(jobs) for jobs in shortest_first(cohorts))
        self.flights: dict[str, Flight] = {}
        self.failed: list[str] = []
        self.total, self.ended = sum(map(len, cohorts)), 0
        self.late = 0  # words of attempts that no longer count
        self.packer = Packer(store, runtime, settings, (job.config for jobs in cohorts for job in jobs))
        self.builds = {self.packer.versions["torch"]}
        self.shown_at = -BOARD_SECONDS

    def run(self) -> list[str]:
        """Train every cohort; the ids of runs that cannot be trained. Interrupted: all save, then it raises."""
        with listening() as interruption, open_board(self.store.root, self.transport.name) as self.board:
            try:
                for attempt, load in adopted(self.queue, self.transport.adopt(), self.store).items():
                    self.flights[attempt] = Flight(load, 1.0, heard=self.clock())
                while (self.queue or self.flights) and not interruption.signal:
                    self.step(POLL_SECONDS)
                if interruption.signal:
                    self._interrupted(interruption)
            finally:
                for attempt in list(self.flights):
                    self._drop(attempt)
        return self.failed

    def step(self, seconds: float) -> None:
        """Send what can be sent, hear what there is to hear, give up what is silent."""
        self._submit()
        for word in self.transport.poll(seconds):
            self._hear(word)
        self._check_leases()
        self._show()

    # -- sending

    def _submit(self) -> None:
        while self.queue:
            share = self._share(self.queue[0].jobs)
            slots = self.transport.slots(share)
            if len(self.flights) >= slots + max(2, slots // 4):
                return
            self._send(self.queue.popleft(), share)

    def _send(self, load: Load, share: float) -> None:
        load.jobs = self._unfinished(load.jobs)
        if not load.jobs:
            return
        attempt, flight = new_attempt(), Flight(load, share)
        self.flights[attempt] = flight  # from here on its locks are given back whatever happens
        if self.settings.hand_back:
            load.jobs = [job for job in load.jobs if self._lock(job, flight)]
            if not load.jobs:
                self._drop(attempt)
                return
        load.mark()
        work = self.packer.work(attempt, load, self.board.folder)
        self.transport.submit(work, self.packer.parcel(load.jobs), flight.share)

    def _unfinished(self, jobs: Sequence[Job]) -> list[Job]:
        return [job for job in jobs if job.state not in (*ENDED, CORRUPT) and job.id not in self.failed]

    def _lock(self, job: Job, flight: Flight) -> bool:
        """Whether this run is ours; one that another process holds is left to it."""
        with suppress(Locked):
            flight.writers[job.id] = flight.locks.enter_context(job.run.lock())
        return job.id in flight.writers

    def _share(self, jobs: Sequence[Job]) -> float:
        if self.settings.device == "cpu" or not jobs:
            return 1.0
        return share_of(jobs, len(self.flights) + len(self.queue), self.transport.slots)

    # -- hearing

    def _hear(self, word: Message | Gone) -> None:
        flight = self.flights.get(word.attempt)
        if flight is None:
            self.late += 1
            return
        if isinstance(word, Gone):
            flight.log += word.log
            self._again(word.attempt, word.reason, split=word.out_of_memory)
            return
        flight.heard = None if word.kind == "waiting" else self.clock()
        getattr(self, f"_on_{word.kind}")(word, flight)

    def _on_began(self, word: Message, flight: Flight) -> None:
        flight.node, flight.place, flight.device = (str(word.body[name]) for name in ("node", "place", "device"))
        build = str(word.body["versions"]["torch"])
        if build not in self.builds:
            self.builds.add(build)
            warn_of_build(flight.node, build, self.builds - {build})

    def _on_waiting(self, word: Message, flight: Flight) -> None:
        """It waits for a machine (again): its lease begins when it has one."""
        flight.progress = None

    def _on_beat(self, word: Message, flight: Flight) -> None:
        """It lives."""

    def _on_progress(self, word: Message, flight: Flight) -> None:
        flight.progress = progress_of(flight, word.body)
        self.on_progress(flight.progress)

    def _on_runs(self, word: Message, flight: Flight) -> None:
        """Give the runs that a worker brings their places, each whole or not at all."""
        assert word.parcel is not None
        try:
            with Arrivals(self.store, flight.writers) as arrivals:
                for run_id, files in unwrap(word.parcel, f"what {flight.node} brings"):
                    if run_id not in flight.writers:
                        raise CorruptData(f"{flight.node} brings run {run_id[:64]}, which it was not given")
                    arrivals.add(run_id, files)
                arrivals.place().raise_if_refused()
        except CorruptData as error:  # a sick machine, or a wire: no reason for the others to stop
            self._again(word.attempt, f"brought what is refused ({error})", killed=False)

    def _on_log(self, word: Message, flight: Flight) -> None:
        flight.log = (flight.log + str(word.body["text"]))[-MAX_LOG_BYTES:]

    def _on_ended(self, word: Message, flight: Flight) -> None:
        failed = [run_id for run_id in word.body["failed"] if any(job.id == run_id for job in flight.load.jobs)]
        self.failed += failed
        if self.settings.hand_back and self._unfinished(flight.load.jobs):
            self._again(word.attempt, "has ended, and not all of its runs are here")
        elif flight.load.losses and word.body["held"]:
            self._again(word.attempt, "found its runs still held by the worker that was lost")
        else:
            self._finish(word.attempt)

    def _on_stopped(self, word: Message, flight: Flight) -> None:
        """A machine that was taken away in good order: its worker has saved, and another one goes on."""
        self._again(word.attempt, "was asked to stop by its machine")

    def _on_raised(self, word: Message, flight: Flight) -> None:
        kind, text = str(word.body["kind"]), str(word.body["text"])
        flight.log += str(word.body["trace"])
        if kind == "StorageError" and self.settings.hand_back:  # this machine's disk, not ours
            self.transport.avoid(flight.place)
            if self.transport.slots(flight.share):
                self._again(word.attempt, f"cannot store runs and gets no more of them ({text})", killed=False)
                return
            text = f"on {flight.node}: {text}; no other machine is left that can store runs"
        error = raised(kind, text, str(word.body["trace"]))
        if not isinstance(error, SemfocusError) and flight.load.losses + 1 < self.settings.retries:
            self._again(word.attempt, f"failed with {kind}: {text[:200]}", killed=False)  # a mistake comes again
            return
        self._keep_log(word.attempt)
        self._drop(word.attempt)
        raise error

    def _finish(self, attempt: str) -> None:
        flight = self._drop(attempt)
        self.ended += len(flight.load.jobs)
        if flight.progress is not None and flight.progress.going_on:
            self.on_progress(replace(flight.progress, going_on=0))

    def _drop(self, attempt: str) -> Flight:
        """Nothing that this attempt says counts from now on."""
        flight = self.flights.pop(attempt)
        flight.locks.close()
        self.transport.forget(attempt)
        return flight

    # -- losing

    def _check_leases(self) -> None:
        now = self.clock()
        for attempt, flight in list(self.flights.items()):
            if flight.heard is not None and now - flight.heard > self.settings.lease:
                self._again(attempt, f"was not heard of for {self.settings.lease:g} s")

    def _again(self, attempt: str, why: str, split: bool = False, killed: bool = True) -> None:
        """Send the runs of a lost attempt out once more, or what is left of them. `killed`: it may be for memory."""
        where = self._keep_log(attempt)
        flight = self._drop(attempt)
        load, node = flight.load, flight.node or "a machine"
        jobs = self._unfinished(load.jobs)
        self.ended += len(load.jobs) - len(jobs)
        if not jobs:
            return
        memory = "; out of memory?" if killed else ""
        again, then = after_loss(load, jobs, self.settings.retries, split, memory)
        self.queue.extendleft(reversed(again))
        if not again:
            self._give_up(jobs[0], f"its worker on {node} {why}, {load.losses} times in a row{memory}")
        tell_of_loss(flight, node, jobs, why, then, where)

    def _give_up(self, job: Job, reason: str) -> None:
        self.ended += 1
        with suppress(Locked), job.run.lock() as writer:  # one that is held is told of as such
            self.failed.append(job.id)
            note_failure(writer, reason)

    def _keep_log(self, attempt: str) -> Path | None:
        log = self.flights[attempt].log
        return self.board.keep_log(attempt, log) if log else None

    # -- leaving

    def _interrupted(self, interruption: Interruption) -> None:
        """Let all save and bring what they have; on a detach, leave those alone that can live without a driver."""
        detach = interruption.signal == signal.SIGINT and wants_to_detach()
        if detach and self.transport.detach():
            for flight in self.flights.values():
                flight.locks.close()
            self.flights.clear()
            raise Detached("its workers go on")
        number, interruption.signal = interruption.signal, 0
        self.queue.clear()
        self.transport.stop(list(self.flights))
        end = self.clock() + STOP_SECONDS
        while self.flights and self.clock() < end and not interruption.signal:
            for attempt, flight in list(self.flights.items()):
                if flight.heard is None:
                    self._drop(attempt)  # it had not begun
            for word in self.transport.poll(POLL_SECONDS):
                flight = self.flights.get(word.attempt)
                if isinstance(word, Gone) or (flight and word.kind in ("ended", "stopped", "raised")):
                    if flight:
                        self._drop(word.attempt)
                else:
                    self._hear(word)
        raise Detached("its workers have saved") if detach else Interrupted(number)

    # -- showing

    def _show(self) -> None:
        now = self.clock()
        if now - self.shown_at < BOARD_SECONDS:
            return
        self.shown_at = now
        flights = sorted(self.flights.items(), key=lambda item: item[1].heard is None)[:MAX_ROWS]
        rows = [board_row(attempt, flight) for attempt, flight in flights]
        self.board.write({"rows": rows, "done": self.ended, "total": self.total})

    board: Board
