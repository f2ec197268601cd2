//! The reward `math`: verification of a mathematical answer.

use rollpacker_math::Verifier;
use rollpacker_stages::catalog::{About, CatalogError, OptionDocs};
use rollpacker_stages::documented::Field;
use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};
use serde::{Deserialize, Serialize};

/// 1 if the final answer of a response equals the ground truth by mathematical value, otherwise 0. The options are the fields of
/// [`Verifier`].
///
/// A dataset row can override the options in the object `math` of its `extra_info`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Math(pub Verifier);

/// The maximum of `precision`, in decimal places.
const MAX_DECIMALS: u32 = 30;

/// The documentation of the options of [`Verifier`], whose crate does not depend on [`documented`](rollpacker_stages::documented!).
const OPTIONS: [Field; 8] = [
    Field::new(
        "answer",
        &[
            "The position of the answer: the last `<answer>` (`tag`), the text after the last `</think>` (`after_think`), the whole response (`response`), or the text after the last `</think>` if it is not blank and otherwise the whole response (`auto`).",
        ],
    ),
    Field::new(
        "last_number",
        &[
            "`true` if the last formula or number of a response without a marker counts as its answer.",
        ],
    ),
    Field::new(
        "targets",
        &[
            "The accepted notations of answers: `latex`, `expr` or both. (Math-Verify: `match_types`)",
        ],
    ),
    Field::new(
        "precision",
        &[
            "The number of decimal places to which numbers with a decimal point are rounded before they are compared. From 0 to 30.",
        ],
    ),
    Field::new("strict", &["`true` if the names of variables matter and sets differ from tuples."]),
    Field::new(
        "relation_for_set",
        &[
            "`true` if an inequality may answer a truth that is a set. A set may always answer an inequality. (Math-Verify: `allow_set_relation_comp`)",
        ],
    ),
    Field::new(
        "boxed_priority",
        &[
            "The priority of boxes and other markers: 0 is that of \"the final answer is ... I hope\", 50 that of \"the final answer is\". Boxes are ignored if it is negative. (Math-Verify: `boxed_match_priority`)",
        ],
    ),
    Field::new("markers", &["`true` if `####`, `<answer>`, `Answer:` and `A:` mark answers."]),
];

impl Math {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About = About::new(
        &[],
        "answers that equal the ground truth by mathematical value",
        "this project",
    );

    /// The documentation of the reward `math_flexible`, which has no options, in a catalog.
    pub const FLEXIBLE: About = About::new(&[], "`math` with its defaults", "this project");

    /// Checks the options.
    ///
    /// # Errors
    /// If `precision` exceeds 30.
    pub fn checked(self) -> Result<Self, CatalogError> {
        match self.0.precision {
            0..=MAX_DECIMALS => Ok(self),
            found => Err(CatalogError::out_of_range("precision", "a number from 0 to 30", found)),
        }
    }

    /// Returns the documentation of the options.
    #[must_use]
    pub fn option_docs() -> OptionDocs {
        OptionDocs::new::<Self>(&OPTIONS)
    }
}

impl Reward for Math {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let truth = sample.truth()?;
        let correct = match sample.extra()?.remove("math") {
            None => self.0.is_correct(&sample.response, truth),
            Some(options) => {
                let invalid = |reason: &dyn std::fmt::Display| {
                    RewardError::fatal(format_args!("field `extra_info.math`: {reason}"))
                };
                let verifier = self.0.with(&options).map_err(|error| invalid(&error))?;
                let math = Self(verifier).checked().map_err(|error| invalid(&error))?;
                math.0.is_correct(&sample.response, truth)
            }
        };
        Ok(correct.into())
    }
}
