"""The workloads behind the published tables, and the code that runs and prints
them.

tools/tables is the command; docs/tables/README.md says how to use it. The
modules:

  model        a workload: rows to measure, tables and plots to make
  echo, trpc, web, brpc, proxy   the workloads, by the document they come from
  published    the published figures
  servers      starts our programs and the baselines
  peers        starts programs of others
  loads        puts load on them: press, wrk; and reads their reports
  processes    child processes: start, wait, account, end
  histogram    latencies
  store        results as they come, so that a run can be resumed
  runner       measures rows that are not in the store, interleaved
  summary      medians and spreads; the JSON of --json
  report       Markdown
  plots        SVG and PNG, if matplotlib is there
  command      the command line
"""
