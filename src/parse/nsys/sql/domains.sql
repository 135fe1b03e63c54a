-- One row per NVTX domain and process: the event that created it (type 75).
--   thread             the domain's id counts per process, and this tells which
select {domainId} as domain, {globalTid} as thread, {text} as text, {textId} as text_id
from NVTX_EVENTS
where {eventType} = 75
