"""Cuts summary rows into the lines of a table or plot.

A line has the same system, threads and parameters, except the one that runs
along the line.
"""


def value_of(row, name):
    """The row's place along `name`: "threads", or a parameter."""
    if name == 'threads':
        return row['threads']
    return row['parameters'].get(name)


def line_key(row, along):
    """Hashable; equal for rows of one line."""
    parameters = tuple(sorted(
        (name, str(value)) for name, value in row['parameters'].items()
        if name != along))
    threads = None if along == 'threads' else row['threads']
    return (row['system'], threads, parameters)


def lines(rows, along):
    """{line key: {value along: row}}, in the rows' order."""
    found = {}
    for row in rows:
        value = value_of(row, along)
        if value is not None:
            found.setdefault(line_key(row, along), {})[value] = row
    return found


def columns(rows, along):
    """The values along `along`, in order."""
    values = {value_of(row, along) for row in rows} - {None}
    if all(isinstance(value, (int, float)) for value in values):
        return sorted(values)
    ordered = []
    for row in rows:
        value = value_of(row, along)
        if value is not None and value not in ordered:
            ordered.append(value)
    return ordered


# Parameters whose values speak for themselves.
_BARE = ('caller_kind', 'carried', 'connections', 'protocol')


def labels(keys):
    """A short name for each line: its system, and its differences to others.

    A parameter that has one value in all lines that have it is left out.
    """
    keys = list(keys)
    same_threads = len({threads for _, threads, _ in keys}) == 1
    values = {}
    for _, _, parameters in keys:
        for name, value in parameters:
            values.setdefault(name, set()).add(value)
    made = {}
    for key in keys:
        system, threads, parameters = key
        words = [system]
        if threads is not None and not same_threads:
            words.append('threads %d' % threads)
        for name, value in parameters:
            if len(values[name]) > 1:
                bare = name in _BARE and not value.isdigit()
                words.append(value if bare else '%s %s' % (
                    name.replace('_', ' '), value))
        made[key] = ', '.join(words)
    return made


def ours_beside(key, keys):
    """The key of our line that differs in nothing but the system, or None.

    If there is none, our line with the same threads, if that is only one.
    """
    system, threads, parameters = key
    if system == 'flare':
        return None
    exact = ('flare', threads, parameters)
    if exact in keys:
        return exact
    similar = [other for other in keys if other[:2] == ('flare', threads)]
    return similar[0] if len(similar) == 1 else None
