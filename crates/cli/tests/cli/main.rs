//! The program, run as a process, on a backend of the tests' own; the commands of the documents, on
//! real pools.

mod backend;
mod documents;
#[path = "../../../front/tests/front/memory_fs.rs"]
#[allow(dead_code)]
mod memory_fs;
mod program;
