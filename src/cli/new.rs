//! `rollpacker new`: creates a crate that adds entries to the program.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use super::exit_status::bad_input;
use crate::new_crate::create;
use crate::terminal;

/// The arguments of `rollpacker new`.
#[derive(Debug, clap::Args)]
pub(crate) struct NewArgs {
    /// Name of the crate, and of the folder in which it is created.
    name: String,
    /// Checkout of rollpacker that the crate depends on, or the URL of its git repository [default: the checkout that this program was
    /// built from].
    #[arg(long, value_name = "PATH|URL", default_value = env!("CARGO_MANIFEST_DIR"), hide_default_value = true)]
    rollpacker: String,
}

pub(crate) fn run(args: &NewArgs) -> anyhow::Result<ExitCode> {
    match create(Path::new("."), &args.name, &args.rollpacker) {
        Ok(folder) => {
            let text = format!("created {}; its README.md has the next commands", folder.display());
            terminal::print_line(&text).context("cannot print")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Ok(bad_input(&error.into())),
    }
}
