"""Medians and spreads over repetitions, and the JSON of --json."""

import json
import statistics

from . import histogram

# Keys of a row of --json, besides system, threads and parameters.
LATENCIES = ('avg_us', 'p50_us', 'p90_us', 'p99_us', 'p999_us', 'max_us')
SPREAD = ('qps', 'avg_us', 'p50_us', 'p90_us', 'p99_us', 'p999_us', 'p9999_us',
          'max_us', 'mb_per_s')


def summarise(row, samples):
    """One dict of all that is known of a row; samples must not be empty.

    Figures are medians; NAME_min and NAME_max the least and the greatest.
    `cost_us` is the server's CPU time for a call.
    """
    values = {name: [] for name in histogram.FIGURES}
    for sample in samples:
        for name, value in sample.latency_figures().items():
            values[name].append(value)
    values['qps'] = [sample.qps for sample in samples]
    for name in ('cpu_server', 'cpu_client', 'rss_server_kb', 'rss_client_kb'):
        values[name] = [getattr(sample, name) for sample in samples]
    values['qps_per_core'] = [per_core(sample) for sample in samples]
    values['cost_us'] = [1e6 / value if value else None
                         for value in values['qps_per_core']]
    for name in sorted({name for sample in samples for name in sample.extra}):
        values[name] = [sample.extra.get(name) for sample in samples]
    summary = {'system': row.system, 'threads': row.threads,
               'parameters': row.parameters,
               'failures': sum(sample.failures for sample in samples),
               'repetitions': len(samples)}
    for name, measured in values.items():
        known = [value for value in measured if value is not None]
        summary[name] = statistics.median(known) if known else None
        if name in SPREAD:
            summary[name + '_min'] = min(known, default=None)
            summary[name + '_max'] = max(known, default=None)
    return summary


def per_core(sample):
    # Below a hundredth of a core the clock's ticks are coarser than the share.
    if sample.cpu_server is None or sample.cpu_server < 0.01:
        return None
    return sample.qps / sample.cpu_server


def distribution(samples):
    """The latencies of all repetitions together; None if some has none."""
    return histogram.merged(sample.latencies for sample in samples)


def when_and_where(samples):
    """The date, or the first and the last, and the machine, or machines."""
    dates = sorted({sample.date for sample in samples if sample.date})
    machines = sorted({sample.machine for sample in samples if sample.machine})
    return (' to '.join(dict.fromkeys(dates[:1] + dates[-1:])) or 'not stored',
            '; '.join(machines) or 'not stored')


def json_row(summary):
    row = {'system': summary['system'], 'threads': summary['threads'],
           'parameters': summary['parameters'], 'qps': summary['qps']}
    for name in LATENCIES + ('failures', 'cpu_server', 'cpu_client',
                             'qps_per_core', 'rss_server_kb', 'repetitions',
                             'qps_min', 'qps_max'):
        row[name] = summary[name]
    return {name: round(value, 3) if isinstance(value, float) else value
            for name, value in row.items()}


def report_json(workload, machine, commit, summaries):
    return {'workload': workload, 'machine': machine, 'commit': commit,
            'rows': [json_row(summary) for summary in summaries]}


def write_json(path, value):
    """One line for each row, so that changes can be read."""
    head = {name: part for name, part in value.items() if name != 'rows'}
    with open(path, 'w', encoding='utf-8') as file:
        file.write(json.dumps(head, ensure_ascii=False)[:-1] + ', "rows": [\n')
        file.write(',\n'.join(json.dumps(row, ensure_ascii=False)
                              for row in value['rows']))
        file.write('\n]}\n')
