//! Tests of the whole system, by behaviour: one folder and one binary for each area.
