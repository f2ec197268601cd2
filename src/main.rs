//! The command line program.

use std::process::ExitCode;

fn main() -> ExitCode {
    rollpacker::stop_on_panic();
    rollpacker::cli::run()
}
