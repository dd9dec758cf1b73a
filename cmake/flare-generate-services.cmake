# flare_generate_services(TARGET <target> PROTOS <file>...
#                         [BASE <folder>] [IMPORTS <folder>...]
#                         [MESSAGES_ONLY])
#
# Adds to <target>, a library or a program, the C++ code of .proto files: their
# messages, and services and stubs for flare. For dir/x.proto these are
# "dir/x.pb.h" and "dir/x.flare.pb.h". Targets that link a library made so can
# include these headers, too.
#
# BASE is the folder that paths of .proto files and of headers start from:
# by default the one that holds the CMakeLists.txt. .proto files are imported
# from there, from the folders in IMPORTS, and as "flare/rpc/rpc_options.proto"
# from flare itself. MESSAGES_ONLY leaves "x.flare.pb.h" out.
function(flare_generate_services)
  cmake_parse_arguments(PARSE_ARGV 0 arg "MESSAGES_ONLY" "TARGET;BASE"
    "PROTOS;IMPORTS")
  if(arg_UNPARSED_ARGUMENTS OR arg_KEYWORDS_MISSING_VALUES OR NOT arg_TARGET OR
      NOT arg_PROTOS)
    message(FATAL_ERROR "usage: flare_generate_services(TARGET <target> "
      "PROTOS <file>... [BASE <folder>] [IMPORTS <folder>...] "
      "[MESSAGES_ONLY])")
  endif()
  set(base "${CMAKE_CURRENT_SOURCE_DIR}")
  if(arg_BASE)
    get_filename_component(base "${arg_BASE}" ABSOLUTE)
  endif()
  set(out "${CMAKE_CURRENT_BINARY_DIR}/${arg_TARGET}_generated")

  # The base comes first: protoc names the outputs by the path below it.
  set(command protobuf::protoc "--proto_path=${base}")
  foreach(folder IN LISTS arg_IMPORTS)
    get_filename_component(folder "${folder}" ABSOLUTE)
    list(APPEND command "--proto_path=${folder}")
  endforeach()
  get_target_property(flare_includes flare::rpc FLARE_PROTO_PATH)
  list(APPEND command "--proto_path=${flare_includes}" "--cpp_out=${out}")
  set(extensions .pb)
  set(tools protobuf::protoc)
  if(NOT arg_MESSAGES_ONLY)
    list(APPEND command
      "--plugin=protoc-gen-flare-rpc=$<TARGET_FILE:flare::protoc-gen-flare-rpc>"
      "--flare-rpc_out=${out}")
    list(APPEND extensions .flare.pb)
    list(APPEND tools flare::protoc-gen-flare-rpc)
  endif()

  foreach(proto IN LISTS arg_PROTOS)
    get_filename_component(proto "${proto}" ABSOLUTE)
    file(RELATIVE_PATH stem "${base}" "${proto}")
    if(stem MATCHES "^\\.\\./" OR NOT stem MATCHES "\\.proto$")
      message(FATAL_ERROR "flare_generate_services: ${proto} should be a "
        ".proto file below ${base}; BASE names another folder.")
    endif()
    string(REGEX REPLACE "\\.proto$" "" stem "${stem}")
    set(outputs)
    foreach(extension IN LISTS extensions)
      list(APPEND outputs "${out}/${stem}${extension}.cc"
        "${out}/${stem}${extension}.h")
    endforeach()
    # The file that protoc writes says what the .proto file imports.
    set(depfile "${out}/${stem}.d")
    add_custom_command(OUTPUT ${outputs}
      COMMAND ${CMAKE_COMMAND} -E make_directory "${out}"
      COMMAND ${command} "--dependency_out=${depfile}" "${proto}"
      DEPENDS "${proto}" ${tools}
      DEPFILE "${depfile}"
      COMMENT "Generating ${stem}.pb and its services"
      VERBATIM)
    # Files that protobuf 22 and later generates use the same names.
    set_source_files_properties(${outputs} PROPERTIES
      SKIP_UNITY_BUILD_INCLUSION ON)
    target_sources(${arg_TARGET} PRIVATE ${outputs})
  endforeach()

  get_target_property(type ${arg_TARGET} TYPE)
  set(visibility PUBLIC)
  if(type STREQUAL "EXECUTABLE")
    set(visibility PRIVATE)
  endif()
  # Compilers don't warn of generated code that others include.
  target_include_directories(${arg_TARGET} SYSTEM ${visibility}
    $<BUILD_INTERFACE:${out}>)
  if(arg_MESSAGES_ONLY)
    target_link_libraries(${arg_TARGET} ${visibility} protobuf::libprotobuf)
  else()
    target_link_libraries(${arg_TARGET} ${visibility} flare::rpc)
  endif()
endfunction()
