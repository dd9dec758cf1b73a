"""docs/tables/NAME.md: the published figures, ours and the peers'."""

from . import grouping, published

HEAD = '''\
<!-- Written by tools/tables; see README.md beside this file. -->

# {title}

{document}

{about}

**Machine:** {machine}. **Commit:** {commit}. **Build:** {build}.
**Date:** {date}. **Each figure:** the median of {repetitions} repetition(s) of
{seconds:g} s, all systems by turns; ± is half the distance from the least to
the greatest.
'''

UNITS = {
    'qps': 'calls per second', 'cpu_server': '% of one core',
    'cpu_client': '% of one core', 'qps_per_core': 'per core in use',
    'rss_server_kb': 'MB', 'mb_per_s': 'MB/s', 'cost_us': 'us',
}

LONG_COLUMNS = (
    ('system', 'system'), ('threads', 'threads'), ('parameters', 'parameters'),
    ('qps', 'QPS'), ('qps_min', 'least'), ('qps_max', 'greatest'),
    ('avg_us', 'avg us'), ('p50_us', 'p50'), ('p90_us', 'p90'),
    ('p99_us', 'p99'), ('p999_us', 'p999'), ('p9999_us', 'p9999'),
    ('max_us', 'max'), ('failures', 'failures'), ('cpu_server', 'CPU server'),
    ('cpu_client', 'CPU client'), ('qps_per_core', 'QPS per core'),
    ('rss_server_kb', 'RSS MB'),
)

# How to read a published table's lines; by the name of the table.
PUBLISHED_FIGURE = {'avg': 'avg_us', 'p99': 'p99_us', 'p999': 'p999_us',
                    'rss': 'rss_server_kb'}


def figure_text(name, value):
    """Its form in a table; UNITS says in which unit."""
    if value is None:
        return '–'
    if name in ('qps', 'qps_min', 'qps_max', 'qps_per_core', 'tail_qps'):
        return thousands(value)
    if name in ('cpu_server', 'cpu_client'):
        return '%d%%' % round(100 * value)
    if name.startswith('rss_'):
        return '%.0f' % (value / 1024)
    if isinstance(value, float) and abs(value) < 10:
        return '%.2f' % value
    if isinstance(value, (int, float)):
        return '{:,.0f}'.format(value)
    return str(value)


def thousands(value):
    """1.35M, 147K, 9.98K, 120."""
    for size, letter in ((1e6, 'M'), (1e3, 'K')):
        # A value that would be rounded to 1000K is 1M.
        if value >= 0.9995 * size:
            digits = max(0, 2 - (value >= 10 * size) - (value >= 100 * size))
            return '%.*f%s' % (digits, value / size, letter)
    return '%.0f' % value


def cell(row, figure):
    """The median, with its spread if there is one, and a mark for failures."""
    if row is None:
        return ''
    text = figure_text(figure, row.get(figure))
    least, greatest = row.get(figure + '_min'), row.get(figure + '_max')
    if row.get(figure) and least is not None and row['repetitions'] > 1:
        text += ' ±%.0f%%' % (50 * (greatest - least) / row[figure])
    return text + (' (!)' if row['failures'] else '')


def table(header, lines, aligned_left=1):
    """Markdown, of lists of strings."""
    rule = ['---'] * aligned_left + ['---:'] * (len(header) - aligned_left)
    return '\n'.join('| ' + ' | '.join(line) + ' |'
                     for line in [header, rule, *lines]) + '\n'


def pivot_text(pivot, rows, tables):
    """A pivot's tables: ours with ratios, then the published one with its."""
    rows = [row for row in rows
            if (pivot.where is None or pivot.where(row))
            and row.get(pivot.figure) is not None]
    if not rows:
        return ''
    columns = grouping.columns(rows, pivot.column)
    lines = grouping.lines(rows, pivot.column)
    labels = grouping.labels(lines)
    body = [[labels[key]] + [cell(line.get(column), pivot.figure)
                             for column in columns]
            for key, line in lines.items()]
    if pivot.ratio:
        body += ratio_lines(pivot, columns, lines, labels)
    if 'none' in columns:
        body += rise_lines(pivot, columns, lines, labels)
    unit = UNITS.get(pivot.figure, 'us')
    text = '### %s (%s)\n\n' % (pivot.title, unit)
    head = pivot.column.replace('_', ' ')
    text += table([head] + [str(column) for column in columns], body)
    if pivot.published in tables:
        figure = PUBLISHED_FIGURE.get(pivot.published, pivot.published)
        text += '\n' + published_text(tables[pivot.published], figure,
                                      pivot.ratio)
    return text


def ratio_lines(pivot, columns, lines, labels):
    made = []
    for key, line in lines.items():
        ours = grouping.ours_beside(key, lines)
        if ours is None:
            continue
        name, above, below = '%s / flare' % labels[key], line, lines[ours]
        if key[0].startswith('epoll_limit'):
            # The reference: what share of it do we reach?
            name, above, below = 'flare / %s' % labels[key], below, above
        made.append(['*%s*' % name] + [
            ratio(above.get(column), below.get(column), pivot.figure)
            for column in columns])
    return made


def rise_lines(pivot, columns, lines, labels):
    """The effect of a tail on each line's figures without one."""
    return [['*%s, with / without*' % labels[key]] + [
        ratio(line.get(column), line.get('none'), pivot.figure)
        for column in columns] for key, line in lines.items()]


def ratio(theirs, ours, figure):
    if theirs is None or ours is None or not ours[figure]:
        return ''
    return '*%.2f*' % (theirs[figure] / ours[figure])


def published_text(given, figure, with_ratio=False):
    def text(value):
        if figure != 'figures':
            return figure_text(figure, value)
        return thousands(value) if value >= 1e5 else figure_text('', value)

    body = [[name] + [text(value) for value in values]
            for name, values in given.rows.items()]
    if with_ratio and 'flare' in given.rows:
        body += [['*%s / flare*' % name]
                 + ['*%.2f*' % (theirs / ours)
                    for theirs, ours in zip(values, given.rows['flare'])]
                 for name, values in given.rows.items() if name != 'flare']
    return table(['published: ' + given.columns_are]
                 + [str(column) for column in given.columns], body)


def long_table(rows):
    body = []
    for row in rows:
        line = []
        for name, _ in LONG_COLUMNS:
            if name == 'parameters':
                line.append(', '.join(
                    '%s %s' % (key.replace('_', ' '), value)
                    for key, value in row['parameters'].items()))
            elif name == 'threads':
                line.append(str(row['threads'] or ''))
            elif name == 'failures' and row['failures']:
                line.append('**{:,} (!)**'.format(row['failures']))
            else:
                line.append(figure_text(name, row.get(name)))
        body.append(line)
    return table([title for _, title in LONG_COLUMNS], body, aligned_left=3)


def commands_text(rows, commands):
    """The commands of each system's last row; `commands` is by row key."""
    last = {}
    for row, of_row in zip(rows, commands):
        last[row['system']] = (row, of_row)
    text = ''
    for system, (row, of_row) in last.items():
        threads = '' if row['threads'] is None else ', threads %d' % (
            row['threads'])
        parameters = ''.join(', %s %s' % item
                             for item in row['parameters'].items())
        text += '%s%s%s:\n\n```\n%s\n```\n\n' % (
            system, threads, parameters, '\n'.join(fold_same(of_row)))
    return text


def fold_same(lines):
    """Lines that are there several times become one, with their number."""
    counts = {}
    for line in lines:
        counts[line] = counts.get(line, 0) + 1
    return [line if count == 1 else '%s   # %d of them' % (line, count)
            for line, count in counts.items()]


def write(workload, facts, rows, commands, plots, left_out):
    """The text of NAME.md.

    `facts` fills HEAD; `rows` are summaries, `commands` their command lines,
    `plots` names of pictures, `left_out` texts about rows that could not be
    run.
    """
    tables = published.TABLES.get(workload.name, {})
    text = HEAD.format(title='`%s`: %s' % (workload.name, workload.title),
                       document=workload.document, about=workload.about,
                       **facts)
    if any(row['failures'] for row in rows):
        text += '\n**(!)** marks figures of runs in which calls failed.\n'
    for line in left_out:
        text += '\nLeft out: %s.\n' % line
    pivots = [pivot_text(pivot, rows, tables) for pivot in workload.pivots]
    text += '\n## Beside the published figures\n\n'
    notes = published.NOTES.get(workload.name, ())
    text += 'Published: ' + ' '.join(notes) + '\n\n'
    if 'figures' in tables:
        text += published_text(tables['figures'], 'figures') + '\n'
    text += '\n'.join(pivot for pivot in pivots if pivot)
    for name in plots:
        text += '\n![%s](plots/%s.svg)\n' % (name, name)
    text += '\n## All figures\n\n' + long_table(rows)
    text += ('\nLatencies are in microseconds; CPU is in percent of one core; '
             'QPS per core is QPS through the share of CPU that the server '
             '(the proxy, if there is one) took. Bare figures are medians, '
             'too.\n')
    text += ('\n## Command lines\n\nOf the last row of each system; those of '
             'all rows are in `raw/%s.json` beside this file.\n\n'
             % workload.name)
    return text + commands_text(rows, commands).rstrip() + '\n'
