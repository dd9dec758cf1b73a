"""A recipe for Conan 2: conan create packaging/conan."""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load


class FlareConan(ConanFile):
    name = 'flare'
    license = 'Apache-2.0'
    description = 'An RPC runtime for C++20 on Linux, on fibers'
    settings = 'os', 'compiler', 'build_type', 'arch'
    options = {'shared': [True, False]}
    default_options = {'shared': False}
    package_type = 'library'

    def set_version(self):
        text = load(self, os.path.join(self.recipe_folder, '..', '..', 'base',
                                       'version.h'))
        self.version = re.search(r'kVersion.*"(.*)"', text).group(1)

    def export_sources(self):
        top = os.path.join(self.recipe_folder, '..', '..')
        for pattern in ('CMakeLists.txt', 'LICENSE', 'base/*', 'cmake/*',
                        'fiber/*', 'include/*', 'io/*', 'rpc/*',
                        'tools/protoc_plugin/*'):
            copy(self, pattern, top, self.export_sources_folder)

    def requirements(self):
        for library in ('gflags/2.2.2', 'glog/0.6.0', 'libnuma/2.0.16',
                        'lz4/1.9.4',
                        'openssl/[>=3.0 <4]', 'snappy/1.1.10',
                        'zlib/[>=1.2.13 <2]',
                        'zstd/[>=1.5.4 <1.6]'):
            self.requires(library, transitive_headers=True)
        self.requires('protobuf/3.21.12', transitive_headers=True)

    def build_requirements(self):
        self.tool_requires('protobuf/3.21.12')

    def validate(self):
        if self.settings.os != 'Linux':
            raise ConanInvalidConfiguration('flare runs on Linux only')
        check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables['FLARE_BUILD_PROGRAMS'] = False
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # CMake's own package of flare, with flare_generate_services().
        self.cpp_info.set_property('cmake_find_mode', 'none')
        self.cpp_info.builddirs = [os.path.join('lib', 'cmake', 'flare')]
