# Sourced by the scripts of this folder; not a program.
#
# Provides: strict mode, $repo (the top of the checkout, and the working
# directory), help_for, say, die, and bazel with its noise filtered out.

set -euo pipefail

repo="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$repo"

# Bazel keeps its caches under the home directory.
export HOME="${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}"

say() { printf '\n== %s\n' "$*" >&2; }

# Prints the comment at the top of the script and exits, if it is asked to by -h
# or --help as its first argument: help_for "$@".
help_for() {
  [[ "${1:-}" == -h || "${1:-}" == --help ]] || return 0
  sed -n '2,/^$/s/^# \{0,1\}//p' "tools/$(basename "$0")"
  exit 0
}

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# Runs Bazel without the Java runtime's warnings about Bazel itself. The exit
# status is Bazel's.
quiet_bazel() {
  local noise='^OpenJDK .*warning|^WARNING: (An illegal reflective access'
  noise+='|Illegal reflective access|Use --illegal-access|All illegal access'
  noise+='|Please consider reporting|A terminally deprecated|System::'
  noise+='|sun\.misc)'
  local status=0
  # Only standard error goes through the filter.
  {
    bazel "$@" 2>&1 >&3 3>&- |
      { grep --line-buffered -vE "$noise" >&2 || true; } ||
      status="${PIPESTATUS[0]}"
  } 3>&1
  return "$status"
}

# Flags by which Bazel's output suits a log rather than a terminal.
bazel_flags=(--noshow_progress --color=no --curses=no)
if [[ -t 2 && "${CI:-}" != true ]]; then
  bazel_flags=(--color=auto)
fi
