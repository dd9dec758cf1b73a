"""For tests of scripts, which have no `.py` in their names."""

import importlib.machinery
import importlib.util
import os

HERE = os.path.dirname(os.path.abspath(__file__))


def load(name):
    """The script tools/<name> as a module."""
    loader = importlib.machinery.SourceFileLoader(
        name, os.path.join(HERE, name))
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module
