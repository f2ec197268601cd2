//! The command line program.

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    rollpacker::stop_on_panic();
    match rollpacker::cli::run() {
        Ok(code) => code,
        Err(error) => {
            // A standard error that is closed has no reader.
            drop(writeln!(std::io::stderr(), "error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
