"""Beside gRPC C++, over gRPC: both servers with both clients."""

from . import loads, servers
from .model import Pivot, Plot, Row, Workload

DOCUMENT = 'A table of this project.'
CONNECTIONS = 2


def start_flare(bench, threads):
    return servers.flare(bench, threads)


def start_grpc(bench, threads):
    return servers.peer(bench, 'grpc', 'grpc', threads)


def press(bench, server, threads, pending):
    return loads.Press(bench, 'grpc://' + server.address, threads,
                       connections=CONNECTIONS, pending=pending)


def grpc_client(bench, server, threads, pending):
    del threads  # It takes as many as there are CPUs.
    return loads.grpc_client(bench, server.address, connections=CONNECTIONS,
                             max_pending=pending)


# (system, server, client, is a part of it gRPC's?)
PAIRS = (('flare', start_flare, press, False),
         ('grpc', start_grpc, grpc_client, True),
         ('flare, grpc client', start_flare, grpc_client, True),
         ('grpc, press', start_grpc, press, True))


def unary_row(pair, threads, pending):
    system, start, client, of_grpc = pair

    def measure(bench):
        server = start(bench, threads)
        return loads.apply_load(
            bench, [client(bench, server, threads, pending)], [server])
    return Row(system, threads, {'pending': pending}, measure,
               peer='grpc' if of_grpc else '')


def unary_rows(scale):
    threads = scale.worker_threads()[0]
    return [unary_row(pair, threads, pending)
            for pending in scale.pick((20, 200), (20, 200), (20,))
            for pair in PAIRS]


GRPC_ECHO = Workload(
    'grpc-echo', 'echo over gRPC', DOCUMENT,
    'Unary calls with empty bodies over `grpc`, 20 and 200 under way on two '
    'connections. `grpc` is gRPC C++\'s callback interface, both sides; '
    '`flare, grpc client` is our server under that client, and `grpc, press` '
    'its server under ours.',
    unary_rows, (
        Pivot('QPS', 'qps', 'pending'),
        Pivot('p50', 'p50_us', 'pending'),
        Pivot('p99', 'p99_us', 'pending'),
        Pivot('p999', 'p999_us', 'pending'),
        Pivot('CPU of the server for a call, us', 'cost_us', 'pending'),
    ), (Plot('qps', 'lines', 'QPS against calls under way', x='pending',
             figure='qps'),
        Plot('cdf', 'cdf', 'latencies with most calls', greatest='pending')))

ALL = (GRPC_ECHO,)
