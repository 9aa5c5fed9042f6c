//! Files as programs know them: the operations that front ends call.

pub mod api;
