//! The kind of a fault, which decides how the processes of a run end.

use serde::{Deserialize, Serialize};

/// The kind of a fault. All processes of a run end with the exit status of the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The input of the run cannot be used. The run did not begin.
    BadInput,
    /// A service that the run needs was unavailable for too long. The run can be resumed when the service is available.
    Unavailable,
    /// Any other failure. A kind that the receiver does not know counts as a failure.
    #[default]
    #[serde(other)]
    Failure,
}

impl FaultKind {
    /// Returns the name of the kind, as in the column `kind`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::BadInput => "bad_input",
            Self::Unavailable => "unavailable",
            Self::Failure => "failure",
        }
    }

    /// Returns the kind with this name, or [`Failure`](Self::Failure) for an unknown name.
    pub(super) fn of_name(name: &str) -> Self {
        let known = [Self::BadInput, Self::Unavailable];
        known.into_iter().find(|kind| kind.as_str() == name).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use timely::progress::Timestamp;

    use super::super::{Fault, Origin, faults_batch, rows};
    use super::*;
    use crate::step::Step;

    #[test]
    fn kinds_survive_rows_and_messages() {
        for kind in [FaultKind::BadInput, FaultKind::Unavailable, FaultKind::Failure] {
            let fault = Fault { kind, ..Fault::new("rollout", Origin::Environment, "lost") };
            let row = rows(&faults_batch(std::slice::from_ref(&fault)), Step::minimum()).next();
            assert_eq!(row.expect("one").kind, kind);
            let text = serde_json::to_string(&fault).expect("JSON");
            assert_eq!(serde_json::from_str::<Fault>(&text).expect("a fault"), fault);
        }
    }

    #[test]
    fn a_message_with_an_unknown_kind_or_without_one_is_a_failure() {
        let message = |kind: &str| {
            format!(
                r#"{{"step":null,"operator":"o","origin":"user",{kind}"prompt":null,"sample":null,"message":"m"}}"#
            )
        };
        for kind in ["", r#""kind":"of_a_later_version","#] {
            let fault: Fault = serde_json::from_str(&message(kind)).expect("a fault");
            assert_eq!(fault.kind, FaultKind::Failure);
        }
        assert_eq!(FaultKind::of_name("of_a_later_version"), FaultKind::Failure);
    }
}
