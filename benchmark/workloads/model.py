"""The parts of a workload.

A workload lists rows. A row is one system under one load, with a function that
measures it once; the runner calls it once per repetition, with all rows
interleaved. The result of such a measurement is a Sample. Tables and plots say
which figures of which rows go where.
"""

import contextlib
import dataclasses
import typing

from . import histogram


class Failure(Exception):
    """Something that a row can't do without; the text is for people."""


class Missing(Failure):
    """A program isn't there; the text says how to install it."""


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much is run.

    `grid` is "full", "quick" or "smoke"; workloads pick their parameters by it
    with `pick`. `threads` is None unless it was asked for.
    """
    grid: str = 'full'
    seconds: float = 3.0
    warmup: float = 0.5
    repetitions: int = 5
    cpus: typing.Tuple[int, ...] = (0,)
    threads: typing.Optional[typing.Tuple[int, ...]] = None

    def pick(self, full, quick, smoke):
        return {'full': full, 'quick': quick, 'smoke': smoke}[self.grid]

    def thread_counts(self):
        """Powers of two up to the machine's, and one beyond."""
        if self.threads:
            return self.threads
        counts = [1]
        while counts[-1] < 2 * len(self.cpus):
            counts.append(2 * counts[-1])
        return tuple(self.pick(counts, counts[:-1], counts[-2:-1]))

    def worker_threads(self):
        """For tables that are published for one count: as many as CPUs."""
        if self.threads:
            return self.threads
        return (len(self.cpus),)


@dataclasses.dataclass
class Sample:
    """The result of one measurement. CPU is in cores: 1.0 is one of them,
    fully.

    `figures` (microseconds, by the names of histogram.FIGURES) are read off
    `latencies` unless they are given: by tools that tell no distribution,
    or when it is stored with less detail. `extra` holds further figures, by
    name. `date` and `machine` are set by the store.
    """
    qps: float
    failures: int
    latencies: typing.Optional[histogram.Histogram] = None
    figures: dict = dataclasses.field(default_factory=dict)
    cpu_server: typing.Optional[float] = None
    cpu_client: typing.Optional[float] = None
    rss_server_kb: typing.Optional[int] = None
    rss_client_kb: typing.Optional[int] = None
    commands: list = dataclasses.field(default_factory=list)
    extra: dict = dataclasses.field(default_factory=dict)
    date: str = ''
    machine: str = ''

    def latency_figures(self):
        if not self.figures and self.latencies and self.latencies.count:
            return self.latencies.figures()
        return {name: self.figures.get(name) for name in histogram.FIGURES}


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table. `measure(bench)` gives a Sample or raises Failure.

    `parameters` tell rows of one system apart, and are in the tables; (system,
    threads, parameters) is unique in a workload. `prepare(bench)`, if given,
    runs once before the first repetition and gives a value (of JSON's
    types) that is handed to each `measure(bench, value)`: a search for the
    right load, say. `version`: of a peer, so that results of another one aren't
    taken for this one's. `peer`: whose programs the row needs though its system
    isn't called so.
    """
    system: str
    threads: typing.Optional[int]
    parameters: dict
    measure: typing.Callable
    prepare: typing.Optional[typing.Callable] = None
    version: str = ''
    peer: str = ''

    @property
    def key(self):
        parameters = ','.join(
            '%s=%s' % item for item in sorted(self.parameters.items()))
        key = '%s|%s|%s' % (self.system, self.threads, parameters)
        return '%s|%s' % (key, self.version) if self.version else key


@dataclasses.dataclass(frozen=True)
class Pivot:
    """A small table: `figure` by `column`, a line for each other parameter.

    `figure` is a key of a summary row, `column` "threads" or a parameter's
    name. `published` is the table's name in published.py. `ratio`: also show
    each system through ours.
    """
    title: str
    figure: str
    column: str
    published: str = ''
    ratio: bool = True
    where: typing.Optional[typing.Callable] = None


@dataclasses.dataclass(frozen=True)
class Plot:
    """A picture. `kind` is "lines" (`figure` over `x`) or "cdf".

    `greatest`: only rows with the greatest value of this ("threads", or a
    parameter's name).
    """
    name: str
    kind: str
    title: str
    x: str = ''
    figure: str = ''
    log_x: bool = True
    log_y: bool = False
    where: typing.Optional[typing.Callable] = None
    greatest: str = ''


@dataclasses.dataclass(frozen=True)
class Workload:
    """A published table or graph, and how it is made here.

    `rows(scale)` lists what to measure; `about` describes the programs and the
    differences to the published ones, in Markdown.
    """
    name: str
    title: str
    document: str
    about: str
    rows: typing.Callable
    pivots: typing.Tuple[Pivot, ...] = ()
    plots: typing.Tuple[Plot, ...] = ()


class Bench:
    """The tools of a row's measure function.

    Everything that is started through it ends with `close()`.
    """

    def __init__(self, programs, scale, folder):
        self.programs = programs
        self.scale = scale
        self.folder = folder
        self._stack = contextlib.ExitStack()

    def enter(self, context):
        """Enters a context manager that is left by close()."""
        return self._stack.enter_context(context)

    def close(self):
        stack, self._stack = self._stack, contextlib.ExitStack()
        stack.close()
