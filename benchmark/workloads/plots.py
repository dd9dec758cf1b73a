"""Pictures: lines over a parameter, and distributions of latencies.

Needs matplotlib: Debian's python3-matplotlib, or what `tools/peers matplotlib`
put into the peers' folder. available() says whether there is any.
"""

import importlib
import io
import math
import os

from . import grouping, peers
from .report import UNITS

COLOURS = {
    'flare': '#c00000', 'flare, no spin': '#ff9896',
    'flare, callbacks': '#ff9896', 'gdt': '#1f77b4', 'gdt-tp': '#e67e22',
    'merge': '#2ca02c', 'epoll_limit': '#7f7f7f',
    'epoll_limit, press': '#b0b0b0', 'nginx': '#2e8b57',
    'haproxy': '#1f4e9c', 'envoy': '#ac46c6', 'mosn': '#ff7f0e',
    'grpc': '#8c564b', 'go_http': '#00add8', 'hyper': '#bcbd22',
    'direct': '#7f7f7f',
}
STYLES = ('-', '--', ':', '-.', (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = 'osv^Dx+*'
TITLES = {'qps': 'calls per second', 'mb_per_s': 'MB/s',
          'cost_us': 'server CPU per call', 'avg_us': 'average latency',
          'p99_us': 'p99', 'p999_us': 'p999',
          'qps_per_core': 'calls per second and proxy core'}
X_TITLES = {'pending': 'calls under way', 'concurrency': 'connections',
            'clients': 'client processes', 'body_size': 'bytes of the body'}
# The picture without its legend, which is beside it.
WIDTH, HEIGHT, DPI = 6.4, 4.0, 90


def matplotlib():
    """The module, set up for drawing to files, or None if there is none."""
    module = peers.import_matplotlib()
    if module is None:
        return None
    module.use('Agg')
    # Text stays text, and nothing differs from run to run without a reason.
    module.rcParams.update({'svg.fonttype': 'none', 'svg.hashsalt': 'flare',
                            'font.size': 9, 'axes.grid': True,
                            'grid.alpha': 0.3, 'path.simplify': True})
    return module


def styles(keys):
    """{line key: matplotlib arguments}: a colour for each system, a style for
    each combination of threads and parameters."""
    made = {}
    seen = []
    for key in keys:
        system, *rest = key
        if rest not in seen:
            seen.append(rest)
        number = seen.index(rest)
        made[key] = {'color': COLOURS.get(system, 'black'),
                     'linestyle': STYLES[number % len(STYLES)],
                     'marker': MARKERS[number % len(MARKERS)]}
    return made


def draw(workload, rows, distributions, folder):
    """Draws all of the workload's plots; names of those that were made.

    `distributions` are the rows' merged histograms, None where there is none.
    Files are FOLDER/NAME.svg and FOLDER/NAME.png.
    """
    if matplotlib() is None:
        return []
    pyplot = importlib.import_module('matplotlib.pyplot')
    os.makedirs(folder, exist_ok=True)
    names = []
    for plot in workload.plots:
        chosen = choose(plot, rows)
        figure, axes = pyplot.subplots(figsize=(WIDTH, HEIGHT))
        if plot.kind == 'cdf':
            drawn = draw_cdf(axes, [rows[i] for i in chosen],
                             [distributions[i] for i in chosen])
        else:
            drawn = draw_lines(axes, plot, [rows[i] for i in chosen])
        if drawn:
            finish(figure, axes, '%s: %s' % (workload.name, plot.title))
            name = '%s-%s' % (workload.name, plot.name)
            save(figure, os.path.join(folder, name))
            names.append(name)
        pyplot.close(figure)
    return names


def draw_overload(runs, path):
    """Draws calls per second and p99 over the load: PATH.svg and PATH.png.

    `runs` are {label: rows} of benchmark/overload. False without matplotlib.
    """
    if matplotlib() is None:
        return False
    pyplot = importlib.import_module('matplotlib.pyplot')
    figure, (answered, p99) = pyplot.subplots(1, 2,
                                              figsize=(1.6 * WIDTH, HEIGHT))
    colours = ('#7f7f7f', '#c00000', '#1f77b4', '#2ca02c')
    for number, (label, rows) in enumerate(runs.items()):
        look = {'label': label, 'markersize': 4,
                'color': colours[number % len(colours)],
                'marker': MARKERS[number % len(MARKERS)]}
        times = [row['times'] for row in rows]
        answered.plot(times, [row['answered'] for row in rows], **look)
        p99.plot(times, [1000 * row['p99_ms'] for row in rows], **look)
    for axes in (answered, p99):
        axes.set_xticks(times, ['%g' % each for each in times])
        axes.set_xlabel('offered load, in times of the capacity')
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    answered.set_title('answered calls per second', fontsize=10)
    answered.yaxis.set_major_formatter(lambda value, _: short(value))
    p99.yaxis.set_major_formatter(lambda value, _: micros(value))
    finish(figure, p99, 'p99 of answered calls')
    save(figure, path)
    pyplot.close(figure)
    return True


def choose(plot, rows):
    """Indices of the rows that belong into the plot."""
    chosen = [i for i, row in enumerate(rows)
              if plot.where is None or plot.where(row)]
    if plot.greatest and chosen:
        values = [grouping.value_of(rows[i], plot.greatest) for i in chosen]
        chosen = [i for i, value in zip(chosen, values)
                  if value == max(values)]
    return chosen


def draw_lines(axes, plot, rows):
    rows = [row for row in rows if row.get(plot.figure) is not None]
    lines = grouping.lines(rows, plot.x)
    if not lines:
        return False
    labels = grouping.labels(lines)
    looks = styles(lines)
    for key, line in lines.items():
        places = sorted(line)
        values = [line[place][plot.figure] for place in places]
        axes.plot(places, values, label=labels[key], markersize=4, **looks[key])
        least = [line[place].get(plot.figure + '_min') for place in places]
        greatest = [line[place].get(plot.figure + '_max') for place in places]
        if None not in least and len(places) > 1:
            axes.fill_between(places, least, greatest, alpha=0.12, linewidth=0,
                              color=looks[key]['color'])
    set_x_scale(axes, plot, grouping.columns(rows, plot.x))
    set_y_scale(axes, plot)
    axes.set_xlabel(X_TITLES.get(plot.x, plot.x))
    axes.set_ylabel(TITLES.get(plot.figure, UNITS.get(plot.figure,
                                                      plot.figure)))
    return True


def set_y_scale(axes, plot):
    text = micros if plot.figure.endswith('_us') else short
    if plot.log_y:
        axes.set_yscale('log')
        # Between powers of ten only some are told, lest they overlap.
        axes.yaxis.set_minor_formatter(
            lambda value, _: text(value) if ('%.0e' % value)[0] in '25' else '')
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: text(value))


def set_x_scale(axes, plot, places):
    """Marks measured points, as far as the labels don't overlap."""
    if plot.log_x:
        axes.set_xscale('log', base=2)
    axes.set_xticks(places, [short_bytes(place) if plot.x == 'body_size'
                             else str(place) for place in places])
    axes.minorticks_off()


def draw_cdf(axes, rows, distributions):
    drawn = False
    keys = [grouping.line_key(row, None) for row in rows]
    labels = grouping.labels(keys) if keys else {}
    looks = styles(keys)
    nines = 0.0
    for key, distribution in zip(keys, distributions):
        if distribution is None or not distribution.count:
            continue
        points = distribution.cdf()
        # The latency of the last call of all is in no picture: it is luck.
        points = [(latency, depth(share)) for latency, share in points
                  if share < 1]
        if not points:
            continue
        look = {name: value for name, value in looks[key].items()
                if name != 'marker'}
        axes.plot(*zip(*points), label=labels[key], linewidth=1.2, **look)
        nines = max(nines, points[-1][1])
        drawn = True
    if not drawn:
        return False
    axes.set_xscale('log')
    axes.xaxis.set_major_formatter(lambda value, _: micros(value))
    steps = [share for share in (0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)
             if depth(share) <= nines + 0.05]
    axes.set_yticks([depth(share) for share in steps],
                    ['%g%%' % (100 * share) for share in steps])
    axes.set_ylim(bottom=0)
    axes.set_xlabel('latency')
    axes.set_ylabel('calls that were not slower')
    return True


def depth(share):
    """How many nines: the scale of the vertical axis."""
    return -math.log10(1 - share)


def micros(value):
    if value >= 1e6:
        return '%g s' % (value / 1e6)
    if value >= 1e3:
        return '%g ms' % (value / 1e3)
    return '%g us' % value


def short(value):
    for size, letter in ((1e6, 'M'), (1e3, 'K')):
        if abs(value) >= size:
            return '%g%s' % (value / size, letter)
    return '%g' % value


def short_bytes(value):
    for size, letter in ((1 << 20, 'M'), (1 << 10, 'K')):
        if value >= size and value % size == 0:
            return '%d%s' % (value // size, letter)
    return str(value)


def finish(figure, axes, title):
    axes.set_title(title, fontsize=10)
    axes.legend(loc='upper left', bbox_to_anchor=(1.01, 1.0), fontsize=8,
                borderaxespad=0.0, frameon=False)


def save(figure, path):
    figure.savefig(path + '.svg', metadata={'Date': None},
                   bbox_inches='tight')
    picture = io.BytesIO()
    figure.savefig(picture, format='png', dpi=DPI, bbox_inches='tight')
    picture.seek(0)
    image = importlib.import_module('PIL.Image')
    # A palette makes the file a third.
    image.open(picture).convert('P', palette=image.Palette.ADAPTIVE,
                                colors=64).save(path + '.png', optimize=True)
