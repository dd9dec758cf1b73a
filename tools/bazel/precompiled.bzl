"""Headers of others, compiled once instead of for each source.

They take most of the time of compiling a test, or anything without
optimisation. Each combination of compiler options needs headers of its own.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_headers_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )

    # Compilers find it beside the header; gcc takes that if it finds none.
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    compiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    ctx.actions.symlink(output = header, target_file = ctx.file.src)
    cpp = ctx.fragments.cpp
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = header.path,
        output_file = compiled.path,
        user_compile_flags = cpp.copts + cpp.cxxopts + ctx.attr.copts +
                             ["-x", "c++-header"],
    )
    action = ACTION_NAMES.cpp_compile
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = action,
        ),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = action,
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = action,
            variables = variables,
        ),
        inputs = depset([header], transitive = [toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling " + header.short_path,
    )
    return [CcInfo(compilation_context = cc_common.create_compilation_context(
        headers = depset([header, compiled]),
    ))]

precompiled_headers = rule(
    implementation = _precompiled_headers_impl,
    attrs = {
        "src": attr.label(allow_single_file = [".h"], mandatory = True),
        "copts": attr.string_list(),
        "_cc_toolchain": attr.label(
            default = "@bazel_tools//tools/cpp:current_cc_toolchain",
        ),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    doc = "To be a dependency of what is compiled with the same `copts` and " +
          "include_precompiled().",
)

def include_precompiled(name):
    """Compiler options that include //tools/bazel:<name> of this repository."""
    root = Label("//:BUILD.bazel").workspace_root
    folder = "$(BINDIR)/" + (root + "/" if root else "")
    return ["-include", folder + "tools/bazel/%s.h" % name]
