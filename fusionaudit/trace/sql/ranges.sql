-- NVTX ranges: push/pop (59) and start/end (60) with a text, given inline or as a registered string.
-- One row each: start, end (ns; NULL where never closed), globalTid, text. Outer ranges before inner ones.
SELECT n.start, n."end", n.globalTid, COALESCE(n.text, s.value) AS text
FROM nvtx AS n
LEFT JOIN string AS s ON s.id = n.textId
WHERE n.eventType IN (59, 60) AND COALESCE(n.text, s.value) IS NOT NULL
ORDER BY n.start, n."end" DESC
