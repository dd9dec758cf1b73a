"""The tables of MOSN's document: TCP proxies on one core."""

from . import loads, servers
from .model import Pivot, Plot, Row, Workload

DOCUMENT = 'From SOFAMosn\'s performance report.'
UPSTREAMS = 4
BODY_BYTES = 1024
NO_SPIN = 'flare, no spin'
SYSTEMS = ('flare', NO_SPIN, 'epoll_limit') + servers.peers_with('tcp')
SMOKE_SYSTEMS = ('flare', 'epoll_limit')


def split_cpus(bench):
    """The proxy's CPU, and the others'; None, None if there is only one."""
    cpus = bench.scale.cpus
    if len(cpus) < 2:
        return None, None
    return cpus[:1], cpus[1:]


def start_proxy(bench, system, upstreams, cpus):
    addresses = [server.address for server in upstreams]
    cpus = cpus or bench.scale.cpus[:1]
    if system == 'flare':
        return servers.tcp_proxy(bench, addresses, cpus)
    if system == NO_SPIN:
        return servers.tcp_proxy(bench, addresses, cpus, flare_io_spin_us=0)
    if system == 'epoll_limit':
        return servers.epoll_limit_proxy(bench, addresses, cpus,
                                         flare_io_spin_us=0)
    return servers.peer(bench, system, 'tcp', addresses, threads=len(cpus),
                        cpus=cpus)


def through(bench, system, start_upstream, load):
    """A Sample of `load(address list, CPUs)` through the system's proxy.

    "direct" is no proxy at all: the upstreams' CPU is accounted instead.
    """
    core, others = split_cpus(bench)
    upstreams = [start_upstream(bench, others) for _ in range(UPSTREAMS)]
    if system == 'direct':
        return loads.apply_load(
            bench, [load([server.address for server in upstreams], others)],
            upstreams)
    proxy = start_proxy(bench, system, upstreams, core)
    sample = loads.apply_load(bench, [load([proxy.address], others)], [proxy])
    sample.commands = sample.commands[:1] + [
        'upstream: ' + server.line() for server in upstreams
    ] + sample.commands[1:]
    return sample


def bolt_row(system, connections, pending):
    def measure(bench):
        def load(addresses, cpus):
            return loads.Press(
                bench, 'bolt://' + ','.join(addresses), 1,
                connections=connections, pending=pending, cpus=cpus,
                body_size=BODY_BYTES, override_nslb='list+rr')
        return through(bench, system,
                       lambda bench, cpus: servers.flare(bench, 1, cpus), load)
    return Row(system, 1, {'pending': pending}, measure)


def bolt_rows(scale):
    made = []
    for pending in scale.pick((64, 256, 1024), (256,), (64,)):
        for system in scale.pick(SYSTEMS + ('direct',), SYSTEMS + ('direct',),
                                 SMOKE_SYSTEMS):
            # Without a proxy there are as many connections to each upstream.
            made.append(bolt_row(system, 16 if system != 'direct' else 4,
                                 pending))
    return made


PROXY_FIGURES = (
    ('QPS', 'qps', 'qps'),
    ('QPS per fully used proxy core', 'qps_per_core', ''),
    ('Average latency', 'avg_us', 'avg'), ('p99', 'p99_us', 'p99'),
    ('CPU of the proxy', 'cpu_server', 'cpu_server'),
    ('Memory of the proxy', 'rss_server_kb', 'rss'),
)


def proxy_pivots(column):
    def proxies(row):
        return row['system'] != 'direct'
    return tuple(Pivot(title, figure, column, table,
                       where=None if figure in ('qps', 'avg_us', 'p99_us')
                       else proxies)
                 for title, figure, table in PROXY_FIGURES)


ABOUT = (
    'The proxy is pinned to one CPU; four upstreams and the client share the '
    'others, which are saturated before a good proxy is: so what counts is QPS '
    'per fully used proxy core, QPS through the CPU share that the proxy took. '
    '`direct` is the same load without a proxy; its CPU is the upstreams\'. '
    'While it has nothing to do `flare` looks for IO before it sleeps, which '
    'counts as CPU; `flare, no spin` is the same proxy with '
    '`--flare_io_spin_us=0`. `epoll_limit` is a bare loop that reads and sends, '
    'and doesn\'t look either: what the kernel allows. ')

PROXY_BOLT = Workload(
    'proxy-bolt', 'Bolt through a TCP proxy', DOCUMENT,
    ABOUT + 'Bolt requests with a string of 1 KiB, multiplexed on 16 '
    'connections; it comes back in the reply.',
    bolt_rows, proxy_pivots('pending'), (
        Plot('qps', 'lines', 'QPS against calls under way', x='pending',
             figure='qps'),
        Plot('per-core', 'lines', 'QPS per fully used proxy core', x='pending',
             figure='qps_per_core',
             where=lambda row: row['system'] != 'direct'),
        Plot('cdf', 'cdf', 'latencies, 256 calls under way',
             where=lambda row: row['parameters']['pending'] == 256),
    ))


def http_row(system, concurrency):
    def measure(bench):
        def load(addresses, cpus):
            if bench.scale.grid == 'smoke':
                return loads.Press(
                    bench, 'http://%s/' % addresses[0], 1, pending=concurrency,
                    cpus=cpus, body_size=BODY_BYTES)
            return loads.Wrk(bench, addresses[0], 1, concurrency, cpus=cpus,
                             post_bytes=BODY_BYTES)

        def upstream(bench, cpus):
            return servers.http(bench, 1, BODY_BYTES, cpus)
        return through(bench, system, upstream, load)
    return Row(system, 1, {'concurrency': concurrency}, measure)


def http_rows(scale):
    return [http_row(system, concurrency)
            for concurrency in scale.pick((20, 40, 200, 220), (40, 200), (20,))
            for system in scale.pick(SYSTEMS + ('direct',),
                                     SYSTEMS + ('direct',), SMOKE_SYSTEMS)]


PROXY_HTTP = Workload(
    'proxy-http', 'HTTP/1.1 through a TCP proxy', DOCUMENT,
    ABOUT + 'Requests over connections that are kept open, with a body of 1 '
    'KiB, answered with one of 1 KiB; loaded by wrk (published: by ab, which '
    'can\'t load proxies fully). `direct` is one of the upstreams.',
    http_rows, proxy_pivots('concurrency'), (
        Plot('qps', 'lines', 'QPS against connections', x='concurrency',
             figure='qps', log_x=False),
        Plot('per-core', 'lines', 'QPS per fully used proxy core',
             x='concurrency', figure='qps_per_core', log_x=False,
             where=lambda row: row['system'] != 'direct'),
        Plot('cdf', 'cdf', 'latencies, 200 connections',
             where=lambda row: row['parameters']['concurrency'] == 200),
    ))

ALL = (PROXY_BOLT, PROXY_HTTP)
