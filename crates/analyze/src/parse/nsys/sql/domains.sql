-- One row per NVTX domain and process: the event that created it (type 75).
--   thread             identifies the process: ids of domains are unique per process
select {domainId} as domain, {globalTid} as thread, {text} as text, {textId} as text_id
from NVTX_EVENTS
where {eventType} = 75
