"""The command line of tools/tables."""

import argparse
import dataclasses
import math
import os
import signal
import subprocess
import sys
import tempfile

from . import (brpc, echo, grpc, machine, peers, plots, processes, proxy,
               report, runner, servers, summary, trpc, web)
from .model import Scale
from .store import Store

WORKLOADS = {workload.name: workload
             for family in (echo, trpc, web, brpc, proxy, grpc)
             for workload in family.ALL}
OUTPUT = os.path.join(machine.TOP, 'docs', 'tables')
CACHE = os.path.expanduser('~/.cache/flare_tables')
QUICK = {'seconds': 0.8, 'warmup': 0.2, 'repetitions': 2}
SMOKE = {'seconds': 0.15, 'warmup': 0.05, 'repetitions': 1}

SHOWN_TROUBLES = 20

HELP = """\
Runs the workloads of the published tables and writes docs/tables/NAME.md.

    tools/tables                       all of them, for some hours
    tools/tables echo-flare http-size  these
    tools/tables --quick               all, roughly, in a quarter of an hour
    tools/tables --smoke --peers=none  does everything work? for CI
    tools/tables --list                their names

Measurements are kept as they come: stop it with Ctrl-C, and the same command
goes on where it was. docs/tables/README.md says how to read the tables.

Exit status: 0; 1 if some of our programs could not be measured, or with --smoke
if any request failed; 2 for wrong arguments; 130 if stopped.
"""


def main(arguments=None):
    options = parse(arguments)
    if options.list:
        print('\n'.join(WORKLOADS))
        return 0
    # A kill, too, ends the started programs.
    signal.signal(signal.SIGTERM, interrupt)
    try:
        return run(options)
    except OSError as error:  # Such as a disk that is full.
        print('tables: %s' % error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print('\nStopped. The same command goes on from here.', file=sys.stderr)
        return 130


def interrupt(*_):
    raise KeyboardInterrupt


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog='tables', description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('names', nargs='*', metavar='NAME')
    parser.add_argument('--list', action='store_true',
                        help='print the names, one a line')
    parser.add_argument('--threads', type=positive_numbers, metavar='N,...',
                        help='threads of the servers, instead of what suits '
                        'the machine')
    parser.add_argument('--seconds', type=float, metavar='S',
                        help='of each measurement (3)')
    parser.add_argument('--warmup', type=float, metavar='S',
                        help='before each measurement (0.5)')
    parser.add_argument('--repetitions', type=int, metavar='N',
                        help='of each row (5)')
    parser.add_argument('--peers', type=read_peers, metavar='PEER,...',
                        default=servers.PEERS,
                        help='some of %s; or none (default: all that are '
                        'installed)' % ', '.join(servers.PEERS))
    parser.add_argument('--quick', action='store_true',
                        help='fewer rows, shorter, less often')
    parser.add_argument('--smoke', action='store_true',
                        help='a few rows, very short; nothing is written')
    parser.add_argument('--json', metavar='FILE',
                        help='also write the rows there; of one workload')
    parser.add_argument('--bin', metavar='FOLDER', default=os.path.join(
        machine.TOP, 'bazel-bin'), help='where our programs are (bazel-bin)')
    parser.add_argument('--build', action='store_true',
                        help='build them first, with bazel -c opt')
    parser.add_argument('--output', metavar='FOLDER',
                        help='instead of docs/tables (with --quick: '
                        '~/.cache/flare_tables/quick)')
    parser.add_argument('--commit', metavar='ID',
                        help='that the programs are of, instead of what the '
                        'tree says: to go on with, or print anew, what was '
                        'measured before the tree changed')
    parser.add_argument('--fresh', action='store_true',
                        help='forget what was measured before')
    options = parser.parse_args(arguments)
    check(parser, options)
    return options


def check(parser, options):
    for name in options.names:
        if name not in WORKLOADS:
            parser.error('no workload "%s"; --list prints them' % name)
    if options.quick and options.smoke:
        parser.error('--quick and --smoke exclude each other')
    if options.json and len(options.names) != 1:
        parser.error('--json is for one workload: name it')
    for name in ('seconds', 'repetitions'):
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            parser.error('--%s must be positive' % name)
    if options.warmup is not None and not 0 <= options.warmup < math.inf:
        parser.error('--warmup must not be negative')
    # Fails for files that can't be written before hours of measuring.
    try:
        if options.json:
            with open(options.json, 'a', encoding='utf-8'):
                pass
        if options.output:
            os.makedirs(os.path.join(options.output, 'raw'), exist_ok=True)
            with tempfile.TemporaryFile(dir=options.output):
                pass
    except OSError as error:
        parser.error("can't write: %s" % error)


def positive_numbers(text):
    try:
        numbers = tuple(int(word) for word in text.split(','))
    except ValueError:
        numbers = (0,)
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(
            '"%s" is no list of positive numbers' % text)
    return numbers


def read_peers(text):
    names = () if text == 'none' else tuple(text.split(','))
    for name in names:
        if name not in servers.PEERS:
            raise argparse.ArgumentTypeError('no peer "%s": there are %s, none'
                                             % (name,
                                                ', '.join(servers.PEERS)))
    return names


def scale_of(options):
    grid = 'quick' if options.quick else 'smoke' if options.smoke else 'full'
    values = {'full': {}, 'quick': QUICK, 'smoke': SMOKE}[grid].copy()
    for name in ('seconds', 'warmup', 'repetitions', 'threads'):
        given = getattr(options, name)
        if given is not None:
            values[name] = given
    return Scale(grid=grid, cpus=tuple(sorted(os.sched_getaffinity(0))),
                 **values)


def run(options):
    scale = scale_of(options)
    if options.build:
        subprocess.run(['bazel', 'build', '-c', 'opt',
                        *processes.Programs.TARGETS], cwd=machine.TOP,
                       check=True)
    commit = options.commit or machine.commit()
    absent = {name: reason for name, reason in (
        (name, peers.all_peers()[name].missing()) for name in options.peers)
              if reason}
    plans = make_plans(options, scale, commit,
                       set(options.peers) - set(absent))
    progress = runner.Progress(
        sys.stderr, runner.count_missing(plans, scale), scale)
    running = runner.Runner(processes.Programs(options.bin), scale, progress)
    for peer, reason in absent.items():
        progress.say('%s left out: %s' % (peer, reason))
    for plan in plans:
        leave_out(plan, absent, running)
        running.run(plan)
        if not options.smoke or options.json:
            write(plan, running, options, commit)
    return conclude(plans, running, options)


def leave_out(plan, absent, running):
    """Remembers the rows that the workload lacks because peers aren't
    installed."""
    wanted = {}
    for row in plan.workload.rows(running.scale):
        if needed_peer(row) in absent:
            wanted[row.system] = row
    for row in wanted.values():
        running.left_out.append((plan.workload.name, row,
                                 absent[needed_peer(row)]))


def needed_peer(row):
    """The name of the peer without which it can't be measured, or ''."""
    return row.peer or (row.system if row.system in servers.PEERS else '')


def conditions(options, scale, commit):
    """The conditions that samples of one table must share, in a word.

    Some rows' clients have threads by the last of --threads.
    """
    words = [commit, scale.grid, '%gs' % scale.seconds, '%gs' % scale.warmup,
             machine.build_key(options.bin),
             'cpus%x' % sum(1 << cpu for cpu in scale.cpus)]
    if scale.threads:
        words.append('threads' + ','.join(map(str, scale.threads)))
    return '-'.join(words)


def make_plans(options, scale, commit, present):
    folder = os.path.join(CACHE, conditions(options, scale, commit))
    versions = {name: peers.all_peers()[name].installation()
                for name in present}
    plans = []
    for name in options.names or WORKLOADS:
        workload = WORKLOADS[name]
        store = Store(folder, name)
        if options.fresh or options.smoke:
            store.clear()
        rows = [dataclasses.replace(row,
                                    version=versions.get(needed_peer(row), ''))
                for row in workload.rows(scale)
                if needed_peer(row) in present | {''}]
        plans.append(runner.Plan(workload, rows, store))
    return plans


def write(plan, running, options, commit):
    """NAME.md, raw/NAME.json and plots/NAME-*; and the file of --json."""
    name = plan.workload.name
    scale = running.scale
    measured = [(row, plan.store.of(row, scale.repetitions))
                for row in plan.rows]
    measured = [(row, samples) for row, samples in measured if samples]
    if not measured:
        return  # The results of an earlier run are better than nothing.
    summaries = [summary.summarise(row, samples) for row, samples in measured]
    commands = [samples[-1].commands for _, samples in measured]
    distributions = [summary.distribution(samples) for _, samples in measured]
    date, where = summary.when_and_where(
        [sample for _, samples in measured for sample in samples])
    result = summary.report_json(name, where, commit, summaries)
    if options.json:
        summary.write_json(options.json, result)
    if options.smoke:
        return
    output = options.output or (
        os.path.join(CACHE, 'quick') if options.quick else OUTPUT)
    os.makedirs(os.path.join(output, 'raw'), exist_ok=True)
    pictures = plots.draw(plan.workload, summaries, distributions,
                          os.path.join(output, 'plots'))
    facts = {'machine': where, 'commit': commit,
             'build': machine.build_mode(options.bin),
             'date': date,
             'repetitions': scale.repetitions, 'seconds': scale.seconds,
             'warmup': scale.warmup}
    text = report.write(plan.workload, facts, summaries, commands, pictures,
                        left_out_lines(name, running))
    with open(os.path.join(output, name + '.md'), 'w',
              encoding='utf-8') as file:
        file.write(text)
    result['rows'] = [
        {**row, 'commands': of_row,
         'latencies': whole.thin() if whole else None}
        for row, of_row, whole in zip(result['rows'], commands, distributions)]
    summary.write_json(os.path.join(output, 'raw', name + '.json'), result)


def left_out_lines(name, running):
    """One for each reason, with the systems that it concerns."""
    reasons = {}
    for workload, row, reason in running.left_out + running.failed:
        if workload == name:
            systems = reasons.setdefault(reason.splitlines()[0], [])
            if row.system not in systems:
                systems.append(row.system)
    return ['%s: %s' % (', '.join(systems), reason)
            for reason, systems in reasons.items()]


def conclude(plans, running, options):
    """Prints the failures; the exit status."""
    if plots.matplotlib() is None and not options.smoke:
        print('No plots: there is no matplotlib. `tools/peers matplotlib`, or '
              'the package python3-matplotlib, brings it.', file=sys.stderr)
    troubles = [entry for entry in running.failed + running.left_out
                if not needed_peer(entry[1])]
    failures = failed_requests(plans, running.scale)
    entries = troubles + [entry for entry in running.failed
                          if entry not in troubles] + failures
    for name, row, reason in entries[:SHOWN_TROUBLES]:
        print('%s: %s: %s' % (name, runner.describe(row), reason),
              file=sys.stderr)
    if len(entries) > SHOWN_TROUBLES:
        print('... and %d more rows, see above' % (
            len(entries) - SHOWN_TROUBLES), file=sys.stderr)
    return 1 if troubles or (options.smoke and failures) else 0


def failed_requests(plans, scale):
    """[(workload, row, how many)], of rows with any."""
    found = []
    for plan in plans:
        for row in plan.rows:
            failures = sum(sample.failures for sample in plan.store.of(
                row, scale.repetitions))
            if failures:
                found.append((plan.workload.name, row,
                              '%d request(s) failed' % failures))
    return found
