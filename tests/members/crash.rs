//! Power cuts of a mirror: at every event of a workload, whatever each member kept of what it had
//! not flushed, and whichever of them is missing afterwards.
