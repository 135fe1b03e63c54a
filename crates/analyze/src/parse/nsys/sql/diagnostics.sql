-- Messages of the tool: errors (3), then warnings (2), each text once.
select {text} as text
from DIAGNOSTIC_EVENT
where {severity} in (2, 3)
group by {text}
order by max({severity}) desc, min({timestamp})
limit 100
