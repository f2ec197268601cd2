//! The program of the Python wheel. Unlike the other binaries, it has no built-in search path for libtorch.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    rollpacker::App::new().main()
}
