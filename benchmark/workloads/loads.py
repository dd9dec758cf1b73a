"""Puts load on servers and reads the reports of the load generators.

    clients = [Press(bench, 'flare://127.0.0.1:5567', threads=2, connections=2,
                     pending=20)]
    sample = apply_load(bench, clients, servers=[server])

A client knows its command and how to read its report. apply_load() runs some
at the same time, looks at the CPU time of clients and servers well within the
window, and adds the reports up.
"""

import contextlib
import json
import math
import os
import shutil
import tempfile
import time

from . import histogram, peers, processes
from .model import Failure, Sample

LUA = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'wrk_report.lua')
# Beyond warm-up and window: starting, calls under way at the end, ending.
GRACE_S = 20.0
# press begins more loops than this over its first second.
MANY_LOOPS = 100
MANY_LOOPS_WARMUP_S = 1.1


class JsonClient:
    """A program with --warmup, --duration and --json, as press has them."""

    # 1: some call failed, which the report tells.
    statuses = (0, 1)

    def __init__(self, bench, command, cpus=None):
        handle, self.report = tempfile.mkstemp(dir=bench.folder, suffix='.json')
        os.close(handle)
        self.warmup = bench.scale.warmup
        self.seconds = bench.scale.seconds
        self.environment = {}
        self._base = [str(word) for word in command]
        self._cpus = cpus

    def prepare(self, bench, warmup):
        """Runs before all clients start together. They share a warm-up."""
        del bench
        self.warmup = warmup

    def _measured(self):
        return self._base + ['--warmup=%g' % self.warmup,
                             '--duration=%g' % self.seconds]

    @property
    def command(self):
        return pinned(self._measured() + ['--json=' + self.report], self._cpus)

    def line(self):
        return processes.command_line(pinned(self._measured(), self._cpus))

    def read(self):
        report = read_report(self.report)
        tail = report.get('tail')
        failures = (report.get('unended', 0) + report.get('unsent', 0) +
                    failures_of(report))
        extra = {}
        if tail:
            failures += failures_of(tail)
            extra = {'tail_qps': tail['qps'], 'tail_p50_us': tail.get('p50_us'),
                     'tail_p99_us': tail.get('p99_us')}
        latencies = histogram.Histogram.from_buckets(
            report['histogram_ns'], report.get('avg_us'), report.get('max_us'))
        return Sample(qps=report['qps'], failures=failures, latencies=latencies,
                      extra=extra)


def failures_of(section):
    """Latencies of a report of press or its tail, with those of the warm-up."""
    return section['failures'] + sum(
        section.get('warmup_failures_by_status', {}).values())


class Press(JsonClient):
    """Our load generator: docs/press.md.

    `connections`: to each server; or give `connection_kind`, "single" or
    "pooled". `flags` are further ones, such as body_size=16.
    """

    def __init__(self, bench, address, threads, connections=None, cpus=None,
                 **flags):
        command = [bench.programs.path('example/rpc/press'),
                   '--server_addr=' + address,
                   '--flare_concurrency_hint=%d' % threads]
        if bench.scale.grid == 'smoke':
            # The criterion is whether calls succeed, on however slow a machine.
            flags.setdefault('timeout', 10000)
        if connections is not None:
            flags['flare_rpc_client_max_connections_per_server'] = connections
        names = {'pending': 'max_pending', 'connection_kind': 'connections'}
        command += ['--%s=%s' % (names.get(name, name), value)
                    for name, value in flags.items() if value is not None]
        super().__init__(bench, command, cpus)
        loops = max(flags.get('pending') or 0, flags.get('callers') or 0)
        if loops > MANY_LOOPS and bench.scale.grid != 'smoke':
            self.warmup = max(self.warmup, MANY_LOOPS_WARMUP_S)


def grpc_client(bench, address, **flags):
    """gRPC's, of benchmark/peers: a JsonClient, too."""
    command = [peers.all_peers()['grpc'].client(), '--server_addr=' + address]
    return JsonClient(bench, command + [
        '--%s=%s' % item for item in flags.items()])


class Wrk:
    """wrk, for plain HTTP. A run before the window warms the server up.

    It takes whole seconds only: both are rounded up.

    With `post_bytes` it sends POST requests with such a body.
    """

    # Failed requests are no reason for another.
    statuses = (0,)

    def __init__(self, bench, address, threads, connections, post_bytes=None,
                 cpus=None):
        program = find_wrk()
        handle, self.report = tempfile.mkstemp(dir=bench.folder, suffix='.json')
        os.close(handle)
        self.environment = {'WRK_REPORT': self.report}
        if post_bytes is not None:
            self.environment['WRK_POST_BYTES'] = str(post_bytes)
        self.warmup = 0.0
        self._warmup_failures = 0
        self.seconds = math.ceil(bench.scale.seconds)
        self._url = address if address.startswith('http') else (
            'http://%s/' % address)
        self._connections = connections
        self._base = [program, '-t%d' % even_threads(threads, connections),
                      '-c%d' % connections]
        self._cpus = cpus
        self.command = self._with_duration(self.seconds)

    def _with_duration(self, seconds):
        return pinned(self._base + ['-d%ds' % seconds, '-s', LUA, self._url],
                      self._cpus)

    def prepare(self, bench, warmup):
        del warmup
        if bench.scale.warmup == 0:
            return
        seconds = math.ceil(bench.scale.warmup)
        with processes.started(self._with_duration(seconds), bench.folder,
                               environment=self.environment) as warming:
            wait_for_end(warming, self, seconds + GRACE_S)
        self._warmup_failures = read_report(self.report)['failures']
        # So that it isn't taken for the window's, if that isn't written.
        os.truncate(self.report, 0)

    def line(self):
        return processes.command_line(
            ['%s=%s' % item for item in self.environment.items()
             if item[0] != 'WRK_REPORT']
            + self.command[:-3] + ['-s', 'wrk_report.lua', self._url])

    def read(self):
        report = read_report(self.report)
        successes = report['requests'] - report['failed_statuses']
        return Sample(
            qps=successes / (report['duration_us'] / 1e6),
            failures=report['failures'] + self._warmup_failures,
            latencies=histogram.Histogram.from_buckets(
                without_additions(report, self._connections),
                max_us=report['max_us'], unit_ns=1000))


def even_threads(most, connections):
    """As many as share the connections evenly, so that wrk opens all of them.

    It gives each thread connections / threads, rounded down.
    """
    return max(threads for threads in range(1, min(most, connections) + 1)
               if connections % threads == 0)


def without_additions(report, connections):
    """The latencies that wrk measured, of those that its scripts see.

    Before a script runs, wrk takes the average time between two requests of a
    connection for the interval at which they were due, and adds the latencies
    of those that a long one held up: n - i, n - 2 i ... for one of n >= 2 i, as
    long as they exceed i. So in place of the measured count of m > i there are
    those of m, m + i, m + 2 i ... together, which is that of m and the new
    count of m + i. Nothing was due here, as loops are closed.
    """
    buckets = report['histogram_us']
    # As wrk's main() divides.
    each = report['requests'] // connections
    if each:
        interval = report['duration_us'] // each
        seen = {value: count for value, _, count in buckets}
        buckets = [[value, value, count - (
            seen.get(value + interval, 0) if value > interval else 0)]
                   for value, _, count in buckets]
    counts = [count for _, _, count in buckets]
    if min(counts, default=0) < 0 or sum(counts) > report['requests']:
        raise Failure('wrk adds other latencies than version 4.1 does')
    return [bucket for bucket in buckets if bucket[2]]


def find_wrk():
    program = shutil.which('wrk')
    return program or peers.all_peers()['wrk'].program()


def pinned(command, cpus):
    """The command, kept to some CPUs if `cpus` is not None."""
    if cpus is None:
        return command
    return ['taskset', '-c', ','.join(map(str, cpus))] + command


def read_report(path):
    try:
        with open(path, encoding='utf-8') as file:
            return json.load(file)
    except ValueError as error:
        raise Failure('%s: %s' % (os.path.basename(path), error)) from error


def apply_load(bench, clients, servers, counted=None):
    """One Sample of all `clients` together, run at the same time.

    CPU and memory are those of `servers` (objects with `pids`). `counted`: only
    the calls of these clients are in the figures; failures are everybody's.
    """
    warmup = max(client.warmup for client in clients)
    for client in clients:
        client.prepare(bench, warmup)
    with contextlib.ExitStack() as stack:
        begin = time.monotonic()
        running = [stack.enter_context(processes.started(
            client.command, bench.folder, environment=client.environment))
                   for client in clients]
        cpu_server, cpu_client = cpu_shares(clients[0], begin, servers, running)
        rss_server = processes.peak_rss_kb(all_pids(servers))
        rss_client = processes.peak_rss_kb(all_pids(running))
        for process, client in zip(running, clients):
            wait_for_end(process, client, GRACE_S)
    samples = {client: client.read() for client in clients}
    total = add_up([samples[client] for client in counted or clients])
    total.failures = sum(sample.failures for sample in samples.values())
    total.cpu_server, total.cpu_client = cpu_server, cpu_client
    total.rss_server_kb, total.rss_client_kb = rss_server, rss_client
    total.commands = ['server: ' + server.line() for server in servers]
    total.commands += ['client: ' + client.line() for client in clients]
    if total.qps == 0:
        raise Failure('no call succeeded: ' + running[0].tail())
    return total


def wait_for_end(process, client, patience):
    """Failure if it ends with a status that isn't among the client's."""
    status = process.wait(patience)
    if status not in client.statuses:
        raise Failure('`%s` ended with status %d:\n%s' % (
            process.line(), status, process.tail()))


def cpu_shares(client, begin, servers, running):
    """CPU seconds per second, of servers and clients.

    Measured over the middle 80% of the window, as the programs take a moment to
    start; the load is steady by then.
    """
    def look():
        return (time.monotonic(), processes.cpu_seconds(all_pids(servers)),
                processes.cpu_seconds(all_pids(running)))

    looks = []
    for share in (0.1, 0.9):
        moment = begin + client.warmup + share * client.seconds
        time.sleep(max(0.0, moment - time.monotonic()))
        looks.append(look())
    (start, server_start, client_start), (end, server_end, client_end) = looks
    if not all(process.running() for process in running):
        # Gone too early; its status and report tell why.
        return None, None
    return ((server_end - server_start) / (end - start),
            (client_end - client_start) / (end - start))


def all_pids(owners):
    return [pid for owner in owners for pid in owner.pids]


def add_up(samples):
    """The sum of simultaneous measurements."""
    total = Sample(
        qps=sum(sample.qps for sample in samples), failures=0,
        latencies=histogram.merged(sample.latencies for sample in samples),
        extra=dict(samples[0].extra))
    if len(samples) == 1:
        total.figures = samples[0].figures
    return total
