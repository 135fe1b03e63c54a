-- One row per kind of events that nsys was to record: `Cuda`, `NvtxEvents`, `OSRuntime`.
select {value} as value from META_DATA_CAPTURE
where {name} = 'CAPTURE_EVENT_TYPE'
limit 100
