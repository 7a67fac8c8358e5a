-- CUDA API calls that matter: those with an activity (launches and copies), those that wait, those that launch.
-- One row each: start, end (ns), globalTid, correlation, name (cudaLaunchKernel_v7000). In order of start.
WITH used(id) AS (
    SELECT correlationId FROM kernel
    UNION SELECT correlationId FROM memcpy
    UNION SELECT correlationId FROM memset
)
SELECT r.start, r."end", r.globalTid, r.correlationId, s.value
FROM runtime AS r
LEFT JOIN string AS s ON s.id = r.nameId
WHERE r.correlationId IN (SELECT id FROM used WHERE id IS NOT NULL)
   OR s.value LIKE '%Synchronize%'
   OR s.value LIKE 'cu%Launch%'
ORDER BY r.start
