-- The GPUs of the machine and what the export knows of each. cudaId and pid (where the export has the mapping) say
-- which device number a process calls it by.
SELECT
    g.id, g.name, g.memoryBandwidth, g.smCount, g.l2CacheSize, g.totalMemory, g.maxRegistersPerSm, g.maxShmemPerSm,
    g.maxShmemPerBlock, g.maxShmemPerBlockOptin, g.maxWarpsPerSm, g.threadsPerWarp, g.maxBlocksPerSm,
    g.computeMajor, g.computeMinor, COALESCE(d.cudaId, g.cuDevice, g.id) AS cuda_id, d.pid
FROM gpu AS g
LEFT JOIN cuda_device AS d ON d.gpuId = g.id
