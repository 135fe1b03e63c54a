-- One row per metric that was sampled, by type of events: each device has a type of its own.
select {typeId} as type, {metricId} as metric, {metricName} as name
from TARGET_INFO_GPU_METRICS
limit 10000
