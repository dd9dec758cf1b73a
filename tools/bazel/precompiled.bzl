"""Headers, compiled once instead of for each source.

They take most of the time of compiling a test, or anything without
optimisation. Each combination of compiler options needs headers of its own.
"""

load(":compile.bzl", "COMPILE_RULE", "compile")

def _precompiled_headers_impl(ctx):
    # Compilers find it beside the header; gcc takes that if it finds none.
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    compiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    ctx.actions.symlink(output = header, target_file = ctx.file.src)
    compile(
        ctx,
        header,
        compiled,
        cc_common.merge_cc_infos(
            cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
        ).compilation_context,
        ctx.files.hdrs,
        options = ["-x", "c++-header"],
        # Clang's name files by absolute paths, which another checkout with the
        # same disk cache hasn't.
        requirements = {"no-cache": "1"},
    )
    return [CcInfo(compilation_context = cc_common.create_compilation_context(
        headers = depset([header, compiled] + ctx.files.hdrs),
    ))]

precompiled_headers = rule(
    implementation = _precompiled_headers_impl,
    attrs = dict(
        COMPILE_RULE.attrs,
        src = attr.label(allow_single_file = [".h"], mandatory = True),
        hdrs = attr.label_list(allow_files = [".h"]),
        deps = attr.label_list(providers = [CcInfo]),
    ),
    fragments = COMPILE_RULE.fragments,
    toolchains = COMPILE_RULE.toolchains,
    doc = "To be a dependency of what is compiled with the same `copts` and " +
          "include_precompiled().",
)

def include_precompiled(name):
    """Compiler options that include //tools/bazel:<name> of this repository."""
    root = Label("//:BUILD.bazel").workspace_root
    folder = "$(BINDIR)/" + (root + "/" if root else "")
    return ["-include", folder + "tools/bazel/%s.h" % name]
