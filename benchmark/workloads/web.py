"""The graphs of Workflow's document: plain HTTP."""

from . import loads, servers
from .model import Pivot, Plot, Row, Workload

DOCUMENT = 'From C++ Workflow\'s benchmark of HTTP servers.'
REFERENCES = ('epoll_limit',) + servers.peers_with('http')
CONCURRENCIES = tuple(1 << i for i in range(12))
SIZES = tuple(1 << i for i in range(4, 17))


def http_server(bench, system, threads, body_size):
    if system == 'flare':
        return servers.http(bench, threads, body_size)
    if system == 'epoll_limit':
        return servers.epoll_limit(bench, threads, body_size=body_size)
    return servers.peer(bench, system, 'http', body_size, threads=threads)


def http_load(bench, address, connections):
    """wrk; in smoke runs, which need not be comparable, press."""
    threads = len(bench.scale.cpus)
    if bench.scale.grid != 'smoke':
        return loads.Wrk(bench, address, threads, connections)
    return loads.Press(bench, 'http://%s/' % address, threads,
                       pending=connections)


def size_row(system, threads, body_size, concurrency):
    def measure(bench):
        server = http_server(bench, system, threads, body_size)
        sample = loads.apply_load(
            bench, [http_load(bench, server.address, concurrency)], [server])
        sample.extra['mb_per_s'] = sample.qps * body_size / 1e6
        return sample
    return Row(system, threads,
               {'body_size': body_size, 'concurrency': concurrency}, measure)


def size_grid(scale):
    """(body size, concurrency): the published graphs' curves; or just some."""
    if scale.grid == 'full':
        cells = {(size, concurrency) for size in SIZES
                 for concurrency in (64, 1024)}
        cells |= {(size, concurrency) for size in (64, 4096)
                  for concurrency in CONCURRENCIES}
        return sorted(cells)
    return scale.pick(
        None, [(64, 1), (64, 64), (64, 1024), (4096, 64), (65536, 64)],
        [(64, 16), (65536, 4)])


def size_rows(scale):
    systems = scale.pick(('flare',) + REFERENCES,
                         ('flare', 'epoll_limit', 'nginx'),
                         ('flare', 'epoll_limit'))
    return [size_row(system, threads, size, concurrency)
            for threads in scale.worker_threads()
            for size, concurrency in size_grid(scale) for system in systems]


def at(**wanted):
    """A filter of rows by parameters: at(body_size=(64, 512))."""
    return lambda row: all(row['parameters'].get(name) in values
                           for name, values in wanted.items())


HTTP_SIZE = Workload(
    'http-size', 'a fixed body over plain HTTP', DOCUMENT,
    'A server that answers every request with the same body, loaded by wrk '
    'with as many threads as there are CPUs, or the next fewer that share the '
    'connections evenly: by number of connections (doubling from 1 to 2048) '
    'for 64 and 4096 bytes, and by size (doubling from 16 B to 64 KiB) for 64 '
    'and 1024 connections. '
    'Server and client share the CPUs here.',
    size_rows, (
        Pivot('QPS, 64 bytes', 'qps', 'concurrency', where=at(body_size=(64,))),
        Pivot('QPS, 4096 bytes', 'qps', 'concurrency',
              where=at(body_size=(4096,))),
        Pivot('QPS, 64 connections', 'qps', 'body_size',
              where=at(concurrency=(64,))),
        Pivot('p99, 64 bytes', 'p99_us', 'concurrency',
              where=at(body_size=(64,))),
    ), (
        Plot('concurrency-qps', 'lines', 'QPS against connections',
             x='concurrency', figure='qps',
             where=at(body_size=(64, 4096))),
        Plot('size-qps', 'lines', 'QPS against size', x='body_size',
             figure='qps', where=at(concurrency=(64, 1024))),
        Plot('concurrency-latency', 'lines', 'average latency, 64 B and 4 KiB',
             x='concurrency', figure='avg_us', log_y=True,
             where=at(body_size=(64, 4096))),
        Plot('size-latency', 'lines', 'average latency against size',
             x='body_size', figure='avg_us', log_y=True,
             where=at(concurrency=(64, 1024))),
        Plot('cost', 'lines', 'server CPU per request, 64 connections',
             x='body_size', figure='cost_us', where=at(concurrency=(64,))),
    ))

PUBLISHED_RATES = (('low', 20000), ('middle', 100000), ('high', 200000))
TAIL_PATHS = {'sleep_fiber': '/long_req/', 'sleep_thread': '/long_req/block',
              'spin': '/long_req/spin'}
# Tails that peers have, too.
PEERS_TAILS = ('none', 'sleep_fiber')


def slow_server(bench, system, threads):
    if system == 'flare':
        return servers.http(bench, threads, body_size=1024, long_req_us=5000)
    return servers.peer(bench, system, 'http', 1024, threads=threads,
                        delay_ms=5)


def slow_row(system, threads, rate, qps, tail, connections):
    def measure(bench):
        server = slow_server(bench, system, threads)
        client_threads = len(bench.scale.cpus)
        ordinary = loads.Press(bench, 'http://%s/' % server.address,
                               client_threads, pending=connections, qps=qps)
        clients = [ordinary]
        if tail != 'none':
            clients.append(loads.Press(
                bench, 'http://' + server.address + TAIL_PATHS[tail],
                1, pending=64, qps=qps / 100))
        return loads.apply_load(bench, clients, [server], counted=[ordinary])
    return Row(system, threads, {'rate': rate, 'qps': qps, 'tail': tail},
               measure)


def slow_rows(scale):
    # Published for 40 CPUs of the server and as many of the client.
    share = min(1.0, len(scale.cpus) / 20)
    rates = scale.pick(PUBLISHED_RATES, PUBLISHED_RATES[:2],
                       (('low', 10000),))
    tails = scale.pick(('none', 'sleep_fiber', 'sleep_thread', 'spin'),
                       ('none', 'sleep_fiber', 'sleep_thread', 'spin'),
                       ('none', 'sleep_fiber'))
    references = scale.pick(servers.peers_with('http'), ('nginx',), ())
    connections = scale.pick(1024, 1024, 64)
    return [slow_row(system, threads, name, round(qps * share), tail,
                     connections)
            for threads in scale.worker_threads()
            for name, qps in rates for tail in tails
            for system in ('flare',) + (references if tail in PEERS_TAILS
                                        else ())]


HTTP_SLOW = Workload(
    'http-slow', 'plain HTTP with 1% of slow requests', DOCUMENT,
    '1024 connections, bodies of 1024 bytes, fixed rates: the published 20K, '
    '100K and 200K requests per second, but with fewer than 20 CPUs a '
    'twentieth of that for each. Another client adds 1% of requests that take '
    '5 ms, which are not counted: asynchronously (`sleep_fiber`, the published '
    'case, and the only one of peers), blocking their thread, or computing. '
    'Latencies count from when a request was due.',
    slow_rows, (
        Pivot('Average latency', 'avg_us', 'tail'),
        Pivot('p99', 'p99_us', 'tail'), Pivot('p999', 'p999_us', 'tail'),
    ), tuple(
        Plot('cdf-' + name, 'cdf', 'ordinary requests at the %s rate' % name,
             where=at(rate=(name,))) for name, _ in PUBLISHED_RATES))

ALL = (HTTP_SIZE, HTTP_SLOW)
