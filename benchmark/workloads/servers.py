"""Starts servers and proxies: ours, the baselines, and those of peers.

All give a processes.Process whose `address` is host:port, and end with the
bench. Which program stands for which system of the tables is SYSTEMS.
"""

from . import loads, peers, processes

SERVER = 'example/rpc/server'
RELAY_SERVER = 'example/rpc/relay_server'
HTTP_SERVER = 'example/http/server'
TCP_PROXY = 'example/proxy/tcp_proxy'
GDT_SERVER = 'benchmark/baseline/gdt_server'
MERGE_SERVER = 'benchmark/baseline/merge_server'
EPOLL_LIMIT_SERVER = 'benchmark/baseline/epoll_limit_server'
EPOLL_LIMIT_CLIENT = 'benchmark/baseline/epoll_limit_client'
EPOLL_LIMIT_PROXY = 'benchmark/baseline/epoll_limit_proxy'


def start(bench, program, flags, cpus=None, pattern=processes.LISTENING):
    """Runs one of our programs on a free port; flags is {"threads": 2}."""
    command = [bench.programs.path(program), '--port=0']
    command += ['--%s=%s' % item for item in flags.items()]
    return bench.enter(processes.started(
        loads.pinned(command, cpus), bench.folder, pattern))


def flare(bench, threads, cpus=None, **flags):
    return start(bench, SERVER, {'flare_concurrency_hint': threads, **flags},
                 cpus)


def relay(bench, threads, forward_to, **flags):
    return start(bench, RELAY_SERVER, {
        'flare_concurrency_hint': threads, 'forward_to': forward_to, **flags})


def gdt(bench, threads, **flags):
    return start(bench, GDT_SERVER, {'threads': threads, **flags})


def gdt_tp(bench, threads, io_share=0.5, **flags):
    """`io_share` of the threads do IO; at least one, and one worker."""
    io_threads = max(1, round(threads * io_share))
    workers = max(1, threads - io_threads)
    return start(bench, GDT_SERVER, {
        'thread_pool': 'true', 'io_threads': io_threads,
        'worker_threads': workers, **flags})


def merge(bench, threads, **flags):
    return start(bench, MERGE_SERVER, {'threads': threads, **flags})


def epoll_limit(bench, threads, **flags):
    return start(bench, EPOLL_LIMIT_SERVER, {'threads': threads, **flags})


def epoll_limit_proxy(bench, upstreams, cpus, **flags):
    """On these CPUs, with one loop for each."""
    return start(bench, EPOLL_LIMIT_PROXY, {
        'threads': len(cpus), 'forward_to': ','.join(upstreams), **flags},
                 cpus)


def http(bench, threads, body_size, cpus=None, **flags):
    return start(bench, HTTP_SERVER, {
        'flare_concurrency_hint': threads, 'body_size': body_size, **flags},
                 cpus)


def tcp_proxy(bench, upstreams, cpus, **flags):
    """On these CPUs, with one worker for each."""
    command = [bench.programs.path(TCP_PROXY), '--listen=127.0.0.1:0',
               '--upstreams=' + ','.join(upstreams),
               '--flare_concurrency_hint=%d' % len(cpus)]
    command += ['--%s=%s' % flag for flag in flags.items()]
    return bench.enter(processes.started(
        loads.pinned(command, cpus), bench.folder, processes.LISTENING))


def peer(bench, name, role, *arguments, **options):
    """A system of others in one of its roles: peers.py."""
    start_it = getattr(peers.all_peers()[name], role)
    return bench.enter(start_it(*arguments, **options))


def peers_with(role):
    return tuple(name for name, one in peers.all_peers().items()
                 if role in one.roles)


def systems_for(threads, systems):
    """Those of them that have no more threads than that."""
    return [system for system in systems
            if system != 'gdt-tp' or threads >= 2]  # IO, and a worker.


# The possible rows of a table.
PEERS = peers_with('http') + tuple(
    name for role in ('tcp', 'grpc') for name in peers_with(role)
    if name not in peers_with('http'))

SYSTEMS = {'flare': flare, 'gdt': gdt, 'gdt-tp': gdt_tp, 'merge': merge,
           'epoll_limit': epoll_limit}
