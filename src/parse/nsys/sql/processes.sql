-- One row per process that the tool saw; most of them did nothing that was traced.
select {globalPid} as process, {name} as name from PROCESSES
