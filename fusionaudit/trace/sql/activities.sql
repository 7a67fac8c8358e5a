-- Every kernel, copy and fill on the device, in order of start. One row each:
--   kind, start, end (ns), device, stream, correlation, pid (serialized GlobalId), name, grid, block, registers,
--   static and dynamic shared memory and local memory per thread (bytes), graph node, bytes, copy kind.
-- The views kernel, memcpy and memset have every column below; where the export lacks one it is NULL
-- (fusionaudit/trace/nsys_tables.py makes them).
SELECT
    'kernel' AS kind, k.start, k."end", k.deviceId, k.streamId, k.correlationId, k.globalPid,
    COALESCE(demangled.value, short.value, mangled.value) AS name,
    k.gridX, k.gridY, k.gridZ, k.blockX, k.blockY, k.blockZ,
    k.registersPerThread, k.staticSharedMemory, k.dynamicSharedMemory, k.localMemoryPerThread,
    k.graphNodeId, NULL AS bytes, NULL AS copy_kind
FROM kernel AS k
LEFT JOIN string AS demangled ON demangled.id = k.demangledName
LEFT JOIN string AS short ON short.id = k.shortName
LEFT JOIN string AS mangled ON mangled.id = k.mangledName
UNION ALL
SELECT
    'memcpy', m.start, m."end", m.deviceId, m.streamId, m.correlationId, m.globalPid, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    m.graphNodeId, m.bytes, m.copyKind
FROM memcpy AS m
UNION ALL
SELECT
    'memset', s.start, s."end", s.deviceId, s.streamId, s.correlationId, s.globalPid, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    s.graphNodeId, s.bytes, NULL
FROM memset AS s
ORDER BY 2, 3
