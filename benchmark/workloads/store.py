"""Results as they come, in a file, so that a run that was stopped goes on.

One line of JSON per measurement, added as soon as it is there. A store belongs
to one workload and to one set of conditions (commit, build, CPUs, ...), which
its folder's name tells; a line cut short by a kill is dropped.
"""

import datetime
import json
import os

from . import histogram, machine
from .model import Sample


class Store:
    """The measurements of a workload: by row key and repetition."""

    def __init__(self, folder, workload):
        self.path = os.path.join(folder, workload + '.jsonl')
        self.samples = {}
        self.prepared = {}
        os.makedirs(folder, exist_ok=True)
        if os.path.exists(self.path):
            with open(self.path, encoding='utf-8') as file:
                for line in file:
                    self._take(line)

    def _take(self, line):
        try:
            entry = json.loads(line)
        except ValueError:
            return
        if 'prepared' in entry:
            self.prepared[entry['row']] = entry['prepared']
        else:
            self.samples[entry['row'], entry['repetition']] = sample_from(
                entry['sample'])

    def _write(self, entry):
        text = json.dumps(entry, separators=(',', ':')) + '\n'
        with open(self.path, 'a+b') as file:
            if file.tell() != 0:
                file.seek(-1, os.SEEK_END)
                if file.read() != b'\n':  # A line that was cut short.
                    text = '\n' + text
            file.write(text.encode())

    def add(self, row, repetition, sample):
        """Notes when and where it was measured: now, here."""
        sample.date = datetime.date.today().isoformat()
        sample.machine = machine.machine()
        self.samples[row.key, repetition] = sample
        self._write({'row': row.key, 'repetition': repetition,
                     'sample': as_json(sample)})

    def add_prepared(self, row, value):
        self.prepared[row.key] = value
        self._write({'row': row.key, 'prepared': value})

    def of(self, row, repetitions):
        """The row's samples, of repetitions 0 up to `repetitions`."""
        return [self.samples[row.key, repetition]
                for repetition in range(repetitions)
                if (row.key, repetition) in self.samples]

    def clear(self):
        self.samples.clear()
        self.prepared.clear()
        if os.path.exists(self.path):
            os.remove(self.path)


def as_json(sample):
    entry = dict(sample.__dict__)
    entry['figures'] = sample.latency_figures()
    if sample.latencies is not None:
        entry['latencies'] = sample.latencies.thin()
    return entry


def sample_from(entry):
    """A Sample. Its figures are those of the full histogram, not the thin one.
    """
    sample = Sample(**entry)
    if sample.latencies is not None:
        sample.latencies = histogram.Histogram.from_thin(sample.latencies)
    return sample
