-- The innermost function of each sample, with its file; `unresolved` if it is an address.
select {id} as sample, {symbol} as symbol, {module} as module, {unresolved} as unresolved
from SAMPLING_CALLCHAINS
where {stackDepth} = 0
