#!/usr/bin/python3
"""Tables, plots and the command, with programs that only pretend."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

# pylint: disable=wrong-import-position
from workloads import (command, fakes, grouping, histogram, model, plots,
                       processes, published, report, summary)

KEYS = ['system', 'threads', 'parameters', 'qps', 'avg_us', 'p50_us', 'p90_us',
        'p99_us', 'p999_us', 'max_us', 'failures', 'cpu_server', 'cpu_client',
        'qps_per_core', 'rss_server_kb', 'repetitions', 'qps_min', 'qps_max']


def row(system, threads, qps, parameters=None, **more):
    """A summary of three repetitions: `qps`, and a tenth below and above."""
    latencies = histogram.Histogram.from_buckets(
        [[1000 * i, 1000 * i, 5000 // i] for i in range(10, 900)])
    samples = [model.Sample(qps=qps * part, latencies=latencies, **{
        'failures': 0, 'cpu_server': 0.5, 'cpu_client': 1.25,
        'rss_server_kb': 2048, **more}) for part in (1.1, 0.9, 1)]
    measured = model.Row(system, threads, parameters or {}, None)
    return summary.summarise(measured, samples), summary.distribution(samples)


def summaries(*rows):
    return [one for one, _ in rows]


class Summaries(unittest.TestCase):

    def test_json(self):
        [one] = summaries(row('gdt', 2, 1000.0))
        result = summary.json_row(one)
        self.assertEqual(list(result), KEYS)
        self.assertEqual(
            [result[key] for key in ('qps', 'qps_min', 'qps_max', 'cpu_client',
                                     'qps_per_core', 'repetitions')],
            [1000, 900, 1100, 1.25, 2000, 3])

    def test_when_and_where(self):
        samples = [model.Sample(1.0, 0, date=date, machine=where)
                   for date, where in (('2026-03-02', 'a'), ('2026-03-01', 'b'),
                                       ('2026-03-03', 'a'), ('', ''))]
        self.assertEqual(summary.when_and_where(samples),
                         ('2026-03-01 to 2026-03-03', 'a; b'))
        self.assertEqual(summary.when_and_where(samples[:1]),
                         ('2026-03-02', 'a'))
        self.assertEqual(summary.when_and_where([]), ('not stored',) * 2)

    def test_what_is_not_known_is_null(self):
        one = summary.summarise(
            model.Row('nginx', 1, {}, None),
            [model.Sample(qps=5.0, failures=2, figures={'avg_us': 7.0})] * 2)
        result = summary.json_row(one)
        self.assertEqual((result['avg_us'], result['p99_us'],
                          result['failures'], result['cpu_server'],
                          result['qps_per_core']),
                         (7.0, None, 4, None, None))

    def test_lines_are_named_by_what_tells_them_apart(self):
        rows = summaries(
            row('flare', 2, 1.0, {'size': 1, 'kind': 'a', 'same': 5}),
            row('flare', 2, 1.0, {'size': 2, 'kind': 'a', 'same': 5}),
            row('gdt', 2, 1.0, {'size': 1, 'kind': 'b', 'same': 5}))
        lines = grouping.lines(rows, 'size')
        self.assertEqual(list(grouping.labels(lines).values()),
                         ['flare, kind a', 'gdt, kind b'])
        self.assertEqual(grouping.columns(rows, 'size'), [1, 2])
        ours, theirs = lines
        # Ours differs in `kind`, but there is only one.
        self.assertEqual(grouping.ours_beside(theirs, lines), ours)
        self.assertIsNone(grouping.ours_beside(ours, lines))


class Builds(unittest.TestCase):

    def test_mode(self):
        for folder, mode in (
                ('/x/bazel-out/k8-opt/bin', 'bazel -c opt'),
                ('/x/bazel-out/k8-fastbuild/bin', 'bazel -c fastbuild'),
                ('/x/bazel-out/k8-optrelease/bin', 'bazel --config=release'),
                ('/x/mine', 'programs in mine')):
            self.assertEqual(command.machine.build_mode(folder), mode)

    def test_key(self):
        keys = [command.machine.build_key(folder) for folder in (
            '/x/bazel-out/k8-opt/bin', '/x/bazel-out/k8-optrelease/bin',
            '/x/mine', '/y/mine', '/y/mine/')]
        self.assertEqual(keys[:2], ['k8-opt', 'k8-optrelease'])
        self.assertRegex(keys[2], '^mine@[0-9a-f]{6}$')
        self.assertNotEqual(keys[2], keys[3])
        self.assertEqual(keys[3], keys[4])


class Commits(unittest.TestCase):

    def setUp(self):
        if shutil.which('git') is None:
            self.skipTest('no git')
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        top = unittest.mock.patch.object(command.machine, 'TOP', self.folder)
        top.start()
        self.addCleanup(top.stop)

    def commit(self, file):
        """The tree's commit after another one, which adds this file."""
        path = os.path.join(self.folder, file)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8'):
            pass
        command.machine.git('init')
        command.machine.git('add', '.')
        command.machine.git('-c', 'user.name=a', '-c', 'user.email=a', 'commit',
                            '-m', file)
        return command.machine.commit()

    def test_what_is_measured_with(self):
        names = [self.commit(file) for file in (
            'base/a.h', 'benchmark/peers/nginx_tcp.conf',
            'benchmark/workloads/proxy.py')]
        self.assertEqual(len(set(names)), 3)
        self.assertEqual([self.commit(file) for file in (
            'docs/a.md', 'benchmark/workloads/report.py',
            'benchmark/workloads/a_test.py')], names[-1:] * 3)


class Reports(unittest.TestCase):

    def test_figures_as_text(self):
        self.assertEqual(
            [report.thousands(value) for value in
             (7, 999.4, 9980, 147e3, 999.7e3, 1.35e6)],
            ['7', '999', '9.98K', '147K', '1.00M', '1.35M'])
        self.assertEqual(report.figure_text('cpu_server', 8.7), '870%')
        self.assertEqual(report.figure_text('rss_server_kb', 2048), '2')
        self.assertEqual(report.figure_text('p99_us', None), '–')

    def test_beside_the_published(self):
        rows = summaries(row('flare', 1, 100.0), row('gdt', 1, 50.0),
                         row('flare', 2, 200.0), row('gdt', 2, 50.0,
                                                     failures=1))
        text = report.pivot_text(
            model.Pivot('QPS', 'qps', 'threads', 'qps'), rows,
            published.TABLES['jitter-vs-gdt'])
        for line in ('| threads | 1 | 2 |',
                     '| flare | 100 ±10% | 200 ±10% |',
                     '| gdt | 50 ±10% | 50 ±10% (!) |',
                     '| *gdt / flare* | *0.50* | *0.25* |',
                     '| published: threads | 10 | 20 | 30 | 40 |',
                     '| gdt | 77.0K | 77.0K | 77.0K | 77.0K |',
                     '| *gdt / flare* | *1.03* | *0.53* | *0.42* | *0.31* |'):
            self.assertIn(line + '\n', text)

    def test_share_of_the_limit(self):
        rows = summaries(row('flare', 1, 60.0), row('epoll_limit', 1, 100.0))
        text = report.pivot_text(model.Pivot('QPS', 'qps', 'threads'), rows, {})
        self.assertIn('| *flare / epoll_limit* | *0.60* |\n', text)

    def test_what_a_tail_does(self):
        rows = summaries(row('flare', 1, 100.0, {'tail': 'none'}),
                         row('flare', 1, 150.0, {'tail': 'spin'}))
        text = report.pivot_text(model.Pivot('QPS', 'qps', 'tail'), rows, {})
        self.assertIn('| *flare, with / without* | *1.00* | *1.50* |\n', text)

    def test_whole_page(self):
        rows = summaries(row('flare', 1, 100.0, failures=1))
        workload = command.WORKLOADS['trpc-unary']
        facts = dict.fromkeys(('machine', 'commit', 'build', 'date'), 'here')
        facts.update(repetitions=3, seconds=1, warmup=0)
        text = report.write(workload, facts, rows, [['client: a', 'client: a']],
                            ['plot'], ['nginx: not installed'])
        for part in ('**(!)** marks', 'Left out: nginx: not installed.',
                     '| merge | 578K | 1,460 |', '![plot](plots/plot.svg)',
                     '**3 (!)**', 'client: a   # 2 of them'):
            self.assertIn(part, text)

    def test_published_tables_are_complete(self):
        for name, tables in published.TABLES.items():
            self.assertIn(name, command.WORKLOADS)
            for table in tables.values():
                for values in table.rows.values():
                    self.assertEqual(len(values), len(table.columns))
        self.assertEqual(set(published.NOTES), set(command.WORKLOADS))
        for workload in command.WORKLOADS.values():
            for pivot in workload.pivots:
                if pivot.published in published.TABLES.get(workload.name, {}):
                    self.assertIn(
                        report.PUBLISHED_FIGURE.get(pivot.published,
                                                    pivot.published),
                        [pivot.figure])


class Plots(unittest.TestCase):

    def test_lines_and_distribution(self):
        if plots.matplotlib() is None:
            self.skipTest('no matplotlib')
        rows = [row('flare', threads, 100e3 * threads) for threads in (1, 2, 4)]
        with tempfile.TemporaryDirectory() as folder:
            names = plots.draw(command.WORKLOADS['echo-flare'],
                               summaries(*rows), [d for _, d in rows], folder)
            self.assertEqual(names, ['echo-flare-qps', 'echo-flare-cdf',
                                     'echo-flare-cost'])
            for name in names:
                with open(os.path.join(folder, name + '.svg'),
                          encoding='utf-8') as file:
                    self.assertIn('echo-flare', file.read())
                with open(os.path.join(folder, name + '.png'), 'rb') as file:
                    self.assertEqual(file.read(4), b'\x89PNG')

    def test_overload(self):
        if plots.matplotlib() is None:
            self.skipTest('no matplotlib')
        rows = [{'times': times, 'answered': 1900, 'p99_ms': 8.5}
                for times in (1, 2, 5)]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'overload')
            self.assertTrue(plots.draw_overload({'with limit': rows}, path))
            with open(path + '.svg', encoding='utf-8') as file:
                self.assertIn('with limit', file.read())

    def test_same_parameters_have_the_same_style(self):
        rows = summaries(*[row(system, 1, 1.0, {'tail': tail}) for system, tail
                           in (('flare', 'a'), ('flare', 'b'), ('gdt', 'b'))])
        ours, ours_too, theirs = plots.styles(
            grouping.line_key(one, None) for one in rows).values()
        self.assertEqual(ours['color'], ours_too['color'])
        self.assertNotEqual(ours['linestyle'], theirs['linestyle'])
        self.assertEqual(ours_too['linestyle'], theirs['linestyle'])

    def test_only_the_greatest(self):
        rows = summaries(*[row('flare', threads, 1.0) for threads in (1, 4, 2)])
        self.assertEqual(plots.choose(model.Plot(
            'a', 'cdf', 'a', greatest='threads'), rows), [1])
        self.assertEqual(plots.choose(model.Plot(
            'a', 'cdf', 'a', where=lambda one: one['threads'] < 4), rows),
                         [0, 2])

    def test_nothing_to_draw(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(plots.draw(command.WORKLOADS['echo-flare'], [], [],
                                        folder), [])

    def test_labels_of_axes(self):
        self.assertEqual([plots.short_bytes(n) for n in (16, 4096, 1 << 20)],
                         ['16', '4K', '1M'])
        self.assertEqual([plots.micros(n) for n in (10, 2500, 1e6)],
                         ['10 us', '2.5 ms', '1 s'])
        self.assertAlmostEqual(plots.depth(0.999), 3)


class Commands(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        # The commit of a tree that may be edited at this moment.
        commit = unittest.mock.patch.object(command.machine, 'commit',
                                            return_value='1234567')
        commit.start()
        self.addCleanup(commit.stop)
        self.bin = os.path.join(self.folder, 'bin')
        os.makedirs(os.path.join(self.bin, 'example', 'http'))
        fakes.write_program(self.bin, 'example/http/server', fakes.SERVER)
        fakes.fake_programs(self.bin)

    def run_main(self, *arguments):
        """Exit status, and all output."""
        said = io.StringIO()
        cache = unittest.mock.patch.object(
            command, 'CACHE', os.path.join(self.folder, 'cache'))
        with contextlib.redirect_stdout(said), cache, (
                contextlib.redirect_stderr(said)):
            try:
                status = command.main(arguments)
            except SystemExit as end:
                status = end.code
        return status, said.getvalue()

    def test_list(self):
        status, said = self.run_main('--list')
        self.assertEqual(status, 0)
        self.assertEqual(len(said.split()), 18)
        self.assertIn('brpc-many-clients\n', said)

    def test_wrong_arguments(self):
        for arguments, text in (
                (['echo'], 'no workload "echo"'),
                (['--threads=1,x'], 'no list of positive numbers'),
                (['--threads=0'], 'no list of positive numbers'),
                (['--peers=apache'], 'no peer "apache"'),
                (['--repetitions=0'], 'must be positive'),
                (['--seconds=nan'], 'must be positive'),
                (['--warmup=inf'], 'must not be negative'),
                (['--output=/dev/null/x'], '/dev/null/x'),
                (['echo-flare', '--json=/nowhere/x'], '/nowhere/x'),
                (['--quick', '--smoke'], 'exclude each other'),
                (['--json=x'], 'one workload')):
            status, said = self.run_main(*arguments)
            self.assertEqual(status, 2, arguments)
            self.assertIn(text, said)

    def test_rows_are_told_apart(self):
        for grid in ('full', 'quick', 'smoke'):
            for cpus in ((0,), (0, 1), tuple(range(76))):
                scale = model.Scale(grid=grid, cpus=cpus)
                for workload in command.WORKLOADS.values():
                    keys = [one.key for one in workload.rows(scale)]
                    self.assertEqual(len(keys), len(set(keys)), workload.name)
                    self.assertTrue(keys)

    def test_no_more_threads_than_the_column_says(self):
        for threads, expected in ((1, set()), (2, {'gdt-tp'})):
            scale = model.Scale(threads=(threads,))
            for name in ('echo-vs-gdt', 'jitter-vs-gdt', 'brpc-longtail',
                         'brpc-many-clients'):
                systems = {one.system for one in command.WORKLOADS[name].rows(
                    scale)}
                self.assertEqual(systems & {'gdt-tp'}, expected, name)

    def test_rows_that_need_a_peer_are_left_out_without_it(self):
        options = command.parse(['grpc-echo', '--peers=none'])
        plan, = command.make_plans(options, command.scale_of(options), 'x',
                                   set())
        self.assertEqual({row.system for row in plan.rows}, {'flare'})

    def test_what_another_peer_gave_is_not_this_ones(self):
        folder = os.path.join(self.folder, 'nginx')
        os.makedirs(folder)
        options = command.parse(['proxy-http'])
        keys = []
        with unittest.mock.patch.dict(os.environ, FLARE_PEERS=self.folder), (
                unittest.mock.patch.object(command, 'CACHE', self.folder)):
            for version in ('1', '2'):
                with open(os.path.join(folder, 'installed.json'), 'w',
                          encoding='utf-8') as file:
                    json.dump({'version': version, 'recipe': 'x'}, file)
                [plan] = command.make_plans(options, model.Scale(), 'abc',
                                            {'nginx'})
                keys.append({one.key for one in plan.rows})
        self.assertTrue(keys[0] - keys[1])
        self.assertEqual({key.split('|')[0] for key in keys[0] ^ keys[1]},
                         {'nginx'})

    def test_full_disk(self):
        with unittest.mock.patch.object(command.Store, 'add',
                                        side_effect=OSError(28, 'full')):
            status, said = self.run_main(
                'echo-http', '--peers=none', '--seconds=.02', '--warmup=0',
                '--repetitions=1', '--bin=' + self.bin,
                '--output=' + self.folder)
        self.assertEqual((status, said), (1, 'tables: [Errno 28] full\n'))

    def test_without_programs_pages_stay(self):
        page = os.path.join(self.folder, 'echo-http.md')
        with open(page, 'w', encoding='utf-8') as file:
            file.write('figures')
        status, said = self.run_main(
            'echo-http', '--peers=none', '--bin=/nowhere',
            '--output=' + self.folder)
        self.assertEqual(status, 1)
        self.assertIn('left out', said)
        with open(page, encoding='utf-8') as file:
            self.assertEqual(file.read(), 'figures')

    def test_all_workloads(self):
        status, said = self.run_main('--smoke', '--peers=none', '--seconds=.02',
                                     '--warmup=0', '--bin=' + self.bin)
        self.assertEqual(status, 0, said)
        self.assertIn('0 s left', said)
        for name in command.WORKLOADS:
            self.assertIn('%s: flare' % name, said)

    def test_failed_requests(self):
        fakes.fake_programs(self.bin, extra=', "unended": 3')
        arguments = ('echo-http', '--smoke', '--peers=none', '--seconds=.02',
                     '--bin=' + self.bin)
        status, said = self.run_main(*arguments)
        self.assertEqual(status, 1)
        self.assertRegex(said, r'flare threads=\d+: 3 request\(s\) failed')
        os.remove(os.path.join(self.bin, 'press'))
        status, said = self.run_main(*arguments)
        self.assertEqual(status, 1)
        self.assertIn('bazel build -c opt //example/rpc:press', said)

    def test_files(self):
        file = os.path.join(self.folder, 'result.json')
        output = os.path.join(self.folder, 'tables')
        status, said = self.run_main(
            'echo-flare', '--threads=1,2', '--peers=none', '--seconds=.02',
            '--warmup=0', '--repetitions=2', '--bin=' + self.bin,
            '--json=' + file, '--output=' + output)
        self.assertEqual(status, 0, said)
        with open(file, encoding='utf-8') as text:
            result = json.load(text)
        self.assertEqual(list(result), ['workload', 'machine', 'commit',
                                        'rows'])
        self.assertEqual([(r['system'], r['threads'], r['repetitions'])
                          for r in result['rows']],
                         [(system, threads, 2) for threads in (1, 2)
                          for system in ('flare', 'epoll_limit',
                                         'epoll_limit, press')])
        self.assertEqual(list(result['rows'][0]), KEYS)
        with open(os.path.join(output, 'raw', 'echo-flare.json'),
                  encoding='utf-8') as text:
            raw = json.load(text)['rows'][0]
        self.assertEqual(sum(n for n in raw['latencies']['counts'] if n > 0),
                         200)
        self.assertIn('--max_pending=10 ', raw['commands'][1])
        self.assertTrue(os.path.exists(os.path.join(output, 'echo-flare.md')))

    def test_other_conditions_are_measured_anew(self):
        output = os.path.join(self.folder, 'tables')
        other = os.path.join(self.folder, 'other', 'bin')
        shutil.copytree(self.bin, other)
        cpus = os.sched_getaffinity(0)

        def measured(*flags, cpus=cpus):
            """How many rows a command still measures."""
            with unittest.mock.patch.object(command.os, 'sched_getaffinity',
                                            return_value=cpus):
                status, said = self.run_main(
                    'echo-http', '--peers=none', '--seconds=.02', '--warmup=0',
                    '--output=' + output, *flags)
            self.assertEqual(status, 0, said)
            return said.count('] echo-http: ')
        ours = ['--bin=' + self.bin, '--repetitions=1']
        self.assertEqual(measured(*ours, '--threads=1'), 3)
        self.assertEqual(measured(*ours, '--threads=1,2'), 6)
        self.assertEqual(measured('--bin=' + other, '--repetitions=1',
                                  '--threads=1'), 3)
        self.assertEqual(measured(*ours, '--threads=1', cpus={0, 70}), 3)
        # Flags that are no other condition.
        for flags in (['--threads=1'], ['--threads=1,2'],
                      ['--threads=1', '--commit=1234567']):
            self.assertEqual(measured(*ours, *flags), 0, flags)
        self.assertEqual(measured(*ours, '--threads=1', '--repetitions=2'), 3)

    def test_stopped_and_resumed(self):
        fakes.fake_programs(self.bin, action='sleep 600')
        arguments = ['echo-http', '--peers=none', '--seconds=.02',
                     '--warmup=0', '--repetitions=2', '--bin=' + self.bin,
                     '--output=' + os.path.join(self.folder, 'tables')]
        script = ('import sys; sys.path.insert(0, %r); '
                  'from workloads import command; command.CACHE = %r; '
                  'command.machine.commit = lambda: "1234567"; '
                  'sys.exit(command.main(sys.argv[1:]))' % (
                      os.path.dirname(HERE),
                      os.path.join(self.folder, 'cache')))
        running = subprocess.Popen(
            [sys.executable, '-c', script, *arguments],
            stderr=subprocess.PIPE, text=True)
        pids = []

        def started():
            # The server, press, and the process that press waits for.
            pids[:] = processes.descendants(running.pid)
            return len(pids) == 3
        self.assertTrue(fakes.wait_until(started))
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
        self.assertEqual(running.returncode, 130, said)
        self.assertIn('goes on from here', said)
        # Killed, but maybe a moment from being gone.
        self.assertTrue(fakes.wait_until(
            lambda: not any(map(fakes.alive, pids))))
        fakes.fake_programs(self.bin)
        self.assertEqual(self.run_main(*arguments)[0], 0)
        status, said = self.run_main(*arguments)
        self.assertEqual(status, 0)
        self.assertNotIn('echo-http', said)


if __name__ == '__main__':
    sys.path.append(os.path.join(HERE, '..', '..', 'tools'))
    import unittest_xml
    unittest_xml.main()
