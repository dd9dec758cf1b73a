"""For mkdocs: pages of the checkout's top, and links that lead out of docs/."""

import os
import re

from mkdocs.structure.files import File

# Pages of the site made from files beside docs/.
TOP = {'README.md': 'about.md', 'SECURITY.md': 'security_reports.md',
       'CONTRIBUTING.md': 'contributing.md', 'CHANGELOG.md': 'changes.md'}

LINK = re.compile(r'(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)')


def on_files(files, config):
    top = os.path.dirname(config.config_file_path)
    for source, page in TOP.items():
        with open(os.path.join(top, source), encoding='utf-8') as file:
            text = file.read()
        text = text.replace('](docs/', '](')
        files.append(File.generated(config, page, content=text))
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
    return LINK.sub(replace, markdown)
