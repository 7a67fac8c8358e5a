-- Exports without DIAGNOSTIC_EVENT (before schema 3.1x) keep the profiler's words among the strings, without severity
-- or process. One row each, shaped as in diagnostics.sql.
SELECT NULL AS severity, value AS text, NULL AS globalPid
FROM string
WHERE value LIKE '%CUPTI%' OR value LIKE '%events might have been collected%' OR value LIKE '%were discarded%'
