-- Messages on samples that were lost because a buffer was full, each text once.
select distinct {text} as text from DIAGNOSTIC_EVENT
where {text} like '%GPU Metrics%' and {text} like '%overflow%'
limit 100
