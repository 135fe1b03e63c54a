-- One row per NVTX range: push/pop (type 59) or start/end (type 60).
--   text, text_id      the name, inline or as a registered string
--   end_ns             null when the capture ended first
select {start} as start_ns, {end} as end_ns, {eventType} = 59 as push_pop, {domainId} as domain,
    {globalTid} as thread,
       {text} as text, {textId} as text_id
from NVTX_EVENTS
where {eventType} in (59, 60)
