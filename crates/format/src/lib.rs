//! Bytes on disk. No I/O, no clock, no lock. Shared by the engine and the checker.
