-- Wall-clock time of the zero of all times.
select cast({utcEpochNs} as integer) as started_unix_ns
from TARGET_INFO_SESSION_START_TIME
where {utcEpochNs} is not null
limit 1
