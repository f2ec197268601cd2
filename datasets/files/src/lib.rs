//! Output files that appear when they are complete, and never replace a device, a link or an input.
//!
//! Commands that may replace files write them through this crate. A [`NewFile`] is written next to its final path under a temporary name,
//! and renamed to the final path when it is complete: readers see the previous file or the new one, and a failed run leaves the previous
//! file as it was. The path must be free or hold a regular file. [`Inputs`] holds the identities of the files that a command reads, so that
//! the command can refuse to replace one of them, whatever path leads to it. [`open`] and [`read`] refuse what is not a regular file.
//!
//! ```
//! use std::io::Write;
//!
//! use rollpacker_files::{Inputs, NewFile};
//!
//! let folder = tempfile::tempdir()?;
//! let (input, output) = (folder.path().join("in.txt"), folder.path().join("out.txt"));
//! std::fs::write(&input, "rows")?;
//!
//! let inputs = Inputs::of([&input]);
//! assert!(inputs.check_output(&input).is_err());
//! inputs.check_output(&output)?;
//! let mut file = NewFile::create(&output)?;
//! file.write_all(b"scores")?;
//! assert!(!output.exists());
//! file.finish()?;
//! assert_eq!(std::fs::read_to_string(&output)?, "scores");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod inputs;
mod new_file;
mod regular;

pub use error::FileError;
pub use inputs::{Inputs, is_same_file};
pub use new_file::{NewFile, check_replaceable, copy, remove_abandoned, write};
pub use regular::{kind, open, read, read_to_string};
