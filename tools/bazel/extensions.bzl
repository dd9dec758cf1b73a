"""Repositories for MODULE.bazel files, as repositories.bzl for WORKSPACE
files."""

def _local_folder_impl(repository_ctx):
    for path in repository_ctx.path(repository_ctx.attr.path).readdir():
        repository_ctx.symlink(path, path.basename)
    repository_ctx.symlink(repository_ctx.attr.build_file, "BUILD.bazel")

# native.new_local_repository() can't be called in extensions.
_local_folder = repository_rule(
    implementation = _local_folder_impl,
    attrs = {
        "build_file": attr.label(mandatory = True),
        "path": attr.string(mandatory = True),
    },
    local = True,
)

def _system_libraries_impl(_module_ctx):
    _local_folder(
        name = "system_libs",
        build_file = Label("//tools/bazel:system_libs.BUILD"),
        path = "/usr",
    )

# The libraries that the system's packages have (tools/setup), as @system_libs.
system_libraries = module_extension(implementation = _system_libraries_impl)
