-- Facts about the profiled host, by name.
select {name} as name, cast({value} as text) as value
from TARGET_INFO_SYSTEM_ENV
where {name} in ('CpuDescription', 'CpuCores', 'OsDescription', 'SoftwareReleaseVersion',
    'NvDriverVersion', 'CudaDriverVersion')
limit 100
