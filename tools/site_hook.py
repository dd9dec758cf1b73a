"""For mkdocs: pages made of files beside docs/, and links that lead there.

Pages of the checkout's top get pages of the site, and so do the programs under
example/ and the public headers that documents name: a reader of the site has no
checkout at hand.
"""

import os
import re
import sys

from mkdocs.structure.files import File

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import site_headers  # pylint: disable=wrong-import-position

# Pages of the site made from files beside docs/.
TOP = {'README.md': 'about.md', 'SECURITY.md': 'security_reports.md',
       'CONTRIBUTING.md': 'contributing.md', 'CHANGELOG.md': 'changes.md'}

LINK = re.compile(r'(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)')
FENCE = re.compile(r'(^```.*?^```$)', re.MULTILINE | re.DOTALL)
# `example/short/tls.cc`, except in the text of a link.
EXAMPLE = re.compile(r'(?<!\[)`(example/[\w./-]+\.\w+)`')
# `flare/rpc/server.h`, as programs include it.
HEADER = re.compile(r'(?<!\[)`(flare/[\w/]+\.h)`')
LANGUAGES = {'.cc': 'cpp', '.h': 'cpp', '.proto': 'proto', '.py': 'python',
             '.sh': 'bash', '.js': 'js', '.html': 'html', '.yaml': 'yaml',
             '.json': 'json'}


def file_page(path):
    """The source of the page that shows the file."""
    return path + '.md'


def example_text(top, path):
    with open(os.path.join(top, path), encoding='utf-8') as file:
        code = file.read()
    language = LANGUAGES[os.path.splitext(path)[1]]
    # Code would crowd prose out of the results of a search.
    return ('---\nsearch:\n  exclude: true\n---\n# %s\n\n```%s\n%s```\n'
            % (os.path.basename(path), language, code))


def named(pattern, top):
    """The paths that documents name."""
    found = set()
    for folder, _, names in os.walk(os.path.join(top, 'docs')):
        for name in names:
            if not name.endswith('.md'):
                continue
            with open(os.path.join(folder, name), encoding='utf-8') as file:
                found.update(pattern.findall(file.read()))
    return found


def file_pages(top):
    """Pairs of a path and the text of its page."""
    for path in named(EXAMPLE, top):
        if (os.path.splitext(path)[1] in LANGUAGES and
                os.path.isfile(os.path.join(top, path))):
            yield path, example_text(top, path)
    for path in named(HEADER, top):
        source = os.path.join(top, 'include', path)
        if os.path.isfile(source):
            with open(source, encoding='utf-8') as file:
                yield path, site_headers.page(path, file.read())


def on_files(files, config):
    top = os.path.dirname(config.config_file_path)
    for source, page in TOP.items():
        with open(os.path.join(top, source), encoding='utf-8') as file:
            text = file.read()
        text = text.replace('](docs/', '](')
        files.append(File.generated(config, page, content=text))
    for path, text in sorted(file_pages(top)):
        files.append(File.generated(config, file_page(path), content=text))
    return files


def resolve(text, target, anchor, folder):
    """The link as the site has it; its text alone if that has no such page."""
    if re.match(r'[a-z]+:', target):
        return '[%s](%s%s)' % (text, target, anchor)
    path = os.path.normpath(os.path.join('docs', folder, target))
    if path in TOP:
        path = 'docs/' + TOP[path]
    if path.startswith('docs/') and re.search(r'\.(md|svg)$', path):
        inside = os.path.relpath(path, os.path.join('docs', folder))
        return '[%s](%s%s)' % (text, inside, anchor)
    return text


def on_page_markdown(markdown, page, config, files):
    folder = os.path.dirname(page.file.src_uri)
    from_top = page.file.src_uri in TOP.values()

    def replace(match):
        text, target, anchor = match.groups()
        if from_top and target in TOP:
            target = TOP[target]
        return resolve(text, target, anchor or '', folder)

    def link_file(match):
        source = file_page(match.group(1))
        if files.get_file_from_path(source) is None:
            return match.group(0)
        return '[`%s`](%s)' % (match.group(1),
                               os.path.relpath(source, folder or '.'))

    parts = FENCE.split(LINK.sub(replace, markdown))
    parts[::2] = [HEADER.sub(link_file, EXAMPLE.sub(link_file, part))
                  for part in parts[::2]]
    return ''.join(parts)
