# The targets install and uninstall; packages for find_package(flare) and for
# pkg-config.
include(CMakePackageConfigHelpers)

set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/flare)
set(exported flare_base flare_fiber flare_io)
install(TARGETS ${exported} EXPORT flare-targets)

# Headers. Those for tests of this tree, and init.h by its path in the tree, are
# left out.
set(folders base fiber io)
if(FLARE_BUILD_RPC)
  list(APPEND folders rpc)
endif()
foreach(folder IN LISTS folders)
  install(DIRECTORY ${folder}/
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/flare/${folder}
    COMPONENT Development
    FILES_MATCHING PATTERN "*.h" PATTERN "*.proto"
    PATTERN "testing" EXCLUDE
    PATTERN "models" EXCLUDE
    PATTERN "protobuf_utf8" EXCLUDE
    PATTERN "wire/*.proto" EXCLUDE
    PATTERN "*_testing.h" EXCLUDE
    PATTERN "*_fuzzing.h" EXCLUDE
    REGEX "/rpc/start/init(\\.h)?$" EXCLUDE)
endforeach()

if(FLARE_BUILD_RPC)
  install(FILES rpc/start/init.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/flare
    COMPONENT Development)
  install(DIRECTORY rpc/start/init DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/flare
    COMPONENT Development FILES_MATCHING PATTERN "*.h")
  install(FILES ${flare_BINARY_DIR}/include/flare/rpc/rpc_options.pb.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/flare/rpc
    COMPONENT Development)
  install(TARGETS flare_rpc flare_mock flare_recording flare_services
    flare_tracing protoc-gen-flare-rpc EXPORT flare-rpc-targets)
  install(EXPORT flare-rpc-targets NAMESPACE flare::
    DESTINATION ${config_folder} COMPONENT Development)
  install(FILES cmake/flare-generate-services.cmake
    DESTINATION ${config_folder} COMPONENT Development)
endif()

install(EXPORT flare-targets NAMESPACE flare::
  DESTINATION ${config_folder} COMPONENT Development)
configure_package_config_file(cmake/flare-config.cmake.in
  ${flare_BINARY_DIR}/flare-config.cmake
  INSTALL_DESTINATION ${config_folder}
  PATH_VARS CMAKE_INSTALL_INCLUDEDIR)
# Before 1.0 each minor version may change interfaces.
write_basic_package_version_file(${flare_BINARY_DIR}/flare-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${flare_BINARY_DIR}/flare-config.cmake
  ${flare_BINARY_DIR}/flare-config-version.cmake
  cmake/flare-dependencies.cmake
  DESTINATION ${config_folder} COMPONENT Development)

# flare-<name>.pc for each library.
function(flare_pkg_config name)
  cmake_parse_arguments(PARSE_ARGV 1 pc "" "DESCRIPTION;VARIABLES"
    "REQUIRES;PRIVATE_REQUIRES;PRIVATE_LIBS")
  list(JOIN FLARE_FIBER_OPTIONS " " pc_options)
  list(JOIN pc_REQUIRES ", " pc_REQUIRES)
  list(JOIN pc_PRIVATE_REQUIRES ", " pc_PRIVATE_REQUIRES)
  list(JOIN pc_PRIVATE_LIBS " " pc_PRIVATE_LIBS)
  if(NOT BUILD_SHARED_LIBS)
    # A static library needs them at every link: no "pkg-config --static".
    string(JOIN ", " pc_REQUIRES ${pc_REQUIRES} ${pc_PRIVATE_REQUIRES})
    set(pc_PRIVATE_REQUIRES "")
    string(PREPEND pc_PRIVATE_LIBS " ")
    set(pc_LIBS "${pc_PRIVATE_LIBS}")
    set(pc_PRIVATE_LIBS "")
  endif()
  configure_file(cmake/flare.pc.in ${flare_BINARY_DIR}/flare-${name}.pc @ONLY)
  install(FILES ${flare_BINARY_DIR}/flare-${name}.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT Development)
endfunction()

flare_pkg_config(base
  DESCRIPTION "Buffers, pools, clocks, futures"
  REQUIRES libglog
  PRIVATE_REQUIRES gflags liblz4 libzstd numa snappy zlib
  PRIVATE_LIBS -lbacktrace -pthread)
flare_pkg_config(fiber
  DESCRIPTION "M:N fibers, and what they wait on"
  REQUIRES "flare-base = ${PROJECT_VERSION}")
flare_pkg_config(io
  DESCRIPTION "Epoll, sockets and connections for fibers"
  REQUIRES "flare-fiber = ${PROJECT_VERSION}"
  PRIVATE_REQUIRES libcrypto libssl)
if(FLARE_BUILD_RPC)
  flare_pkg_config(rpc
    DESCRIPTION "RPC servers and clients on fibers"
    VARIABLES
      "protoc_gen_flare_rpc=${CMAKE_INSTALL_FULL_BINDIR}/protoc-gen-flare-rpc\n"
    REQUIRES "flare-io = ${PROJECT_VERSION}" gflags protobuf
    PRIVATE_LIBS -lresolv)
  flare_pkg_config(mock
    DESCRIPTION "Mocks of calls, for tests"
    REQUIRES "flare-rpc = ${PROJECT_VERSION}")
  flare_pkg_config(recording
    DESCRIPTION "Recordings of calls"
    REQUIRES "flare-rpc = ${PROJECT_VERSION}")
  flare_pkg_config(services
    DESCRIPTION "Stock services: health checks, reflection"
    REQUIRES "flare-rpc = ${PROJECT_VERSION}")
  flare_pkg_config(tracing
    DESCRIPTION "Distributed traces: W3C Trace Context, OpenTelemetry"
    REQUIRES "flare-rpc = ${PROJECT_VERSION}")
endif()

if(FLARE_BUILD_RPC AND FLARE_BUILD_PROGRAMS)
  get_property(programs GLOBAL PROPERTY FLARE_PROGRAMS)
  install(TARGETS ${programs} RUNTIME COMPONENT Programs)
  if(FLARE_BUILD_MANUALS)
    find_package(Python3 REQUIRED COMPONENTS Interpreter)
    set(folder ${flare_BINARY_DIR}/manuals)
    set(manuals)
    foreach(program IN LISTS programs)
      add_custom_command(OUTPUT ${folder}/${program}.1 ${folder}/${program}
        COMMAND Python3::Interpreter ${flare_SOURCE_DIR}/tools/program_docs
          $<TARGET_FILE:${program}> ${folder}
        DEPENDS ${program} ${flare_SOURCE_DIR}/tools/program_docs
        VERBATIM)
      list(APPEND manuals ${folder}/${program}.1)
      install(FILES ${folder}/${program}.1
        DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT Programs)
      install(FILES ${folder}/${program}
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
        COMPONENT Programs)
    endforeach()
    add_custom_target(flare_manuals ALL DEPENDS ${manuals})
  endif()
endif()


if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(uninstall
    COMMAND ${CMAKE_COMMAND}
      -DMANIFEST=${flare_BINARY_DIR}/install_manifest.txt
      -P ${flare_SOURCE_DIR}/cmake/uninstall.cmake
    VERBATIM)
endif()
