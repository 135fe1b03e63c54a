-- One row per named thread, with the id of the name in StringIds.
select {globalTid} as thread, {nameId} as name from ThreadNames
