-- Samples per second, as nsys was started.
select {value} as rate from META_DATA_CAPTURE
where {name} = 'GPU_METRICS_OPTIONS:SAMPLING_FREQUENCY'
limit 1
