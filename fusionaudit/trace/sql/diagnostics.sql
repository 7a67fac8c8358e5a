-- What the profiler says about the recording: severity (1 information, 2 warning, 3 error), text, process.
SELECT severity, text, globalPid FROM diagnostic WHERE text IS NOT NULL
