# Functions that the CMakeLists.txt files of this tree make their targets with.

set(FLARE_COMPILE_OPTIONS -Wall -Wextra -Wno-sign-compare)
if(FLARE_WERROR)
  list(APPEND FLARE_COMPILE_OPTIONS -Werror)
endif()

# Programs whose code runs on fibers need the first one: a frame larger than a
# page touches each page, so that it can't step over the guard of a fiber's
# stack. The second one gives backtraces.
set(FLARE_FIBER_OPTIONS -fstack-clash-protection -fno-omit-frame-pointer)

# The C++ sources of this folder, or of these below it, without tests,
# benchmarks and fuzzers.
function(flare_sources variable)
  set(patterns *.cc)
  if(ARGN)
    list(TRANSFORM ARGN APPEND /*.cc OUTPUT_VARIABLE patterns)
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  list(FILTER sources EXCLUDE REGEX "_(test|benchmark|fuzzer)\\.cc$")
  list(SORT sources)
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()

# Compiles `target` as this tree's code is compiled.
function(flare_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE ${FLARE_COMPILE_OPTIONS})
  # "example/rpc/work.h", "tools/protoc_plugin/generator.h".
  target_include_directories(${target} PRIVATE ${flare_SOURCE_DIR})
  if(FLARE_UNITY_BUILD)
    set_target_properties(${target} PROPERTIES
      UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  endif()
endfunction()

# The library flare::<name>, in the file libflare_<name>.
function(flare_library name)
  add_library(flare_${name} ${ARGN})
  add_library(flare::${name} ALIAS flare_${name})
  flare_compile_options(flare_${name})
  target_compile_options(flare_${name} PUBLIC ${FLARE_FIBER_OPTIONS})
  # Headers are included as "flare/<folder>/x.h", from this tree as from an
  # installed one.
  target_include_directories(flare_${name} PUBLIC
    $<BUILD_INTERFACE:${flare_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  set_target_properties(flare_${name} PROPERTIES
    EXPORT_NAME ${name}
    POSITION_INDEPENDENT_CODE ${BUILD_SHARED_LIBS}
    SOVERSION ${FLARE_SOVERSION})
endfunction()

# A part of a program, or of several ones.
function(flare_part name)
  add_library(flare_example_${name} STATIC ${ARGN})
  flare_compile_options(flare_example_${name})
endfunction()

# The program flare-<name>, in the folder bin/.
function(flare_program name)
  add_executable(flare-${name} ${ARGN})
  flare_compile_options(flare-${name})
  set_target_properties(flare-${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${flare_BINARY_DIR}/bin)
  set_property(GLOBAL APPEND PROPERTY FLARE_PROGRAMS flare-${name})
  if(FLARE_JEMALLOC)
    # No symbol of it is referred to by its name: the linker would leave it out.
    # In one piece, since CMake 4 moves the parts of several.
    target_link_libraries(flare-${name} PRIVATE
      -Wl,--push-state,--no-as-needed,$<TARGET_FILE:flare::jemalloc>,--pop-state)
  endif()
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_link_options(flare-${name} PRIVATE -Wl,--gc-sections)
  endif()
endfunction()
