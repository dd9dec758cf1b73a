"""The tables of flare's own document: echo, and beside gdt."""

from . import loads, servers
from .model import Pivot, Plot, Row, Workload

DOCUMENT = 'From flare\'s performance figures (echo server and press).'


def echo_load(bench, address, threads, server):
    """As published: a connection for each thread, ten calls on each."""
    return loads.apply_load(bench, [loads.Press(
        bench, address, threads, connections=threads, pending=10 * threads)],
                            [server])


def under_press(system, start, protocol, threads):
    """A row of the server that start(bench, threads) starts."""
    def measure(bench):
        server = start(bench, threads)
        return echo_load(bench, '%s://%s' % (protocol, server.address), threads,
                         server)
    return Row(system, threads, {}, measure)


def epoll_limit_row(protocol, threads):
    def measure(bench):
        server = servers.epoll_limit(bench, threads)
        client = loads.JsonClient(bench, [
            bench.programs.path(servers.EPOLL_LIMIT_CLIENT),
            '--server_addr=%s://%s' % (protocol, server.address),
            '--threads=%d' % threads, '--connections=%d' % threads,
            '--max_pending=%d' % (10 * threads)])
        return loads.apply_load(bench, [client], [server])
    return Row('epoll_limit', threads, {}, measure)


def grpc_row(threads):
    def measure(bench):
        server = servers.peer(bench, 'grpc', 'grpc', threads)
        client = loads.grpc_client(bench, server.address, connections=threads,
                                   max_pending=10 * threads)
        return loads.apply_load(bench, [client], [server])
    return Row('grpc', threads, {}, measure)


def echo_rows(protocol, with_grpc=False):
    def rows(scale):
        made = []
        for threads in scale.thread_counts():
            made += [under_press('flare', servers.flare, protocol, threads),
                     epoll_limit_row(protocol, threads),
                     under_press('epoll_limit, press', servers.epoll_limit,
                                 protocol, threads)]
            if with_grpc:
                made.append(grpc_row(threads))
        return made
    return rows


ECHO_PIVOTS = (
    Pivot('QPS', 'qps', 'threads', 'qps'),
    Pivot('Average latency', 'avg_us', 'threads', 'avg'),
    Pivot('p999', 'p999_us', 'threads', 'p999'),
    Pivot('CPU of the server', 'cpu_server', 'threads', 'cpu_server',
          ratio=False),
    Pivot('CPU of the client', 'cpu_client', 'threads', 'cpu_client',
          ratio=False),
)

THREAD_PLOTS = (
    Plot('qps', 'lines', 'QPS against threads', x='threads', figure='qps'),
    Plot('cdf', 'cdf', 'latencies'),
)

ECHO_FLARE = Workload(
    'echo-flare', 'echo over flare\'s own protocol', DOCUMENT,
    'Server and client with T threads each, T connections, ten calls under way '
    'on each: a closed loop of 10·T calls. `epoll_limit` is a bare loop per '
    'thread with the same frames but no protobuf and no dispatch, client and '
    'server: what the kernel allows. `epoll_limit, press` is that server with '
    'our client: so the servers are compared at equal batching.',
    echo_rows('flare', with_grpc=True), ECHO_PIVOTS, THREAD_PLOTS + (
        Plot('cost', 'lines', 'what a call costs the server', x='threads',
             figure='cost_us'),))

ECHO_HTTP = Workload(
    'echo-http', 'echo over HTTP with protobuf bodies', DOCUMENT,
    'As `echo-flare`, over `http+pb`.', echo_rows('http+pb'), ECHO_PIVOTS,
    THREAD_PLOTS)


def press_row(system, threads, server_of, load, parameters):
    """A row of `system`, started by server_of(bench), under press."""
    def measure(bench):
        server = server_of(bench)
        flags = dict(load)
        if system != 'flare':
            flags['gdt_stub'] = 'true'
        return loads.apply_load(bench, [loads.Press(
            bench, 'http+pb://' + server.address, **flags)], [server])
    return Row(system, threads, parameters, measure)


def echo_vs_gdt_rows(scale):
    greatest = max(scale.thread_counts())
    load = {'threads': greatest, 'connections': 40, 'pending': 400}
    made = []
    for threads in scale.thread_counts():
        for system in servers.systems_for(
                threads, ('flare', 'gdt', 'gdt-tp', 'epoll_limit')):
            made.append(press_row(
                system, threads,
                lambda bench, system=system, threads=threads:
                servers.SYSTEMS[system](bench, threads), load, {}))
    return made


GDT_PIVOTS = (
    Pivot('QPS', 'qps', 'threads', 'qps'),
    Pivot('Average latency', 'avg_us', 'threads', 'avg'),
    Pivot('p999', 'p999_us', 'threads', 'p999'),
)

ECHO_VS_GDT = Workload(
    'echo-vs-gdt', 'echo over HTTP, beside one loop per thread', DOCUMENT,
    'press with as many threads as the last column, 40 connections, 400 calls '
    'under way; the servers have the columns\' number of threads. `gdt`: an '
    'event loop per thread, handlers run inside it. `gdt-tp`: half the threads '
    'do IO, half are workers behind a shared queue, so there are at least two. '
    '`epoll_limit`: what the kernel allows a server, under press.',
    echo_vs_gdt_rows, GDT_PIVOTS, THREAD_PLOTS)


def jitter_threads(scale):
    """Sleeping threads need no CPU, so there may be more of them."""
    if scale.threads:
        return scale.threads
    cpus = len(scale.cpus)
    return scale.pick((cpus, 2 * cpus, 4 * cpus), (cpus, 4 * cpus), (cpus,))


def jitter_rows(scale):
    counts = jitter_threads(scale)
    work = {'work': 'sleep_thread', 'work_us': 50, 'work_dist': 'poisson'}
    # Published: half as many as the last column's.
    press_threads = max(1, scale.threads[-1] // 2) if scale.threads else len(
        scale.cpus)
    made = []
    for connections in sorted({counts[0], 10}) if scale.grid == 'full' else (
            counts[0],):
        load = {'threads': press_threads, 'connections': connections,
                'pending': 100 * connections}
        for threads in counts:
            for system in servers.systems_for(threads,
                                              ('flare', 'gdt', 'gdt-tp')):
                flags = dict(work)
                if system == 'gdt-tp':
                    flags['io_share'] = 0.2
                made.append(press_row(
                    system, threads,
                    lambda bench, system=system, threads=threads, flags=flags:
                    servers.SYSTEMS[system](bench, threads, **flags), load,
                    {'connections': connections}))
    return made


JITTER_VS_GDT = Workload(
    'jitter-vs-gdt', 'handlers that block their thread', DOCUMENT,
    'Each handler sleeps its *thread* for min(Poisson(50), 1000) us. 100 calls '
    'are under way on each connection. Published with 10 connections, which is '
    'the least number of threads; so here, where there are fewer threads, '
    'there is a second set of rows with as many connections as the first '
    'column has threads. `gdt` works on a connection in one thread only, so '
    'more threads than connections don\'t help it. `gdt-tp` has IO threads '
    'and workers at 2:8. Threads sleep most of the time, so there can be more '
    'than CPUs.', jitter_rows, GDT_PIVOTS, (
        Plot('qps', 'lines', 'QPS against threads', x='threads', figure='qps'),
        Plot('p999', 'lines', 'p999 against threads', x='threads',
             figure='p999_us', log_y=True),
        Plot('cdf', 'cdf', 'latencies with most threads',
             greatest='threads')))

ALL = (ECHO_FLARE, ECHO_HTTP, ECHO_VS_GDT, JITTER_VS_GDT)
