#!/usr/bin/python3
"""Load generators and their reports, with ones that only pretend."""

import json
import os
import random
import sys
import types
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

# pylint: disable=wrong-import-position
from workloads import loads, model
from workloads.fakes import InFolder, fake_programs, write_program


class Loads(InFolder):

    def apply(self, presses=1, **fakes):
        bench = self.bench(fake_programs(self.folder, **fakes))
        server = types.SimpleNamespace(pids=[os.getpid()],
                                       line=lambda: 'me')
        clients = [loads.Press(bench, 'flare://a', 2, connections=3, pending=4)
                   for _ in range(presses)]
        return loads.apply_load(bench, clients, [server],
                                counted=clients[:2])

    def test_report_of_one(self):
        # So long that it still runs when its share of the CPU is looked at.
        sample = self.apply(action='sleep 2')
        self.assertEqual((sample.qps, sample.failures), (1000.0, 0))
        figures = sample.latency_figures()
        self.assertEqual((figures['p90_us'], figures['p99_us']), (10.0, 10.0))
        self.assertAlmostEqual(figures['p999_us'], 999.5)
        self.assertGreater(sample.rss_server_kb, 1000)
        self.assertIsNotNone(sample.cpu_server)
        self.assertEqual(sample.commands, [
            'server: me', 'client: press --server_addr=flare://a '
            '--flare_concurrency_hint=2 --max_pending=4 --timeout=10000 '
            '--flare_rpc_client_max_connections_per_server=3 --warmup=0 '
            '--duration=0.05'])

    def test_reports_are_added_up(self):
        sample = self.apply(presses=3, extra=', "warmup_failures_by_status": '
                            '{"3": 2}, "unended": 1')
        # Two are counted, but all failures are.
        self.assertEqual((sample.qps, sample.latencies.count), (2000.0, 200))
        self.assertEqual(sample.failures, 9)
        self.assertEqual(len(sample.commands), 4)

    def test_warm_up_is_shared_and_lasts_until_all_loops_run(self):
        bench = self.bench(fake_programs(self.folder), grid='full', warmup=0.01)
        many, few = [loads.Press(bench, 'flare://a', 1, pending=pending)
                     for pending in (101, 100)]
        self.assertEqual((many.warmup, few.warmup), (1.1, 0.01))
        few.prepare(bench, many.warmup)
        self.assertIn('--warmup=1.1 ', few.line() + ' ')

    def test_tail_is_apart(self):
        sample = self.apply(extra=', "tail": {"qps": 10.0, "failures": 4, '
                            '"warmup_failures_by_status": {"3": 2, "104": 1}, '
                            '"p50_us": 5000.0}')
        self.assertEqual(sample.failures, 7)
        self.assertEqual(sample.extra['tail_p50_us'], 5000.0)

    def test_failing_client(self):
        with self.assertRaisesRegex(model.Failure, 'status 2:\nno such flag'):
            self.apply(action='echo no such flag; exit 2')
        with self.assertRaisesRegex(model.Failure, 'Expecting value'):
            self.apply(action='echo > "$file"; exit 1')


def add_as_wrk_does(counts, interval):
    """The effect of wrk's stats_correct() on {latency: count}."""
    longest = max(counts)
    for latency in range(2 * interval, longest + 1):
        count = counts.get(latency, 0)
        added = latency - interval
        while count and added > interval:
            counts[added] = counts.get(added, 0) + count
            added -= interval


class Wrk(InFolder):

    def wrk_says(self, first='', **report):
        """A program in PATH that does `first` and then writes this report."""
        report = {'requests': 500, 'duration_us': 250000, 'failures': 0,
                  'failed_statuses': 0, 'max_us': 41,
                  'histogram_us': [[40, 40, 9], [41, 41, 1]], **report}
        write_program(
            self.folder, 'wrk', '#!/bin/sh\n%s\n'
            'cat > $WRK_REPORT <<END\n%s\nEND\n' % (
                first, json.dumps(report)))
        path = unittest.mock.patch.dict(os.environ, {
            'PATH': self.folder + ':' + os.environ['PATH']})
        path.start()
        self.addCleanup(path.stop)

    def apply(self, connections=1, threads=2, warmup=0.0, **options):
        bench = self.bench(warmup=warmup)
        client = loads.Wrk(bench, '127.0.0.1:1', threads, connections,
                           **options)
        return loads.apply_load(bench, [client], [])

    def test_report(self):
        self.wrk_says(failures=1)
        sample = self.apply(post_bytes=9)
        self.assertEqual((sample.qps, sample.failures), (2000.0, 1))
        figures = sample.latency_figures()
        self.assertEqual((figures['p50_us'], figures['avg_us'],
                          figures['max_us']), (40, 40.1, 41))
        self.assertEqual(sample.commands, [
            'client: WRK_POST_BYTES=9 wrk -t1 -c1 -d1s -s wrk_report.lua '
            'http://127.0.0.1:1/'])

    def test_whole_seconds(self):
        self.wrk_says()
        client = loads.Wrk(self.bench(seconds=2.5), '127.0.0.1:1', 1, 1)
        self.assertEqual(client.seconds, 3)
        self.assertIn('-d3s', client.command)

    def test_warm_up_counts(self):
        self.wrk_says(failures=2)
        for warmup in (0.2, 1.0):
            self.assertEqual(self.apply(warmup=warmup).failures, 4)
        self.wrk_says(first='echo unable to connect; exit 1')
        with self.assertRaisesRegex(model.Failure, 'status 1:\nunable'):
            self.apply(warmup=1.0)

    def test_nothing_is_reported_after_the_warm_up(self):
        self.wrk_says(first='if test -e warm; then exit 0; fi; >warm'.replace(
            'warm', os.path.join(self.folder, 'warm')))
        with self.assertRaisesRegex(model.Failure, 'Expecting value'):
            self.apply(warmup=1.0)

    def test_error_statuses_are_no_success(self):
        self.wrk_says(failures=101, failed_statuses=100)
        sample = self.apply()
        self.assertEqual((sample.qps, sample.failures), (1600.0, 101))
        self.wrk_says(failures=500, failed_statuses=500)
        with self.assertRaisesRegex(model.Failure, 'no call succeeded'):
            self.apply()

    def test_all_connections_are_opened(self):
        self.assertEqual(
            [loads.even_threads(most, connections) for most, connections in (
                (1, 64), (2, 1), (6, 64), (6, 20), (76, 64), (76, 2048),
                (3, 7))],
            [1, 1, 4, 5, 64, 64, 1])
        self.wrk_says()
        self.assertIn(' -t4 -c64 ', self.apply(64, threads=6).commands[0])

    def test_what_wrk_adds_is_taken_out(self):
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        for _ in range(50):
            requests = rng.randrange(1, 2000)
            connections = rng.choice((1, 3, 64))
            duration = rng.randrange(2000, 40000)
            measured = {}
            for _ in range(requests):
                latency = int(rng.paretovariate(0.7) * rng.randrange(1, 100))
                latency = min(latency, 3000)
                measured[latency] = measured.get(latency, 0) + 1
            seen = dict(measured)
            if requests // connections:
                add_as_wrk_does(seen, duration // (requests // connections))
            # wrk doesn't tell its scripts of any below the least measured.
            report = {'requests': requests, 'duration_us': duration,
                      'histogram_us': [
                          [latency, latency, count]
                          for latency, count in sorted(seen.items())
                          if latency >= min(measured)]}
            self.assertEqual(
                loads.without_additions(report, connections),
                [[latency, latency, count]
                 for latency, count in sorted(measured.items())],
                'seed %d' % seed)

    def test_averages_are_of_what_was_measured(self):
        # A loop of 100 calls of 10 us, one in which one of 1 ms comes first.
        seen = {10: 99, 1000: 1}
        add_as_wrk_does(seen, 1990 // 100)
        self.wrk_says(requests=100, duration_us=1990, max_us=1000,
                      histogram_us=[[value, value, count] for value, count
                                    in sorted(seen.items())])
        sample = self.apply()
        figures = sample.latency_figures()
        self.assertEqual((figures['avg_us'], figures['p99_us']), (19.9, 10))
        self.assertLessEqual(figures['avg_us'] * sample.qps / 1e6, 1.001)

    def test_additions_of_another_kind(self):
        for buckets in ([[10, 10, 101]], [[30, 30, 1], [50, 50, 9]]):
            with self.assertRaisesRegex(model.Failure, 'version 4.1'):
                loads.without_additions(
                    {'requests': 100, 'duration_us': 2000,
                     'histogram_us': buckets}, 1)


if __name__ == '__main__':
    sys.path.append(os.path.join(HERE, '..', '..', 'tools'))
    import unittest_xml
    unittest_xml.main()
