//! Locks that a simulated run can schedule.
