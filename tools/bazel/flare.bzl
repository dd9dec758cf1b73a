"""Shared settings of this project's C++ targets."""

COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-sign-compare",
    "-fno-omit-frame-pointer",
]

def flare_cc_library(name, copts = [], **kwargs):
    """A library whose headers are included as "flare/<package>/x.h"."""
    native.cc_library(
        name = name,
        copts = COPTS + copts,
        include_prefix = "flare/" + native.package_name(),
        strip_include_prefix = "/" + native.package_name(),
        **kwargs
    )

def flare_cc_test(name, srcs = None, deps = [], copts = [], size = "small", **kwargs):
    """A GoogleTest test of the source file <name>.cc."""
    native.cc_test(
        name = name,
        srcs = srcs or [name + ".cc"],
        copts = COPTS + copts,
        deps = deps + ["@system_libs//:gtest_main"],
        size = size,
        **kwargs
    )

def flare_cc_binary(name, deps = [], copts = [], **kwargs):
    """A program, with jemalloc as its allocator."""
    native.cc_binary(
        name = name,
        copts = COPTS + copts,
        deps = deps + select({
            "//:sanitized": [],
            "//conditions:default": ["@system_libs//:jemalloc"],
        }),
        **kwargs
    )
