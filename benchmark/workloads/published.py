"""The published figures, as far as there are any in numbers.

TABLES[workload][table]: the documents' figures, in the units of our own figures
(microseconds; CPU in cores). NOTES[workload]: their words and curves.
"""

import dataclasses
import typing


@dataclasses.dataclass(frozen=True)
class Table:
    """`rows` has a value for each column, by line; None where nothing is said.

    `columns_are` names what the columns stand for.
    """
    columns_are: str
    columns: typing.Tuple
    rows: dict


def _threads(rows):
    return Table('threads', (10, 20, 30, 40), rows)


_ECHO_FLARE = {
    'qps': _threads({'flare': (650e3, 1.35e6, 1.75e6, 1.9e6)}),
    'avg': _threads({'flare': (147, 145, 165, 200)}),
    'p999': _threads({'flare': (300, 550, 500, 3000)}),
    'cpu_server': _threads({'flare': (8.7, 18, 26, 31)}),
    'cpu_client': _threads({'flare': (9.2, 18.5, 27, 32)}),
}

_ECHO_HTTP = {
    'qps': _threads({'flare': (550e3, 1e6, 1.45e6, 1.5e6)}),
    'avg': _threads({'flare': (170, 180, 200, 270)}),
    'p999': _threads({'flare': (310, 500, 1000, 4000)}),
    'cpu_server': _threads({'flare': (9, 18, 28, 33)}),
    'cpu_client': _threads({'flare': (9.3, 18.6, 28, 34)}),
}

_ECHO_VS_GDT = {
    'qps': _threads({'flare': (570e3, 980e3, 1.2e6, 1.25e6),
                     'gdt': (600e3, 980e3, 1.08e6, 1.1e6),
                     'gdt-tp': (450e3, 700e3, 850e3, 840e3)}),
    'avg': _threads({'flare': (690, 400, 330, 330),
                     'gdt': (680, 400, 300, 300),
                     'gdt-tp': (850, 600, 500, 500)}),
    'p999': _threads({'flare': (1200, 1200, 2500, 5000),
                      'gdt': (8000, 6000, 3000, 5000),
                      'gdt-tp': (8000, 8000, 8000, 8000)}),
}

_JITTER = {
    'qps': _threads({'flare': (75e3, 146e3, 185e3, 245e3),
                     'gdt': (77e3, 77e3, 77e3, 77e3),
                     'gdt-tp': (66e3, 130e3, 190e3, 258e3)}),
    'avg': _threads({'flare': (13e3, 6700, 5400, 4100),
                     'gdt': (13e3, 13e3, 13e3, 13e3),
                     'gdt-tp': (14e3, 7600, 5200, 3800)}),
    'p999': _threads({'flare': (20e3, 16e3, 17e3, 9e3),
                      'gdt': (46e3, 47e3, 48e3, 45e3),
                      'gdt-tp': (90e3, 60e3, 70e3, 38e3)}),
}


def _figures(rows):
    return Table('8 threads', ('QPS', 'avg us', 'p90 us', 'p99 us', 'p999 us'),
                 rows)


_TRPC_UNARY = {
    'figures': _figures({'fiber mode': (508e3, 3360, 4690, 8360, 13470),
                         'merge': (578e3, 1460, 3000, 9720, 17720)}),
}

_TRPC_RELAY = {
    'figures': _figures({'fiber mode': (207e3, 3570, 4950, 6330, 7670),
                         'merge': (207e3, 2120, 5690, 9180, 11710)}),
}

_TRPC_LONGTAIL = {
    'figures': Table(
        '8 threads', ('avg us', 'p99 us', 'p999 us'),
        {'fiber mode, no tail': (400, 1310, 1970),
         'fiber mode, 1% of 5 ms': (470, 1820, 3410),
         'fiber mode, with / without': (1.175, 1.389, 1.73),
         'merge, no tail': (390, 1230, 1920),
         'merge, 1% of 5 ms': (620, 5860, 7800),
         'merge, with / without': (1.59, 4.764, 4.06)}),
}

_PROXY_BOLT = {
    'figures': Table('one core', ('QPS', 'avg us', 'RSS MB', 'CPU %'),
                     {'mosn 0.1': (103500, 16230, 31, 100),
                      'envoy 1.7': (104000, 15880, 18, 100)}),
}


def _concurrency(rows):
    return Table('concurrency', (20, 40, 200, 220), rows)


_PROXY_HTTP = {
    'qps': _concurrency({'mosn': (5600, 11150, 29670, 30367),
                         'envoy': (5600, 11200, 38800, 41070)}),
    'avg': _concurrency({'mosn': (3549, 3583, 5715, 8201),
                         'envoy': (3545, 3565, 5068, 5369)}),
    'p99': _concurrency({'mosn': (4000, 4000, 16000, 20000),
                         'envoy': (4000, 4000, 7000, 9000)}),
    'cpu_server': _concurrency({'mosn': (0.4, 0.7, 1.0, 1.0),
                                'envoy': (0.2, 0.4, 0.95, 1.0)}),
    'rss': _concurrency({'mosn': tuple(1024 * mb for mb in (24, 34, 96, 100)),
                         'envoy': tuple(1024 * mb for mb in (23, 24, 24, 24))}),
}

TABLES = {
    'echo-flare': _ECHO_FLARE,
    'echo-http': _ECHO_HTTP,
    'echo-vs-gdt': _ECHO_VS_GDT,
    'jitter-vs-gdt': _JITTER,
    'trpc-unary': _TRPC_UNARY,
    'trpc-relay': _TRPC_RELAY,
    'trpc-longtail': _TRPC_LONGTAIL,
    'proxy-bolt': _PROXY_BOLT,
    'proxy-http': _PROXY_HTTP,
}

_FLARE_MACHINE = 'a machine of 76 virtual CPUs (Xeon Gold 6133)'
_TRPC_MACHINE = ('two machines of 8 virtual CPUs (EPYC Rome, 2.6 GHz), 0.2 ms '
                 'apart')
_WORKFLOW_MACHINE = ('two machines of 40 CPUs (Xeon E5-2630 v4), 0.1 ms apart, '
                     'in 2020')
_BRPC_MACHINE = 'one machine of 24 CPUs (Xeon E5-2620), in 2015'
_BRPC_MACHINES = 'some 25 to 30 machines of 12 CPUs, in 2015'
_PROXY_MACHINE = ('one CPU (Xeon E5-2650 v2) for the proxy, clients and '
                  'upstreams on other machines, 2.5 ms apart')

# Where the figures were measured, and the meaning of the curves.
NOTES = {
    'echo-flare': (_FLARE_MACHINE + ', May 2020.',),
    'echo-http': (_FLARE_MACHINE + ', May 2020.',),
    'echo-vs-gdt': (_FLARE_MACHINE + ', January 2020.',),
    'jitter-vs-gdt': (_FLARE_MACHINE + ', January 2020.',),
    'trpc-unary': (_TRPC_MACHINE + '.',),
    'trpc-relay': (_TRPC_MACHINE + '.',),
    'trpc-longtail': (_TRPC_MACHINE + '.',),
    'http-size': (
        _WORKFLOW_MACHINE + '; curves.',
        'Workflow stays above brpc and nginx throughout: 500K QPS at 64 and '
        '512 bytes once there are enough connections; level up to 4 KiB, then '
        'falling.'),
    'http-slow': (
        _WORKFLOW_MACHINE + '; curves.',
        'At 20K QPS Workflow a little behind brpc, at 100K on a par, at 200K a '
        'little ahead.'),
    'brpc-size': (
        _BRPC_MACHINE + '; curves.',
        'Up to 2.3 GB/s over pooled connections, above 800 MB/s over one; '
        'below 16 KB one connection of brpc beats the pools of others.'),
    'brpc-threads': (
        _BRPC_MACHINE + '; curves.',
        'Near-linear at first. UB and thrift are ahead up to 8 threads and '
        'then stay where they are; gRPC only doubles from 1 to 256 threads.'),
    'brpc-longtail': (
        _BRPC_MACHINE + '; curves.',
        'brpc is hardly touched by the tail; of sofa-pbrpc 30% of the ordinary '
        'calls are; some of gRPC time out.'),
    'brpc-many-clients': (
        _BRPC_MACHINES + '; curves.',
        'QPS grows with the number of clients (brpc best, then sofa-pbrpc). '
        'At a fixed rate with a tail of 15 ms: brpc hardly touched, 14% of '
        'sofa-pbrpc\'s calls badly.'),
    'brpc-fanout': (
        _BRPC_MACHINES + '; curves.',
        'brpc and UB hardly touched by the tail, 2.5% of sofa-pbrpc\'s calls '
        'and 22% of hulu-pbrpc\'s badly.'),
    'brpc-cascade': (
        _BRPC_MACHINES + '; curves.',
        'brpc hardly touched by the tail; UB a little worse in it; 17% of '
        'sofa-pbrpc\'s calls badly.'),
    'proxy-bolt': (_PROXY_MACHINE + '.',),
    'proxy-http': (_PROXY_MACHINE + '; loaded by ab.',),
    'grpc-echo': ('nothing of this kind.',),
}
