//! The exit statuses of commands, and the messages that go with them.

use std::process::ExitCode;

use rollpacker_dataflow::fault::Origin;

use crate::terminal;

/// Exit status for input that cannot be used, such as the command line, a recipe, a dataset, a model folder or a run folder.
pub(crate) const BAD_INPUT: u8 = 2;

/// Prints the reason why the input cannot be used, and returns the exit status [`BAD_INPUT`].
pub(crate) fn bad_input(error: &anyhow::Error) -> ExitCode {
    terminal::error(error);
    ExitCode::from(BAD_INPUT)
}

/// Prints advice for an error that ended a run, and returns the exit status of a failure.
pub(crate) fn failed(origin: Origin) -> ExitCode {
    terminal::warn(match origin {
        Origin::User => {
            "note: the cause is the input (settings, data, model or a stage of your own); another attempt fails in the same way"
        }
        Origin::Environment => {
            "note: the cause is outside of this program (disk, memory, network, a server or another process); once it is mended, \
             `--resume latest` continues a run with snapshots (`trainer.save_freq`)"
        }
        Origin::Program => {
            "note: the cause is a defect of this program or of a stage, or is unknown; please report it with the recipe and this message"
        }
    });
    ExitCode::FAILURE
}

#[cfg(all(test, feature = "torch"))]
mod tests {
    use std::collections::BTreeSet;

    use super::super::signals;
    use super::*;
    use crate::lifetime::ENDED_EARLY;

    #[test]
    fn the_page_of_exit_statuses_has_every_status() {
        let page = include_str!("../../docs/exit-statuses.md");
        let statuses = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |"));
        let listed: BTreeSet<u8> = statuses.filter_map(|(status, _)| status.parse().ok()).collect();
        // `ExitCode::SUCCESS`, `ExitCode::FAILURE` and the status after a panic of the main thread have no constant of their own here.
        let returned = BTreeSet::from([0, 1, BAD_INPUT, ENDED_EARLY, 101, signals::INTERRUPTED]);
        assert_eq!(listed, returned);
    }
}
