# The tests of the libraries, one program <folder>_<file> for each x_test.cc:
#
#   cmake --build build/debug --target fiber_mutex_test
#   ctest --preset debug -R fiber_mutex_test
#
# Bazel runs more: the tests of the programs, of the protoc plugin and of the
# scripts.

function(flare_tests prefix)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "FILES;LIBRARIES")
  foreach(file IN LISTS arg_FILES)
    get_filename_component(name ${file} NAME_WE)
    set(name ${prefix}_${name})
    add_executable(${name} ${file})
    flare_compile_options(${name})
    target_link_libraries(${name} PRIVATE
      ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
    add_test(NAME ${name} COMMAND ${name}
      WORKING_DIRECTORY ${flare_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES TIMEOUT 300)
  endforeach()
endfunction()

add_library(flare_fiber_testing STATIC fiber/testing/deterministic.cc)
flare_compile_options(flare_fiber_testing)
target_link_libraries(flare_fiber_testing PUBLIC flare::fiber GTest::gtest)

foreach(folder base fiber io)
  file(GLOB tests CONFIGURE_DEPENDS
    ${folder}/*_test.cc ${folder}/*/*_test.cc)
  # Part of flare::rpc.
  list(FILTER tests EXCLUDE REGEX "/zero_copy_stream_test\\.cc$")
  set(libraries flare::${folder} flare::lz4 flare::zstd ZLIB::ZLIB)
  if(NOT folder STREQUAL base)
    list(APPEND libraries flare_fiber_testing)
  endif()
  flare_tests(${folder} FILES ${tests} LIBRARIES ${libraries})
endforeach()

if(FLARE_BUILD_RPC)
  add_library(flare_rpc_testing STATIC
    rpc/testing/raw_client.cc
    rpc/testing/raw_server.cc)
  flare_compile_options(flare_rpc_testing)
  target_link_libraries(flare_rpc_testing
    PUBLIC flare_fiber_testing flare::rpc GTest::gtest)
  flare_generate_services(TARGET flare_rpc_testing MESSAGES_ONLY
    PROTOS
      rpc/wire/any_messages.proto
      rpc/wire/baidu_std_meta.proto
      rpc/wire/old_messages.proto
      rpc/wire/rpc_meta.proto
      rpc/wire/trpc_meta.proto
      rpc/testing/limited_service.proto
      rpc/testing/stream_service.proto
      rpc/testing/test_service.proto)
  add_library(flare_testing_services STATIC)
  flare_compile_options(flare_testing_services)
  flare_generate_services(TARGET flare_testing_services
    PROTOS
      rpc/testing/published_service.proto
      rpc/testing/streamer.proto)

  # Objects, since services are found by name. Apart from the others, since it has
  # the names of OpenTelemetry's own code.
  add_library(flare_otlp_collector OBJECT)
  flare_compile_options(flare_otlp_collector)
  flare_generate_services(TARGET flare_otlp_collector
    PROTOS rpc/testing/otlp_collector.proto)
  target_link_libraries(flare_otlp_collector PUBLIC flare::tracing)

  flare_tests(base
    FILES base/zero_copy_stream_test.cc
    LIBRARIES flare::rpc)
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS rpc/*_test.cc)
  # Apart: a library that programs without traces aren't linked with.
  file(GLOB tracing_tests CONFIGURE_DEPENDS rpc/tracing/*_test.cc)
  list(REMOVE_ITEM tests ${tracing_tests})
  flare_tests(rpc FILES ${tracing_tests}
    LIBRARIES flare_testing_services flare_rpc_testing flare_otlp_collector)
  flare_tests(rpc FILES ${tests}
    LIBRARIES flare_testing_services flare_rpc_testing flare::mock flare::recording
      flare::services)
endif()
