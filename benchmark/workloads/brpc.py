"""The graphs of brpc's document: synchronous callers, tails, many clients."""

from . import loads, servers
from .model import Pivot, Plot, Row, Workload

DOCUMENT = 'From brpc\'s benchmark (of 2015, graphs only).'

# How the server spends the time of a call of the tail.
TAILS = ('none', 'sleep_thread', 'sleep_fiber', 'spin')
# The servers of other threading models have no fibers to sleep.
BASELINE_TAILS = ('none', 'sleep_thread', 'spin')


def tail_flags(tail, length_us):
    if tail == 'none':
        return {}
    return {'tail_ratio': 0.01, 'tail_us': length_us, 'tail_work': tail}


def caller_row(system, protocol, threads, parameters):
    """`parameters`: callers, caller_kind, connections, maybe body_size and
    carried: whether that is of the message's body or of an attachment to an
    empty one.
    """
    def measure(bench):
        size = parameters.get('body_size', 16)
        attached = parameters.get('carried') == 'attachment'
        if system == 'grpc':
            single = parameters['connections'] == 'single'
            server = servers.peer(bench, 'grpc', 'grpc', threads)
            client = loads.grpc_client(
                bench, server.address, max_pending=parameters['callers'],
                connections=1 if single else parameters['callers'],
                body_size=size)
        else:
            server = servers.SYSTEMS[system](bench, threads)
            client = loads.Press(
                bench, '%s://%s' % (protocol, server.address),
                len(bench.scale.cpus), callers=parameters['callers'],
                caller_kind=parameters['caller_kind'],
                body_size=0 if attached else size,
                attachment_size=size if attached else 0,
                connection_kind=parameters['connections'])
        sample = loads.apply_load(bench, [client], [server])
        sample.extra['mb_per_s'] = sample.qps * size / 1e6
        return sample
    shown = dict(parameters)
    if system != 'grpc':
        shown = {'protocol': protocol, **shown}
    return Row(system, threads, shown, measure)


# From this size on one would take an attachment.
LARGE = 4096


def size_rows(scale):
    sizes = scale.pick(
        (16, 128, 1024, 4096, 16384, 32768, 65536, 262144), (16, 1024, 32768),
        (16, 32768))
    made = []
    for threads in scale.worker_threads():
        for size in sizes:
            for connections in ('single', 'pooled'):
                parameters = {'callers': 16, 'caller_kind': 'fiber',
                              'connections': connections, 'body_size': size,
                              'carried': 'body'}
                for system in ('flare', 'epoll_limit') if size >= LARGE else ():
                    made.append(caller_row(
                        system, 'flare', threads,
                        {**parameters, 'carried': 'attachment'}))
                made.append(caller_row('epoll_limit', 'flare', threads,
                                       parameters))
                for protocol in scale.pick(('flare', 'baidu-std'),
                                           ('flare', 'baidu-std'), ('flare',)):
                    made.append(caller_row('flare', protocol, threads,
                                           parameters))
                if scale.grid == 'full':
                    made.append(caller_row(
                        'flare', 'flare', threads,
                        {**parameters, 'caller_kind': 'thread'}))
                if scale.grid != 'smoke':
                    made.append(caller_row(
                        'grpc', None, threads,
                        {**parameters, 'caller_kind': 'asynchronous'}))
    return made


def plain(row):
    """Ours as brpc's clients are, or gRPC's."""
    return (row['system'] != 'epoll_limit' and
            row['parameters'].get('protocol', 'flare') == 'flare' and
            row['parameters']['carried'] == 'body')


def fibers(row):
    """Ours with fibers that call, and the limit of those."""
    return (row['parameters'].get('protocol') == 'flare' and
            row['parameters']['caller_kind'] == 'fiber')


BRPC_SIZE = Workload(
    'brpc-size', 'one client, one server, by size', DOCUMENT,
    '16 synchronous callers, each a fiber, or a plain thread as in the '
    'published test, over one connection (`single`; where the client has '
    'several scheduling groups, one of each) or one for each call under way '
    '(`pooled`). Our server and client speak `flare` and `baidu-std`, '
    'which is brpc\'s own protocol. MB/s counts the bodies in one direction; '
    'they come back as well. `attachment`: the bytes are attached to an empty '
    'message, so protobuf neither copies nor checks them. `epoll_limit` is a '
    'bare loop under our client: what the kernel and that client allow. The '
    'callers of gRPC are its asynchronous ones.',
    size_rows, (
        Pivot('QPS', 'qps', 'body_size', where=plain, ratio=False),
        Pivot('Throughput', 'mb_per_s', 'body_size'),
        Pivot('p99', 'p99_us', 'body_size', where=plain, ratio=False),
    ), (
        Plot('qps', 'lines', 'QPS against size', x='body_size', figure='qps',
             where=plain),
        Plot('bytes', 'lines', 'throughput against size', x='body_size',
             figure='mb_per_s', where=fibers),
        Plot('cost', 'lines', 'server CPU per call against size',
             x='body_size', figure='cost_us', log_y=True, where=plain),
    ))


def threads_rows(scale):
    counts = scale.pick((1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 8, 64, 256),
                        (1, 16))
    made = []
    for threads in scale.worker_threads():
        for callers in counts:
            for connections in ('single', 'pooled'):
                for kind in ('thread', 'fiber'):
                    made.append(caller_row(
                        'flare', 'flare', threads,
                        {'callers': callers, 'caller_kind': kind,
                         'connections': connections}))
            if scale.grid != 'smoke':
                made.append(caller_row(
                    'grpc', None, threads,
                    {'callers': callers, 'caller_kind': 'asynchronous',
                     'connections': 'single'}))
    return made


BRPC_THREADS = Workload(
    'brpc-threads', 'QPS by the number of synchronous callers', DOCUMENT,
    'Callers that make one call after another, plain threads as published, or '
    'fibers; bodies of 16 bytes.',
    threads_rows, (
        Pivot('QPS', 'qps', 'callers', ratio=False),
        Pivot('p99', 'p99_us', 'callers', ratio=False),
    ), (
        Plot('qps', 'lines', 'QPS against callers', x='callers', figure='qps'),
        Plot('cost', 'lines', 'server CPU per call against callers',
             x='callers', figure='cost_us'),
    ))


def longtail_row(system, threads, tail, qps, tail_us):
    def measure(bench):
        server = servers.SYSTEMS[system](bench, threads)
        client = loads.Press(
            bench, 'flare://' + server.address, len(bench.scale.cpus),
            connections=2 * len(bench.scale.cpus), pending=1000, qps=qps,
            body_size=16, **tail_flags(tail, tail_us))
        return loads.apply_load(bench, [client], [server])
    return Row(system, threads, {'tail': tail}, measure)


def longtail_rows(scale):
    qps = scale.pick(10000, 10000, 1000)
    return [longtail_row(system, threads, tail, qps, 5000)
            for threads in scale.worker_threads()
            for tail in scale.pick(TAILS, TAILS, TAILS[:2])
            for system in servers.systems_for(threads, scale.pick(
                ('flare', 'gdt', 'gdt-tp'), ('flare', 'gdt', 'gdt-tp'),
                ('flare', 'gdt')))
            if system == 'flare' or tail in BASELINE_TAILS]


TAIL_PIVOTS = tuple(
    Pivot(title, figure, 'tail') for title, figure in (
        ('Average latency', 'avg_us'), ('p90', 'p90_us'), ('p99', 'p99_us'),
        ('p999', 'p999_us')))

BRPC_LONGTAIL = Workload(
    'brpc-longtail', 'latencies beside 1% of slow calls', DOCUMENT,
    'A fixed 10,000 calls per second by one client over two connections per '
    'CPU; 1% of them take 5 ms and are not counted. `tail`: how the server '
    'spends these: blocking its thread, sleeping its fiber, or computing. '
    'Latencies count from when a call was due.',
    longtail_rows, TAIL_PIVOTS, (Plot('cdf', 'cdf', 'ordinary calls'),))


def many_clients_row(system, threads, clients):
    def measure(bench):
        server = servers.SYSTEMS[system](bench, threads)
        presses = [loads.Press(
            bench, 'flare://' + server.address, 1, callers=4, body_size=16,
            connections=1) for _ in range(clients)]
        return loads.apply_load(bench, presses, [server])
    return Row(system, threads, {'clients': clients}, measure)


def rate_row(system, threads, clients, qps, tail):
    """`clients` processes with `qps` calls per second each."""
    def measure(bench):
        server = servers.SYSTEMS[system](bench, threads)
        presses = [loads.Press(
            bench, 'flare://' + server.address, 1, connections=1, pending=200,
            qps=qps, body_size=16, **tail_flags(tail, 15000))
                   for _ in range(clients)]
        return loads.apply_load(bench, presses, [server])
    return Row(system, threads,
               {'processes': clients, 'qps_each': qps, 'tail': tail}, measure)


def many_clients_rows(scale):
    many = (32,) if len(scale.cpus) >= 32 else ()
    counts = scale.pick((1, 2, 4, 8, 16) + many, (1, 4, 16), (1, 4))
    made = []
    for threads in scale.worker_threads():
        systems = servers.systems_for(threads, scale.pick(
            ('flare', 'gdt', 'gdt-tp'), ('flare', 'gdt'), ('flare',)))
        made += [many_clients_row(system, threads, count)
                 for count in counts for system in systems]
        made += [rate_row(system, threads, scale.pick(8, 8, 2),
                          scale.pick(625, 625, 300), tail)
                 for tail in scale.pick(TAILS, TAILS, TAILS[:2])
                 for system in systems
                 if system == 'flare' or tail in BASELINE_TAILS]
    return made


def closed(row):
    return 'clients' in row['parameters']


def at_rate(row):
    return 'tail' in row['parameters']


BRPC_MANY_CLIENTS = Workload(
    'brpc-many-clients', 'many client processes', DOCUMENT,
    'N processes, each with one thread, one connection and four synchronous '
    'callers. Then eight processes at a fixed 625 calls per second each, with '
    '1% that take 15 ms and are not counted. Published are up to 32 client '
    'machines, and 2500 calls per second of each.',
    many_clients_rows, (
        Pivot('QPS', 'qps', 'clients', where=closed),
        Pivot('p99 at a fixed rate', 'p99_us', 'tail', where=at_rate),
        Pivot('p999 at a fixed rate', 'p999_us', 'tail', where=at_rate),
    ), (
        Plot('qps', 'lines', 'QPS against clients', x='clients', figure='qps',
             where=closed),
        Plot('cost', 'lines', 'server CPU per call against clients',
             x='clients', figure='cost_us', where=closed),
        Plot('cdf', 'cdf', 'ordinary calls at a fixed rate', where=at_rate),
    ))


def fleet_press(bench, addresses, clients, qps, tail, **flags):
    """Clients that share their calls out between servers, by round robin."""
    return [loads.Press(
        bench, 'flare://' + ','.join(addresses), 1, connections=1, pending=200,
        qps=qps, body_size=16, override_nslb='list+rr',
        **flags, **tail_flags(tail, 10000)) for _ in range(clients)]


def fanout_row(system, tail, clients, behind, qps):
    def measure(bench):
        fleet = [servers.SYSTEMS[system](bench, 2) for _ in range(behind)]
        return loads.apply_load(
            bench, fleet_press(bench, [server.address for server in fleet],
                               clients, qps, tail), fleet)
    return Row(system, 2, {'clients': clients, 'servers': behind, 'tail': tail},
               measure)


def fleet_rows(row_of, systems):
    def rows(scale):
        clients, behind = scale.pick((4, systems[0][1]), (4, systems[0][1]),
                                     (2, 2))
        return [row_of(system, tail, clients, behind, scale.pick(625, 625, 300))
                for tail in scale.pick(TAILS, TAILS, TAILS[:2])
                for system, _ in systems
                if system == 'flare' or tail in BASELINE_TAILS]
    return rows


BRPC_FANOUT = Workload(
    'brpc-fanout', 'clients to ten servers', DOCUMENT,
    'Four client processes, each with 625 calls per second that go to ten '
    'servers (two threads each) by round robin; 1% take 10 ms and are not '
    'counted. CPU and memory are those of all servers together.',
    fleet_rows(fanout_row, (('flare', 10), ('gdt', 10))), TAIL_PIVOTS,
    (Plot('cdf', 'cdf', 'ordinary calls'),))


def cascade_row(system, tail, clients, behind, qps):
    def measure(bench):
        last = [servers.flare(bench, 2) for _ in range(behind)]
        if system == 'flare':
            everyone = 'flare://' + ','.join(server.address for server in last)
            middle = [servers.relay(bench, 2, everyone) for _ in last]
        else:
            middle = [servers.merge(bench, 2,
                                    forward_to='flare://' + server.address)
                      for server in last]
        sample = loads.apply_load(
            bench, fleet_press(bench, [server.address for server in middle],
                               clients, qps, tail, relay_stub='true'), middle)
        sample.commands += ['behind: ' + server.line() for server in last]
        return sample
    return Row(system, 2, {'clients': clients, 'servers': behind, 'tail': tail},
               measure)


BRPC_CASCADE = Workload(
    'brpc-cascade', 'clients to servers to servers', DOCUMENT,
    'Four client processes, each with 625 calls per second, call eight relays '
    'by round robin, which call eight echo servers; 1% take 10 ms there and '
    'are not counted. CPU and memory are those of the relays. With `merge`, '
    'whose relays are asynchronous, each relay has its own server.',
    fleet_rows(cascade_row, (('flare', 8), ('merge', 8))), TAIL_PIVOTS,
    (Plot('cdf', 'cdf', 'ordinary calls'),))

ALL = (BRPC_SIZE, BRPC_THREADS, BRPC_LONGTAIL, BRPC_MANY_CLIENTS, BRPC_FANOUT,
       BRPC_CASCADE)
