//! Response lengths that are given instead of sampled.

use std::path::{Path, PathBuf};

use rollpacker_dataflow::step::{SampleId, Step};

/// Lengths of responses by step and launch order, including the end-of-sequence token.
///
/// An engine that replays these lengths ends each response exactly at its length and never earlier, so that two systems or schedules can be
/// compared on the same work. The `k`-th response launched in a step has the step's `k`-th length: if whole groups are launched prompt by
/// prompt, that is `prompt_index_in_step * samples + sample`. After the last step, the lengths start again with the first step. After the
/// last length of a step, the launches start again with its first length. Resuming a response is not a launch: the response keeps the
/// length that it was launched with, which includes the tokens that it was resumed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lengths(Vec<Vec<u32>>);

/// The reason why lengths cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum LengthsError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// The path of the file of lengths.
        path: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// The file is not a JSON list of lists of numbers.
    #[error("{path}: expected a list of steps, each a list of lengths: {error}")]
    Json {
        /// The path of the file of lengths.
        path: PathBuf,
        /// The position and cause of the error.
        error: serde_json::Error,
    },
    /// The lengths have no step.
    #[error("lengths to replay: expected at least one step, found none")]
    NoSteps,
    /// A step has no lengths.
    #[error("lengths to replay: step {step} is empty")]
    EmptyStep {
        /// Index of the step, from 0.
        step: usize,
    },
    /// A response would have no token.
    #[error("lengths to replay: step {step}, response {launch}: expected at least 1, found 0")]
    Zero {
        /// Index of the step, from 0.
        step: usize,
        /// Index of the response in its step, from 0.
        launch: usize,
    },
}

impl Lengths {
    /// Creates lengths by step and launch.
    ///
    /// # Errors
    /// Returns an error if there is no step, a step without a length, or a length of 0.
    pub fn new(steps: Vec<Vec<u32>>) -> Result<Self, LengthsError> {
        if steps.is_empty() {
            return Err(LengthsError::NoSteps);
        }
        for (step, lengths) in steps.iter().enumerate() {
            if lengths.is_empty() {
                return Err(LengthsError::EmptyStep { step });
            }
            if let Some(launch) = lengths.iter().position(|length| *length == 0) {
                return Err(LengthsError::Zero { step, launch });
            }
        }
        Ok(Self(steps))
    }

    /// Reads a JSON file: a list of steps, each a list of lengths in launch order.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not a list of this form. Also returns the errors of [`new`](Self::new).
    pub fn read(path: &Path) -> Result<Self, LengthsError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| LengthsError::Read { path: path.to_owned(), error })?;
        let steps = serde_json::from_str(&text)
            .map_err(|error| LengthsError::Json { path: path.to_owned(), error })?;
        Self::new(steps)
    }

    /// Returns the length, in tokens, of the `launch`-th response, from 0, that is launched in `step`.
    #[must_use]
    pub fn get(&self, step: Step, launch: u64) -> u32 {
        let lengths = get_cyclic(&self.0, step.0);
        *get_cyclic(lengths, launch)
    }

    /// Returns the length, in tokens, of a response by its id. The length is drawn by prompt and sample from the lengths of the step,
    /// independent of where and in which order responses are launched. Some lengths of a step are drawn several times and some not at all.
    #[must_use]
    pub fn of(&self, launched: SampleId) -> u32 {
        let SampleId { step, prompt, sample } = launched;
        self.get(step, mix_bits(mix_bits(prompt.0) ^ u64::from(sample)))
    }
}

/// Mixes the bits of a number, so that close numbers become unrelated (the finalizer of MurmurHash3).
fn mix_bits(number: u64) -> u64 {
    let folded = (number ^ (number >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let folded = (folded ^ (folded >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    folded ^ (folded >> 33)
}

fn get_cyclic<T>(cycle: &[T], index: u64) -> &T {
    &cycle[(index % cycle.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use rollpacker_dataflow::step::PromptId;

    use super::*;

    #[test]
    fn the_kth_launch_takes_the_kth_length() {
        let lengths = Lengths::new(vec![vec![5, 6, 7], vec![8, 9]]).unwrap();
        assert_eq!([0, 1, 2, 3].map(|launch| lengths.get(Step(0), launch)), [5, 6, 7, 5]);
        assert_eq!(lengths.get(Step(1), 1), 9);
        assert_eq!(lengths.get(Step(2), 1), 6);
    }

    #[test]
    fn lengths_by_id_are_spread_over_the_step() {
        let lengths = Lengths::new(vec![(1..=64).collect(), vec![100]]).unwrap();
        let of = |step, prompt, sample| {
            lengths.of(SampleId { step: Step(step), prompt: PromptId(prompt), sample })
        };
        let drawn: std::collections::BTreeSet<u32> =
            (0..64).map(|response| of(0, response / 8, response as u32 % 8)).collect();
        assert!((30..55).contains(&drawn.len()), "about 1 - 1/e of them: {drawn:?}");
        assert_eq!((of(1, 3, 4), of(2, 3, 4)), (100, of(0, 3, 4)));
    }

    #[test]
    fn a_file_is_read_and_defects_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lengths.json");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Lengths::read(&path)
                .map_err(|error| error.to_string().replace(path.to_str().unwrap(), "FILE"))
        };
        assert_eq!(read("[[1, 2], [3]]"), Ok(Lengths(vec![vec![1, 2], vec![3]])));
        assert_eq!(
            read("[]").unwrap_err(),
            "lengths to replay: expected at least one step, found none"
        );
        assert_eq!(read("[[1], []]").unwrap_err(), "lengths to replay: step 1 is empty");
        assert_eq!(
            read("[[1, 0]]").unwrap_err(),
            "lengths to replay: step 0, response 1: expected at least 1, found 0"
        );
        assert!(read("[1]").unwrap_err().starts_with("FILE: expected a list of steps"));
    }
}
