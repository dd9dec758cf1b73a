"""Measures rows that aren't in the store yet: all of them once, then again.

So whatever else the machine does at a time concerns all systems, and two
neighbours of a table were measured seconds apart.
"""

import dataclasses
import tempfile
import time

from .model import Bench, Failure, Missing


@dataclasses.dataclass
class Plan:
    """The part of one workload to run."""
    workload: object
    rows: list
    store: object


class Progress:
    """Reports the progress on a stream, and how long all of it will take."""

    # Starting and ending programs, until it is known better.
    OVERHEAD_S = 1.0

    def __init__(self, stream, total, scale, clock=time.monotonic):
        self._stream = stream
        self._total = total
        self._done = 0
        self._clock = clock
        self._each = scale.seconds + scale.warmup + self.OVERHEAD_S
        self._spent = 0.0
        self._begin = None

    def starts(self):
        self._begin = self._clock()

    def ends(self, what, outcome):
        """`what` was measured, or failed to be."""
        self._spent += self._clock() - self._begin
        self._done += 1
        self._each = self._spent / self._done
        left = (self._total - self._done) * self._each
        self.say('[%d/%d, %s left] %s: %s' % (
            self._done, self._total, duration(left), what, outcome))

    def leave_out(self, count):
        """So many measurements won't be made after all."""
        self._total -= count

    def say(self, text):
        print(text, file=self._stream, flush=True)


def duration(seconds):
    """"40 s", "12 min", "2 h 05 min"."""
    if seconds < 90:
        return '%d s' % round(seconds)
    minutes = round(seconds / 60)
    if minutes < 90:
        return '%d min' % minutes
    return '%d h %02d min' % divmod(minutes, 60)


class Runner:
    """Runs plans. Rows that can't be measured are in `left_out` and
    `failed`."""

    def __init__(self, programs, scale, progress):
        self.programs = programs
        self.scale = scale
        self.progress = progress
        # (workload, row, reason): for want of a program; for anything else.
        self.left_out = []
        self.failed = []

    def run(self, plan):
        """Measures the plan's rows, as many repetitions as the scale says."""
        skipped = set()
        for repetition in range(self.scale.repetitions):
            for row in plan.rows:
                done = (row.key, repetition) in plan.store.samples
                if done or row.key in skipped:
                    continue
                if not self._measure(plan, row, repetition):
                    skipped.add(row.key)
                    self.progress.leave_out(
                        self.scale.repetitions - repetition - 1)

    def _measure(self, plan, row, repetition):
        what = '%s: %s (%d/%d)' % (plan.workload.name, describe(row),
                                   repetition + 1, self.scale.repetitions)
        self.progress.starts()
        try:
            sample = self._sample(plan, row)
        except Missing as reason:
            self.left_out.append((plan.workload.name, row, str(reason)))
            self.progress.ends(what, 'left out: %s' % reason)
            return False
        except Failure as reason:
            self.failed.append((plan.workload.name, row, str(reason)))
            self.progress.ends(what, 'FAILED: %s' % reason)
            return False
        plan.store.add(row, repetition, sample)
        self.progress.ends(what, outcome(sample))
        return True

    def _sample(self, plan, row):
        with tempfile.TemporaryDirectory(prefix='tables.') as folder:
            bench = Bench(self.programs, self.scale, folder)
            try:
                if row.prepare is None:
                    return row.measure(bench)
                if row.key not in plan.store.prepared:
                    plan.store.add_prepared(row, row.prepare(bench))
                    bench.close()
                return row.measure(bench, plan.store.prepared[row.key])
            finally:
                bench.close()


def count_missing(plans, scale):
    """How many measurements are still to be made."""
    return sum((row.key, repetition) not in plan.store.samples
               for plan in plans for row in plan.rows
               for repetition in range(scale.repetitions))


def describe(row):
    words = [row.system]
    if row.threads is not None:
        words.append('threads=%d' % row.threads)
    words += ['%s=%s' % item for item in row.parameters.items()]
    return ' '.join(words)


def outcome(sample):
    figures = sample.latency_figures()
    text = '{:,.0f} QPS'.format(sample.qps)
    if figures['p50_us'] is not None:
        text += ', p50 {:,.0f} us'.format(figures['p50_us'])
    if figures['p999_us'] is not None:
        text += ', p999 {:,.0f} us'.format(figures['p999_us'])
    if sample.failures:
        text += ', {:,} FAILURES'.format(sample.failures)
    return text
