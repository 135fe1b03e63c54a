-- One row per process that the tool saw; most have no traced work.
select {globalPid} as process, {name} as name from PROCESSES
