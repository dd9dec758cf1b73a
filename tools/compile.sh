# Sourced by scripts that compile base and fiber without Bazel, for other
# machines or by other compilers; after lib.sh.
#
# `compiler` is an array, the compiler and its flags; `build` a folder for
# objects, kept between runs.

# The headers of others, which take most of the time, are compiled once in each
# run (a second compiler reads them as they are): leftovers of another compiler,
# or of the same one with other flags, would be an error.
prepare_compile() {  # [flag...]
  mkdir -p "$build/include"
  local header="$build/include/precompiled.h"
  printf '#include <%s>\n' algorithm atomic chrono condition_variable deque \
    functional map memory mutex optional random stop_token string thread \
    unordered_map vector glog/logging.h gtest/gtest.h > "$header"
  rm -f "$header.gch"
  "${compiler[@]}" "$@" -x c++-header "$header" -o "$header.gch"
}

# Compiles one file of the tree or below `build`, unless its object is newer
# than all it was made of, and than the scripts that say how.
compile() {  # <source> <object> [flag...]
  local source="$1" object="$2"
  [[ -e "$source" ]] || source="$build/$source"
  if [[ -e "$object" && -e "$object.d" ]]; then
    local parts
    parts="$(sed -e 's/^[^:]*://' -e 's/\\$//' "$object.d")"
    # shellcheck disable=SC2086  # One word for each file.
    [[ -n "$(find $parts "$0" tools/compile.sh -newer "$object" 2>&1 |
      head -n 1)" ]] || return 0
  fi
  mkdir -p "$(dirname "$object")"
  rm -f "$object"
  local precompiled=(-include "$build/include/precompiled.h")
  [[ "$1" != *.S ]] || precompiled=()
  "${compiler[@]}" -MMD -MF "$object.d" "${precompiled[@]}" \
    -I"$repo/include" -I"$repo" "${@:3}" -c "$source" -o "$object"
}

# Prints what to compile, without tests: for each folder one file below `build`
# that includes all of its C++ files, since headers take most of the time.
sources_of_base_and_fiber() {
  local folder one
  for folder in base fiber; do
    one="as_one_source/$folder.cc"
    mkdir -p "$build/as_one_source"
    # base/ is flat: folders below it belong to other programs.
    find "$folder" -name '*.cc' -not -path '*/testing/*' -not -path 'base/*/*' |
      sort |
      grep -vE '_(test|benchmark)\.cc$' |
      sed 's/.*/#include "&"/' > "$build/$one.new"
    # Its time stays if nothing has changed.
    cmp -s "$build/$one.new" "$build/$one" || cp "$build/$one.new" "$build/$one"
    echo "$one"
  done
  ls fiber/*/*.S
}
