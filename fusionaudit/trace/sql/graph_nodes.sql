-- Creations of CUDA graph nodes: time, globalTid, node, and the node it was cloned from (NULL for captured ones).
-- CUDA_GRAPH_EVENTS up to schema 3.1x, CUDA_GRAPH_NODE_EVENTS after.
SELECT start, globalTid, graphNodeId, originalGraphNodeId
FROM graph_node
WHERE graphNodeId IS NOT NULL
ORDER BY start
