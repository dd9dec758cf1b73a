"""Pages of the site for public headers: the declarations that programs use.

Each header is its own manual, so its page is the header itself without the
parts for the library alone: the include guard, includes, forward declarations,
friends and private members. Each class has a heading, which the site's search
finds.
"""

import re

DROPPED = re.compile(r'^(#|namespace\b|\}  // namespace|\s*friend\b.*;$)')
FORWARD = re.compile(r'(?:(?:template <[^>]*>\n)?(?:class|struct) \w+;\n?)+')
ACCESS = re.compile(r'^( *)(public|protected|private):')
# The definition of a class; its name is the group.
CLASS = re.compile(r'^(?:class|struct|enum class|enum)\b(?![^{]*;$)'
                   r'(?: \[\[\w+\]\]| FLARE_\w+(?:\([^)]*\))?| alignas\(\w+\))*'
                   r' ([\w:]+)', re.MULTILINE)


def public_lines(code):
    """Pairs of a number, from 0, and a line that is no private member."""
    hidden = None  # The indentation of the class whose members are left out.
    for number, line in enumerate(code.split('\n')):
        access = ACCESS.match(line)
        indent = len(line) - len(line.lstrip())
        if hidden is not None:
            if line.strip() and indent <= hidden:
                hidden = None
            elif access and len(access.group(1)) == hidden + 1:
                hidden = None
        if hidden is None and access and access.group(2) == 'private':
            hidden = len(access.group(1)) - 1
        if hidden is None:
            yield number, line


def chunks(text):
    """The parts that blank lines outside of braces separate."""
    depth = 0
    chunk = []
    for line in text.split('\n'):
        if not line and depth == 0:
            if chunk:
                yield '\n'.join(chunk)
            chunk = []
            continue
        chunk.append(line)
        code = re.sub(r'//.*|"(?:[^"\\]|\\.)*"', '', line)
        depth += code.count('{') - code.count('}')
    if chunk:
        yield '\n'.join(chunk)


def page(header, code):
    """The source of the page of a header, which programs include by that name."""
    text = '\n'.join(line for _, line in public_lines(code)
                     if not DROPPED.match(line))
    text = re.sub(r'\n{2,}(?=\};)', '\n', re.sub(r'\n{3,}', '\n\n', text))
    parts = ['# %s\n' % header]
    block = []

    def end_block():
        if block:
            parts.append('```cpp\n%s\n```\n' % '\n\n'.join(block))
            block.clear()

    for chunk in chunks(text):
        if FORWARD.fullmatch(chunk):
            continue
        name = CLASS.search(chunk)
        if name:
            end_block()
            parts.append('## %s\n' % name.group(1))
        block.append(chunk)
    end_block()
    return '---\nsearch:\n  boost: 0.2\n---\n' + '\n'.join(parts)
