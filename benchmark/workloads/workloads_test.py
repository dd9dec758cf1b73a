#!/usr/bin/python3
"""Measuring, with programs that only pretend."""

import contextlib
import datetime
import io
import json
import os
import random
import signal
import sys
import time
import types
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

# pylint: disable=wrong-import-position
from workloads import (histogram, machine, model, processes, runner, store,
                       trpc)
from workloads.fakes import (SERVER, InFolder, alive, wait_until,
                             write_program)

class Histograms(unittest.TestCase):

    def test_percentiles_beside_sorted_values(self):
        seed = random.randrange(1 << 30)
        values = sorted(random.Random(seed).choices(range(1, 5000), k=3000))
        latencies = histogram.Histogram.from_buckets(
            [[1000 * value, 1000 * value, 1] for value in values])
        for share in (0, 0.001, 0.5, 0.9, 0.99, 0.999, 1):
            rank = max(1, -(-int(round(share * 3000 * 1e6)) // 10 ** 6))
            self.assertEqual(latencies.percentile(share), values[rank - 1],
                             'seed %d, share %g' % (seed, share))
        figures = latencies.figures()
        self.assertAlmostEqual(figures['avg_us'], sum(values) / 3000, 2)
        self.assertEqual(figures['max_us'], values[-1])

    def test_thin_is_one_percent_off_at_most(self):
        values = [1.5 ** i for i in range(40)]
        latencies = histogram.Histogram.from_buckets(
            [[1000 * value, 1000 * value, 1 + i]
             for i, value in enumerate(values)])
        stored = json.loads(json.dumps(latencies.thin()))
        read = histogram.Histogram.from_thin(stored)
        self.assertEqual(read.count, latencies.count)
        for share in (0.001, 0.1, 0.5, 0.9, 0.999):
            exact = latencies.percentile(share)
            self.assertLess(abs(read.percentile(share) / exact - 1), 0.0101)
        self.assertAlmostEqual(read.figures()['avg_us'],
                               latencies.figures()['avg_us'], 2)

    def test_sum(self):
        one = histogram.Histogram.from_buckets([[1000, 1000, 3]], max_us=2.0)
        two = histogram.Histogram.from_buckets([[1000, 1000, 1],
                                                [5000, 5000, 2]])
        both = histogram.merged([one, two])
        self.assertEqual((both.count, both.counts, both.max_us),
                         (6, {1.0: 4, 5.0: 2}, 5.0))
        self.assertIsNone(histogram.merged([one, None]))

    def test_runs_of_zeros(self):
        self.assertEqual(histogram.run_length([5, 0, 0, 0, 7, 0]),
                         [5, -3, 7, -1])
        self.assertEqual(histogram.run_length([]), [])

    def test_distribution_has_bulk_and_tail(self):
        latencies = histogram.Histogram.from_buckets(
            [[1000 * i, 1000 * i, 10000 // i] for i in range(1, 1000)])
        points = latencies.cdf(points=50)
        self.assertLess(len(points), 60)
        self.assertEqual(points, sorted(points))
        self.assertEqual(points[-1], (999.0, 1.0))
        self.assertTrue(any(0.4 < share < 0.6 for _, share in points))
        self.assertTrue(any(0.999 < share < 1 for _, share in points))


class Processes(InFolder):

    def test_output_is_waited_for(self):
        program = write_program(self.folder, 'server', SERVER)
        with processes.started([program], self.folder,
                               processes.LISTENING) as server:
            self.assertEqual(server.address, '127.0.0.1:1')
            self.assertTrue(server.running())
            # It turns into another program after its line, with new memory.
            self.assertTrue(wait_until(
                lambda: processes.peak_rss_kb(server.pids) > 100))
        self.assertFalse(alive(server.pid))

    def test_one_that_ends_or_is_missing(self):
        with self.assertRaisesRegex(model.Failure, 'status 3:\nsorry'):
            with processes.started(['sh', '-c', 'echo sorry; exit 3'],
                                   self.folder, processes.LISTENING):
                self.fail()
        with self.assertRaisesRegex(model.Missing, 'no program /nowhere/x'):
            processes.Process(['/nowhere/x'], self.folder)

    def test_one_that_ignores_signals_and_has_children(self):
        script = 'trap "" TERM; sleep 600 & echo ready; wait; wait'
        with self.assertRaises(ZeroDivisionError):
            with processes.started(['sh', '-c', script], self.folder,
                                   '(ready)') as process:
                self.assertEqual(len(process.pids), 2)
                pids = process.pids
                process.end(patience=0.01)
                raise ZeroDivisionError
        self.assertTrue(wait_until(lambda: not any(map(alive, pids))))

    def test_interrupts_wait_for_the_child_to_be_known(self):
        constructor = processes.Process

        def interrupted(*arguments):
            made = constructor(*arguments)
            pids.append(made.pid)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)
            return made
        pids = []
        with unittest.mock.patch.object(processes, 'Process', interrupted):
            with self.assertRaises(KeyboardInterrupt):
                with processes.started(['sleep', '600'], self.folder):
                    self.fail()
        self.assertFalse(alive(pids[0]))

    def test_cpu_time(self):
        with processes.started(
                ['sh', '-c', 'while :; do :; done'], self.folder) as process:
            self.assertTrue(wait_until(
                lambda: processes.cpu_seconds([process.pid]) >= 0.05))
        self.assertEqual(processes.cpu_seconds([process.pid]), 0)

    def test_commands_are_shown_without_folders(self):
        program = write_program(self.folder, 'press', SERVER)
        config = os.path.join(self.folder, 'a.conf')
        self.assertEqual(
            processes.command_line(['taskset', '-c', '0', program, '-c', config,
                                    '-p', self.folder, '--x=a b']),
            "taskset -c 0 press -c a.conf -p FOLDER '--x=a b'")


def sample_of(qps, **more):
    latencies = histogram.Histogram.from_buckets([[1000, 1000, 10],
                                                  [9000, 9000, 10]])
    return model.Sample(**{'qps': qps, 'failures': 0, 'latencies': latencies,
                           'cpu_server': 0.5, 'cpu_client': 1.0,
                           'rss_server_kb': 2048, 'rss_client_kb': 1024,
                           **more})


class LoadSearch(InFolder):

    def found(self, p999_of, fails_at=None):
        """The calls under way that trpc's tables are measured with."""
        def measure_at(bench, start, stub, pending):
            del bench, start, stub
            return sample_of(100.0, figures={'p999_us': p999_of(pending)},
                             failures=int(pending == fails_at))
        prepare = trpc.find_load(None, {})
        with unittest.mock.patch.object(trpc, 'measure_at', measure_at):
            return prepare(self.bench(grid='full'))

    def test_until_p999_is_too_long(self):
        self.assertEqual(self.found(lambda pending: 25 * pending), 400)
        self.assertEqual(self.found(lambda pending: 20 * pending), 476)
        self.assertEqual(self.found(lambda pending: 0), 12800)

    def test_until_calls_fail(self):
        # Those that succeed are fast, as fewer are under way.
        self.assertEqual(self.found(lambda pending: 10, fails_at=800), 673)
        self.assertEqual(self.found(lambda pending: 10, fails_at=100), 84)


class Runs(InFolder):

    def setUp(self):
        super().setUp()
        self.measured = []

    def row(self, system, error=None, **more):
        def measure(bench, *prepared):
            self.measured.append(system + ''.join(map(str, prepared)))
            if error is not None:
                raise error
            bench.enter(contextlib.closing(types.SimpleNamespace(
                close=lambda: self.measured.append('closed'))))
            return sample_of(100.0)
        return model.Row(system, 1, {}, measure, **more)

    def run_rows(self, rows, repetitions=2):
        self.measured.clear()
        scale = model.Scale(repetitions=repetitions)
        workload = types.SimpleNamespace(name='some')
        plan = runner.Plan(workload, rows, store.Store(self.folder, 'some'))
        self.said = io.StringIO()
        progress = runner.Progress(self.said, runner.count_missing(
            [plan], scale), scale)
        running = runner.Runner(None, scale, progress)
        running.run(plan)
        return plan, running

    def test_by_turns_and_closed(self):
        self.run_rows([self.row('a'), self.row('b')])
        self.assertEqual(self.measured, ['a', 'closed', 'b', 'closed'] * 2)
        self.assertIn('[4/4, 0 s left] some: b threads=1 (2/2): 100 QPS',
                      self.said.getvalue())

    def test_what_was_stopped_goes_on(self):
        with self.assertRaises(KeyboardInterrupt):
            self.run_rows([self.row('a'), self.row('b', KeyboardInterrupt())])
        with open(os.path.join(self.folder, 'some.jsonl'), 'a',
                  encoding='utf-8') as file:
            file.write('{"row": "b|1|", "repet')
        plan, _ = self.run_rows([self.row('a'), self.row('b')])
        self.assertEqual(self.measured, ['b', 'closed', 'a', 'closed', 'b',
                                         'closed'])
        # Lines after the one that was cut short are there, too.
        again = store.Store(self.folder, 'some')
        self.assertEqual([len(again.of(row, 2)) for row in plan.rows], [2, 2])

    def test_stored_samples_are_the_same(self):
        plan, _ = self.run_rows([self.row('a')], 1)
        again = store.Store(self.folder, 'some')
        [ours], [read] = plan.store.of(plan.rows[0], 1), again.of(
            plan.rows[0], 1)
        self.assertEqual(read.latency_figures(), ours.latency_figures())
        self.assertEqual(read.latencies.count, 20)
        self.assertEqual((read.date, read.machine),
                         (datetime.date.today().isoformat(),
                          machine.machine()))
        again.clear()
        self.assertEqual(store.Store(self.folder, 'some').samples, {})

    def test_missing_and_failing_rows(self):
        plan, running = self.run_rows([
            self.row('a', model.Missing('no a')),
            self.row('b', model.Failure('b died')), self.row('c')])
        self.assertEqual(self.measured, ['a', 'b', 'c', 'closed', 'c',
                                         'closed'])
        self.assertEqual([entry[2] for entry in running.left_out], ['no a'])
        self.assertEqual([entry[2] for entry in running.failed], ['b died'])
        self.assertEqual(plan.store.of(plan.rows[1], 2), [])
        self.assertIn('[4/4', self.said.getvalue())

    def test_preparing_once(self):
        rows = [self.row('a', prepare=lambda bench: 7)]
        self.run_rows(rows)
        self.run_rows(rows, repetitions=3)
        self.assertEqual(self.measured, ['a7', 'closed'])
        self.assertEqual([runner.duration(s) for s in (3, 100, 7500)],
                         ['3 s', '2 min', '2 h 05 min'])


if __name__ == '__main__':
    sys.path.append(os.path.join(HERE, '..', '..', 'tools'))
    import unittest_xml
    unittest_xml.main()
