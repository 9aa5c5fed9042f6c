//! The program, run as a process, on a backend of the tests' own.

mod backend;
mod bench;
mod documents;
#[path = "../../../front/tests/front/memory_fs.rs"]
#[allow(dead_code)]
mod memory_fs;
mod program;
