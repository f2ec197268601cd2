//! Published weights, and the store from which engines load them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_stages::rollout::Policy;
use tch::Tensor;

use super::host::{floats, to_host};
use super::matrix::PackedForms;
use super::{Decoder, ModelConfig, ModelError, TorchError, layout};

/// The parameters of a model by their Hugging Face names, without gradients.
#[derive(Debug)]
pub struct Weights {
    tensors: Vec<(String, Tensor)>,
    digest: u64,
    packed_forms: PackedForms,
}

/// The parameters of a model by name, except those that were [taken](Self::take). Names and shapes are those of the model.
#[derive(Debug)]
pub(crate) struct Parameters(BTreeMap<String, Tensor>);

impl Weights {
    /// Creates weights from tensors. The tensors are shared, not copied, so other handles to them must not be written through.
    ///
    /// # Errors
    /// Returns an error if the values cannot be copied to the CPU for the digest.
    pub fn new(tensors: Vec<(String, Tensor)>) -> Result<Self, TorchError> {
        Ok(Self { digest: digest(&tensors)?, tensors, packed_forms: PackedForms::default() })
    }

    /// Returns the tensors, in the order in which [`new`](Self::new) received them.
    pub fn tensors(&self) -> &[(String, Tensor)] {
        &self.tensors
    }

    /// Returns a digest of the names, shapes and values of the tensors, in their order. Equal weights in the same order have equal digests
    /// on every machine and device.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns the tensors as the parameters of a model of configuration `config`.
    ///
    /// # Errors
    /// Returns an error if the weights belong to another model.
    pub(crate) fn parameters(&self, config: &ModelConfig) -> Result<Parameters, ModelError> {
        Parameters::new("published weights", config, self.share().tensors)
    }

    /// Returns the packed forms of the weights, which decoders with these weights share.
    pub(crate) fn packed_forms(&self) -> &PackedForms {
        &self.packed_forms
    }

    /// Returns another handle to the same tensors.
    pub(crate) fn share(&self) -> Self {
        let tensors = self
            .tensors
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor.shallow_clone()))
            .collect();
        Self { tensors, digest: self.digest, packed_forms: self.packed_forms.clone() }
    }
}

impl Parameters {
    /// Takes the tensors of a model of configuration `config`. `origin` names their source in errors.
    ///
    /// # Errors
    /// Returns an error if a tensor is missing, occurs twice, has another shape, or does not belong to the model.
    pub(crate) fn new(
        origin: &str,
        config: &ModelConfig,
        tensors: Vec<(String, Tensor)>,
    ) -> Result<Self, ModelError> {
        let expected = layout::parameters(config);
        let mut unused: BTreeMap<_, _> =
            expected.iter().map(|(name, shape)| (name.as_str(), shape)).collect();
        let (mut found, mut extra) = (BTreeMap::new(), Vec::new());
        for (name, tensor) in tensors {
            match unused.remove(name.as_str()) {
                Some(shape) => {
                    layout::check_shape(origin, &name, shape, &tensor.size())?;
                    found.insert(name, tensor);
                }
                None => extra.push(name),
            }
        }
        layout::refuse_unexpected(origin, unused.into_keys().map(str::to_owned).collect(), extra)?;
        Ok(Self(found))
    }

    pub(crate) fn of(decoder: Decoder) -> Self {
        Self(decoder.into_parameters().into_iter().collect())
    }

    /// Removes and returns the parameter `name`.
    ///
    /// # Panics
    /// Panics if the model has no parameter of this name, or it was already taken.
    pub(crate) fn take(&mut self, name: &str) -> Tensor {
        self.0
            .remove(name)
            .unwrap_or_else(|| panic!("invariant: the model has a parameter `{name}`"))
    }
}

/// Returns a digest of names, shapes and values.
///
/// # Errors
/// Returns an error if the values cannot be copied to the CPU.
fn digest(tensors: &[(String, Tensor)]) -> Result<u64, TorchError> {
    let mut digest = Digest(0);
    for (name, tensor) in tensors {
        digest.bytes(name.as_bytes());
        tensor.size().iter().for_each(|&size| digest.word(size as u64));
        digest.floats(&floats(&to_host(tensor)?)?);
    }
    Ok(digest.finish())
}

/// A multiplicative hash over 8-byte words; not cryptographic.
struct Digest(u64);

impl Digest {
    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// Adds numbers, as their bytes in little-endian order.
    fn floats(&mut self, floats: &[f32]) {
        self.word(size_of_val(floats) as u64);
        let (pairs, rest) = floats.as_chunks::<2>();
        let word = |low: f32, high: f32| u64::from(low.to_bits()) | u64::from(high.to_bits()) << 32;
        pairs.iter().for_each(|[low, high]| self.word(word(*low, *high)));
        self.word(rest.first().map_or(0, |last| word(*last, 0.0)));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.word(u64::from_le_bytes(last));
    }

    /// Returns the digest. Mixes the high bits, which depend on most of the input after a multiplication, into the low bits.
    fn finish(self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ (mixed >> 32)
    }
}

/// A store of policy weights within this process. A trainer publishes weights to it, and engines on other threads load them.
///
/// A clone is a handle to the same store. The store holds the newest `keep` versions. With staleness `k` an engine may request a version
/// that is `k + 1` updates old, so `keep` must be at least `k + 2`. An engine takes a handle to the weights when it receives the request to
/// load them, so an instance can load them even after the store has dropped them.
#[derive(Clone, Debug)]
pub struct WeightStore {
    keep: usize,
    held: Arc<Mutex<VecDeque<(PolicyVersion, Weights)>>>,
}

impl WeightStore {
    /// Creates a store that holds the newest `keep` versions. 0 counts as 1.
    #[must_use]
    pub fn new(keep: usize) -> Self {
        Self { keep: keep.max(1), held: Arc::default() }
    }

    /// Publishes `weights` as `version`, and drops the oldest versions beyond the limit. Weights that the store holds under the same
    /// version are replaced. Returns the policy, which engines can load.
    #[must_use]
    pub fn publish(&self, version: PolicyVersion, weights: Weights) -> Policy {
        let digest = weights.digest();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|&(other, _)| other != version);
        held.push_back((version, weights));
        let surplus = held.len().saturating_sub(self.keep);
        held.drain(..surplus);
        Policy { version, location: format!("memory:{version}"), digest }
    }

    /// Copies the weights of `policy` into `decoder`.
    ///
    /// # Errors
    /// Returns an error if the store does not hold that version. Also returns the errors of [`Decoder::copy_from`], which may leave some
    /// parameters with new values.
    pub fn apply(&self, policy: &Policy, decoder: &mut Decoder) -> Result<(), TorchError> {
        // The copy runs outside the lock, so that several engines can load weights at once.
        let weights = self.find(policy)?;
        decoder.copy_from(&weights)
    }

    /// Returns the versions that a run needs to resume after the newest update, oldest first.
    ///
    /// These are the newest `keep - 1` versions, but at least one if the store is not empty: with the newest update, engines stop using the
    /// oldest version.
    pub(crate) fn needed(&self) -> Vec<(PolicyVersion, Weights)> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let needed = self.keep.saturating_sub(1).max(1);
        let newest = held.iter().skip(held.len().saturating_sub(needed));
        newest.map(|(version, weights)| (*version, weights.share())).collect()
    }

    /// Returns a handle to the weights of `policy`. It stays valid after the store drops the version.
    ///
    /// # Errors
    /// Returns an error if the store does not hold that version.
    pub fn find(&self, policy: &Policy) -> Result<Weights, TorchError> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let found = held.iter().find(|&&(version, _)| version == policy.version);
        found.map(|(_, weights)| weights.share()).ok_or_else(|| TorchError::NotPublished {
            version: policy.version,
            location: policy.location.clone(),
            held: held
                .iter()
                .map(|(version, _)| version.to_string())
                .collect::<Vec<_>>()
                .join(", "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(values: &[f32]) -> Weights {
        Weights::new(vec![("w".to_owned(), Tensor::from_slice(values))]).unwrap()
    }

    fn check_held(store: &WeightStore, version: u64, held: bool) {
        let policy = Policy {
            version: PolicyVersion(version),
            location: format!("memory:v{version}"),
            digest: 0,
        };
        assert_eq!(store.find(&policy).is_ok(), held, "v{version}");
    }

    #[test]
    fn the_newest_versions_are_kept() {
        let store = WeightStore::new(2);
        for version in 0..4 {
            let policy = store.clone().publish(PolicyVersion(version), weights(&[version as f32]));
            assert_eq!(policy.location, format!("memory:v{version}"));
        }
        for version in 0..5 {
            check_held(&store, version, version == 2 || version == 3);
        }
        let gone =
            Policy { version: PolicyVersion(1), location: "memory:v1".to_owned(), digest: 0 };
        let error = store.find(&gone).unwrap_err().to_string();
        assert_eq!(error, "policy v1 is not at `memory:v1`: the store holds v2, v3");
    }

    #[test]
    fn a_version_published_again_replaces_the_first() {
        let store = WeightStore::new(2);
        let first = store.publish(PolicyVersion(0), weights(&[0.0]));
        let again = store.publish(PolicyVersion(0), weights(&[1.0]));
        assert_ne!(first.digest, again.digest);
        assert_eq!(store.find(&first).unwrap().digest(), again.digest);
    }

    #[test]
    fn numbers_are_digested_as_their_bytes() {
        for count in [0, 1, 2, 5] {
            let values: Vec<f32> = (0..count).map(|at| 0.3 - at as f32).collect();
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let [mut by_numbers, mut by_bytes] = [Digest(7), Digest(7)];
            by_numbers.floats(&values);
            by_bytes.bytes(&bytes);
            assert_eq!(by_numbers.finish(), by_bytes.finish(), "{count} numbers");
        }
    }

    #[test]
    fn the_digest_depends_on_names_shapes_and_values() {
        let digest = |name: &str, tensor: Tensor| {
            Weights::new(vec![(name.to_owned(), tensor)]).unwrap().digest()
        };
        let values = || Tensor::from_slice(&[1_f32, 2.0, 3.0, 4.0]);
        let all = [
            digest("w", values()),
            digest("v", values()),
            digest("w", values().view([2, 2])),
            digest("w", Tensor::from_slice(&[1_f32, 2.0, 4.0, 3.0])),
            digest("w", Tensor::from_slice(&[1_f32, 2.0, 3.0])),
        ];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), all.len());
        assert_eq!(all[0], digest("w", values()));
        assert_eq!(
            digest("w", values().view([2, 2])),
            digest("w", values().view([2, 2]).transpose(0, 1).transpose(0, 1))
        );
    }
}
