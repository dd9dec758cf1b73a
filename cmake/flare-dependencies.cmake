# The libraries that flare is linked with, found on the system: for the build of
# flare, and for find_package(flare).
#
# Each macro adds to the list flare_missing the names of those that it can't
# find.

# Makes the imported target flare::<name> for the library lib<library>, which
# brings no CMake files on every system.
macro(flare_find_library name library header)
  if(NOT TARGET flare::${name})
    find_library(FLARE_${name}_LIBRARY ${library})
    find_path(FLARE_${name}_INCLUDE_DIR ${header})
    mark_as_advanced(FLARE_${name}_LIBRARY FLARE_${name}_INCLUDE_DIR)
    if(FLARE_${name}_LIBRARY AND FLARE_${name}_INCLUDE_DIR)
      add_library(flare::${name} UNKNOWN IMPORTED GLOBAL)
      set_target_properties(flare::${name} PROPERTIES
        IMPORTED_LOCATION "${FLARE_${name}_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${FLARE_${name}_INCLUDE_DIR}")
    else()
      list(APPEND flare_missing ${library})
    endif()
  endif()
endmacro()

# For a library with a package of CMake's or its own, which has `target`.
macro(flare_find_package package target)
  if(NOT TARGET ${target})
    find_package(${package} QUIET ${ARGN})
    if(NOT TARGET ${target})
      list(APPEND flare_missing ${package})
    endif()
  endif()
endmacro()

# Dependencies of flare::base, flare::fiber and flare::io.
macro(flare_find_base_dependencies)
  flare_find_package(Threads Threads::Threads)
  flare_find_package(gflags gflags)
  flare_find_package(glog glog::glog)
  flare_find_package(OpenSSL OpenSSL::SSL 3.0)
  flare_find_package(ZLIB ZLIB::ZLIB)
  flare_find_library(lz4 lz4 lz4frame.h)
  flare_find_library(numa numa numa.h)
  flare_find_library(snappy snappy snappy.h)
  flare_find_library(zstd zstd zstd.h)
endmacro()

# Dependencies of flare::rpc. From release 22 on protobuf's own package knows
# the other libraries to link.
macro(flare_find_rpc_dependencies)
  if(NOT TARGET protobuf::libprotobuf)
    find_package(protobuf CONFIG QUIET)
  endif()
  flare_find_package(Protobuf protobuf::libprotobuf)
  if(NOT TARGET protobuf::protoc)
    list(APPEND flare_missing protoc)
  endif()
endmacro()

# Dependencies of the programs only.
macro(flare_find_program_dependencies)
  flare_find_library(yaml_cpp yaml-cpp yaml-cpp/yaml.h)
  if(FLARE_JEMALLOC)
    flare_find_library(jemalloc jemalloc jemalloc/jemalloc.h)
  endif()
endmacro()
