-- `SystemWide` if nsys recorded the threads of all processes, `ProcessTree` for one command.
select {value} as value from META_DATA_CAPTURE
where {name} = 'LINUX_PERF_OPTIONS:COLLECTION_MODE'
