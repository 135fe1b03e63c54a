-- Kinds of the profiler's own work, each once.
select distinct {nameId} as name from PROFILER_OVERHEAD
limit 1000
