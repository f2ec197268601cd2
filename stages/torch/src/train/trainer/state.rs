//! The state of a trainer as a file.
//!
//! | tensor | content |
//! |---|---|
//! | `version` | the policy version of the weights |
//! | `policy.NAME` | the weights |
//! | `policy.optimizer.mean`, `policy.optimizer.square` | the moments of AdamW, `[parameters]` |
//! | `policy.optimizer.updates` | the number of updates |
//! | `policy.optimizer.steps` | the position in the learning-rate schedule; absent if it is the number of updates |
//! | `critic...` | the same tensors of the critic, if there is one |
//! | `published.VERSION.NAME` | older policies that engines may still request |
//!
//! The state does not contain the configuration. It does not contain the reference of a KL divergence either: the reference is the initial
//! model, which is loaded from its folder again. Gradients are not included, since a state is saved at the end of a step and the gradients
//! of the next step are recomputed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_model::tensor_file::{Scalar, Stored, TensorFile, write};
use rollpacker_stages::rollout::Policy;
use rollpacker_stages::train::TrainError;
use tch::Tensor;

use super::TorchTrainer;
use crate::model::stored::{StoredTensor, check_like, read_like};
use crate::model::{TorchError, Weights};
use crate::train::optimizer::AdamW;

const VERSION: &str = "version";
const POLICY: &str = "policy";
const CRITIC: &str = "critic";
const PUBLISHED: &str = "published";
const UPDATES: &str = "updates";
const STEPS: &str = "steps";

/// The part of a state that is read before anything is overwritten.
struct SavedState {
    version: PolicyVersion,
    policy: Counts,
    /// The counts of the critic; `None` if there is no critic.
    critic: Option<Counts>,
    /// The older policies, in ascending order of their versions.
    older: Vec<(PolicyVersion, Weights)>,
}

/// The number of updates of an optimizer, and its position in the learning-rate schedule.
struct Counts {
    updates: u64,
    steps: u64,
}

impl Counts {
    fn read(file: &TensorFile, model: &str) -> Result<Self, TorchError> {
        let updates = count(file, &number(model, UPDATES))?;
        let steps = number(model, STEPS);
        let has_steps = file.names().contains(&steps);
        Ok(Self { updates, steps: if has_steps { count(file, &steps)? } else { updates } })
    }
}

impl TorchTrainer {
    /// Writes the state to `path`: the values that later updates depend on, and the older policies that engines may still request.
    pub(super) fn write_state(&mut self, path: &Path) -> Result<(), TrainError> {
        let numbers = self.numbers().into_iter();
        let numbers = numbers.map(|(name, number)| (name, Box::new(number) as Box<dyn Stored>));
        let version = self.version;
        let older = self.store.needed().into_iter().filter(|&(other, _)| other != version);
        let older = older.flat_map(|(version, weights)| published(version, &weights));
        let tensors = self.tensors().into_iter().chain(older);
        let tensors =
            tensors.map(|(name, tensor)| (name, Box::new(StoredTensor(tensor)) as Box<dyn Stored>));
        write(path, &numbers.chain(tensors).collect::<Vec<_>>()).map_err(TrainError::state)
    }

    /// Restores the state of the file `path`, and publishes its policies again, oldest first. Returns them in this order; the last is the
    /// current policy.
    ///
    /// The tensors that updates change are read one by one in place, so that memory holds them once. Everything else is read and checked
    /// before, including the names, types and shapes of these tensors. The restored state is incomplete only if the file becomes unreadable
    /// meanwhile.
    pub(super) fn read_state(&mut self, path: &Path) -> Result<Vec<Policy>, TrainError> {
        let file = TensorFile::open(path).map_err(TrainError::state)?;
        let older = self.check_state(&file).map_err(TrainError::state)?;
        let saved = self.read_saved(&file, older).map_err(TrainError::state)?;
        let older = self.restore(&file, saved).map_err(TrainError::state)?;
        let store = &self.store;
        let mut policies: Vec<_> =
            older.into_iter().map(|(version, weights)| store.publish(version, weights)).collect();
        policies.push(self.publish_version(self.version)?);
        Ok(policies)
    }

    /// Rejects the file of another model or algorithm before anything is overwritten. Returns the older versions in the file.
    fn check_state(&mut self, file: &TensorFile) -> Result<BTreeSet<PolicyVersion>, TorchError> {
        let names = file.names();
        let versions: BTreeSet<_> = names.iter().filter_map(|name| version_of(name)).collect();
        let mut tensors: BTreeMap<String, Tensor> = self.tensors().into_iter().collect();
        for &version in &versions {
            let name = |name: &str| published_name(version, name);
            let own = self.decoder.parameters().iter();
            tensors.extend(own.map(|(own, tensor)| (name(own), tensor.shallow_clone())));
        }
        let models = self.models();
        let numbers =
            models.iter().map(|&model| number(model, UPDATES)).chain([VERSION.to_owned()]);
        let steps = models.iter().map(|&model| number(model, STEPS));
        let steps = steps.filter(|name| names.contains(name));
        file.check_names(&tensors.keys().cloned().chain(numbers).chain(steps).collect())?;
        tensors.iter().try_for_each(|(name, like)| check_like(file, name, like))?;
        Ok(versions)
    }

    /// Reads the numbers of a state and its older policies, which have the versions `older`.
    fn read_saved(
        &self,
        file: &TensorFile,
        older: BTreeSet<PolicyVersion>,
    ) -> Result<SavedState, TorchError> {
        let older = older.into_iter();
        Ok(SavedState {
            version: PolicyVersion(count(file, VERSION)?),
            policy: Counts::read(file, POLICY)?,
            critic: self.critic.as_ref().map(|_| Counts::read(file, CRITIC)).transpose()?,
            older: older
                .map(|version| Ok((version, self.read_published(file, version)?)))
                .collect::<Result<_, TorchError>>()?,
        })
    }

    /// Replaces the state by `saved` and by the tensors of its file. Returns the older policies.
    fn restore(
        &mut self,
        file: &TensorFile,
        saved: SavedState,
    ) -> Result<Vec<(PolicyVersion, Weights)>, TorchError> {
        let SavedState { version, policy, critic, older } = saved;
        for (name, mut tensor) in self.tensors() {
            let values = read_like(file, &name, &tensor)?;
            tch::no_grad(|| tensor.f_copy_(&values))?;
        }
        self.optimizer.resume(policy.updates, policy.steps);
        if let (Some(own), Some(critic)) = (&mut self.critic, critic) {
            own.optimizer().resume(critic.updates, critic.steps);
        }
        self.version = version;
        Ok(older)
    }

    fn read_published(
        &self,
        file: &TensorFile,
        version: PolicyVersion,
    ) -> Result<Weights, TorchError> {
        let device = self.decoder.device();
        let read = |(name, like): &(String, Tensor)| {
            let values = read_like(file, &published_name(version, name), like)?;
            Ok((name.clone(), values.f_to_device(device)?))
        };
        Weights::new(self.decoder.parameters().iter().map(read).collect::<Result<_, TorchError>>()?)
    }

    /// Returns all tensors that updates change, by their names in the file. The tensors share their memory with the trainer.
    fn tensors(&mut self) -> Vec<(String, Tensor)> {
        let mut all = of_model(POLICY, self.decoder.parameters(), &self.optimizer);
        if let Some(critic) = &mut self.critic {
            let parameters: Vec<_> = critic.model().parameters().iter().map(share).collect();
            all.extend(of_model(CRITIC, &parameters, critic.optimizer()));
        }
        all
    }

    /// Returns all numbers that updates change, by their names in the file.
    fn numbers(&mut self) -> Vec<(String, Scalar)> {
        let mut all = vec![(VERSION.to_owned(), Scalar::Integer(self.version.0 as i64))];
        all.extend(counts(POLICY, &self.optimizer));
        all.extend(self.critic.iter_mut().flat_map(|critic| counts(CRITIC, critic.optimizer())));
        all
    }

    /// Returns the prefixes of the tensors' names: `policy`, and `critic` if there is one.
    fn models(&self) -> Vec<&'static str> {
        [POLICY].into_iter().chain(self.critic.as_ref().map(|_| CRITIC)).collect()
    }
}

/// Returns the number of updates of an optimizer, and its position in the learning-rate schedule unless the two are equal, as in runs with
/// one update per step.
fn counts(model: &str, optimizer: &AdamW) -> Vec<(String, Scalar)> {
    let (updates, steps) = (optimizer.updates(), optimizer.steps());
    let mut all = vec![(number(model, UPDATES), Scalar::Integer(updates as i64))];
    if steps != updates {
        all.push((number(model, STEPS), Scalar::Integer(steps as i64)));
    }
    all
}

fn count(file: &TensorFile, name: &str) -> Result<u64, TorchError> {
    Ok(file.integer(name)?.unsigned_abs())
}

fn number(model: &str, name: &str) -> String {
    format!("{model}.optimizer.{name}")
}

fn of_model(
    model: &str,
    parameters: &[(String, Tensor)],
    optimizer: &AdamW,
) -> Vec<(String, Tensor)> {
    let weights = parameters.iter().map(share);
    let weights = weights.map(|(name, tensor)| (format!("{model}.{name}"), tensor));
    let moments = optimizer.moments().into_iter();
    weights
        .chain(moments.map(|(name, tensor)| (format!("{model}.optimizer.{name}"), tensor)))
        .collect()
}

fn share((name, tensor): &(String, Tensor)) -> (String, Tensor) {
    (name.clone(), tensor.shallow_clone())
}

fn published(version: PolicyVersion, weights: &Weights) -> Vec<(String, Tensor)> {
    let tensors = weights.tensors().iter().map(share);
    tensors.map(|(name, tensor)| (published_name(version, &name), tensor)).collect()
}

fn published_name(version: PolicyVersion, name: &str) -> String {
    format!("{PUBLISHED}.{}.{name}", version.0)
}

fn version_of(name: &str) -> Option<PolicyVersion> {
    let (version, _) = name.strip_prefix(PUBLISHED)?.strip_prefix('.')?.split_once('.')?;
    version.parse().ok().map(PolicyVersion)
}
