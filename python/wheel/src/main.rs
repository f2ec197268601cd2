//! The program of the Python wheel, which has no path to libtorch of its own.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    rollpacker::App::new().main()
}
