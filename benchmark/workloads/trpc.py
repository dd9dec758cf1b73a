"""The tables of tRPC's document: fiber mode beside merged mode."""

import statistics

from . import loads, servers
from .model import Pivot, Plot, Row, Workload

DOCUMENT = 'From tRPC-Cpp\'s benchmark.'
CONNECTIONS = 100
BODY_BYTES = 10
TARGET_P999_US = 10000
CALLBACKS = 'flare, callbacks'


def press(bench, address, pending, **flags):
    threads = len(bench.scale.cpus)
    return loads.Press(bench, 'trpc://' + address, threads,
                       connections=CONNECTIONS, pending=pending,
                       body_size=BODY_BYTES, **flags)


def unary_servers(bench, system, threads):
    """[server under test]; calls go to the first."""
    return [servers.SYSTEMS[system](bench, threads)]


def relay_servers(bench, system, threads):
    """[relay under test, echo server]."""
    behind = servers.flare(bench, threads)
    to = 'trpc://' + behind.address
    if system == 'merge':
        return [servers.merge(bench, threads, forward_to=to), behind]
    flags = {'callbacks': 'true'} if system == CALLBACKS else {}
    return [servers.relay(bench, threads, to, **flags), behind]


def find_load(start, stub):
    """A row's `prepare`: the calls under way at which p999 is about 10 ms.

    Doubles from 50 until p999 exceeds that, then halves the interval twice.
    The median of three counts: one call in a thousand is soon held up. It says
    nothing of calls that failed, so that any of these is too much.
    """
    def too_much(bench, pending):
        found = []
        for _ in range(3):
            try:
                sample = measure_at(bench, start, stub, pending)
            finally:
                bench.close()
            if sample.failures:
                return True
            found.append(sample.latency_figures()['p999_us'])
        return statistics.median(found) > TARGET_P999_US

    def prepare(bench):
        if bench.scale.grid == 'smoke':
            return CONNECTIONS
        good, bad = 50, None
        while bad is None and good < 12800:
            if too_much(bench, 2 * good):
                bad = 2 * good
            else:
                good *= 2
        for _ in range(2 if bad else 0):
            middle = round((good * bad) ** 0.5)
            if too_much(bench, middle):
                bad = middle
            else:
                good = middle
        return good
    return prepare


def measure_at(bench, start, stub, pending):
    tested = start(bench)
    sample = loads.apply_load(
        bench, [press(bench, tested[0].address, pending, **stub)], tested[:1])
    sample.commands = sample.commands[:1] + [
        'behind it: ' + server.line() for server in tested[1:]
    ] + sample.commands[1:]
    sample.extra['pending'] = pending
    return sample


def throughput_rows(systems, start_servers, stub):
    def rows(scale):
        made = []
        for threads in scale.worker_threads():
            for system in systems:
                def start(bench, system=system, threads=threads):
                    return start_servers(bench, system, threads)

                def measure(bench, pending, start=start):
                    return measure_at(bench, start, stub, pending)
                made.append(Row(system, threads, {}, measure,
                                find_load(start, stub)))
        return made
    return rows


THROUGHPUT_PIVOTS = tuple(
    Pivot(title, figure, 'threads') for title, figure in (
        ('QPS', 'qps'), ('Average latency', 'avg_us'), ('p90', 'p90_us'),
        ('p99', 'p99_us'), ('p999', 'p999_us'),
        ('Calls under way', 'pending')))
CDF = (Plot('cdf', 'cdf', 'latencies'),)

ABOUT_LOAD = (
    '100 connections, bodies of 10 bytes. The load (calls under way) is raised '
    'until p999 is about 10 ms or calls fail, for each system by itself, and '
    'then measured at that. `flare` is what tRPC calls fiber mode; `merge` its '
    'merged mode: reading, parsing, handler and writing in the connection\'s '
    'thread.')

TRPC_UNARY = Workload(
    'trpc-unary', 'throughput at a p999 of 10 ms', DOCUMENT, ABOUT_LOAD,
    throughput_rows(('flare', 'merge'), unary_servers, {}), THROUGHPUT_PIVOTS,
    CDF)

TRPC_RELAY = Workload(
    'trpc-relay', 'throughput of a relay at a p999 of 10 ms', DOCUMENT,
    'Client, relay, server. ' + ABOUT_LOAD + ' Our relay blocks its fiber '
    'during the call that it makes; by callbacks, and in `merge`, nothing waits '
    'for its reply. CPU and memory are the relay\'s.',
    throughput_rows(('flare', CALLBACKS, 'merge'), relay_servers,
                    {'relay_stub': 'true'}), THROUGHPUT_PIVOTS, CDF)


def longtail_row(system, threads, tail, qps):
    def measure(bench):
        server = servers.SYSTEMS[system](bench, threads)
        ordinary = press(bench, server.address, 1000, qps=qps)
        clients = [ordinary]
        if tail != 'none':
            slow = {} if tail == 'no_work' else {
                'tail_ratio': 1, 'tail_us': 5000, 'tail_work': tail}
            clients.append(press(bench, server.address, 1000, qps=qps / 100,
                                 **slow))
        return loads.apply_load(bench, clients, [server], counted=[ordinary])
    return Row(system, threads, {'tail': tail}, measure)


def longtail_rows(scale):
    qps = scale.pick(10000, 10000, 1000)
    made = []
    for threads in scale.worker_threads():
        for tail in scale.pick(
                ('none', 'no_work', 'sleep_thread', 'sleep_fiber', 'spin'),
                ('none', 'no_work', 'sleep_thread', 'sleep_fiber', 'spin'),
                ('none', 'sleep_thread')):
            made.append(longtail_row('flare', threads, tail, qps))
            if tail != 'sleep_fiber':
                made.append(longtail_row('merge', threads, tail, qps))
    return made


TRPC_LONGTAIL = Workload(
    'trpc-longtail', 'what 1% of slow calls does to the others', DOCUMENT,
    'A fixed 10,000 calls per second; a second client adds 100 that take 5 ms. '
    'Only the ordinary ones are counted, from the moment they were due. '
    '`tail`: how the server spends the 5 ms: blocking its thread, sleeping its '
    'fiber (which `merge` has none of), or computing; with `no_work` the '
    'second client\'s calls are like the others, which shows what a second '
    'client costs. Published are 8 threads '
    'on 8 CPUs; on fewer, each slow call takes a greater share of the server '
    'away, and those that compute take CPU from the client as well.',
    longtail_rows,
    tuple(Pivot(title, figure, 'tail') for title, figure in (
        ('Average latency', 'avg_us'), ('p99', 'p99_us'), ('p999', 'p999_us'))),
    (Plot('cdf', 'cdf', 'ordinary calls beside a tail of 1% x 5 ms'),))

ALL = (TRPC_UNARY, TRPC_RELAY, TRPC_LONGTAIL)
