//! The policy versions that sampled the tokens of a response.

use rollpacker_dataflow::step::PolicyVersion;

/// The policy version that sampled each token of a response, in the order of the tokens.
///
/// Neighboring tokens mostly have the same version, so the versions are stored as runs: a response that one policy sampled has one run,
/// whatever its length.
///
/// ```
/// use rollpacker_dataflow::step::PolicyVersion;
/// use rollpacker_stages::rollout::TokenVersions;
///
/// let mut versions = TokenVersions::of(PolicyVersion(3), 4);
/// versions.push(PolicyVersion(5));
/// assert_eq!(versions.len(), 5);
/// assert_eq!(versions.runs(), [(PolicyVersion(3), 4), (PolicyVersion(5), 1)]);
/// assert_eq!(versions.iter().map(|version| version.0).collect::<Vec<_>>(), [3, 3, 3, 3, 5]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenVersions {
    /// Runs of at least one token. Adjacent runs have different versions.
    runs: Vec<(PolicyVersion, u32)>,
}

impl TokenVersions {
    /// Returns the versions of `tokens` tokens that one policy sampled.
    ///
    /// # Panics
    /// Panics if there are 2^32 tokens or more.
    #[must_use]
    pub fn of(version: PolicyVersion, tokens: usize) -> Self {
        let mut versions = Self::default();
        versions.push_run(version, tokens);
        versions
    }

    /// Returns the number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.iter().map(|&(_, tokens)| tokens as usize).sum()
    }

    /// Returns `true` if there are no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the version of the first token; `None` if there are no tokens.
    #[must_use]
    pub fn first(&self) -> Option<PolicyVersion> {
        self.runs.first().map(|&(version, _)| version)
    }

    /// Returns the runs: a version and the number of neighboring tokens that it sampled, which is at least 1.
    #[must_use]
    pub fn runs(&self) -> &[(PolicyVersion, u32)] {
        &self.runs
    }

    /// Returns the version of each token.
    pub fn iter(&self) -> impl Iterator<Item = PolicyVersion> {
        self.runs
            .iter()
            .flat_map(|&(version, tokens)| std::iter::repeat_n(version, tokens as usize))
    }

    /// Appends a token that the policy `version` sampled.
    pub fn push(&mut self, version: PolicyVersion) {
        self.push_run(version, 1);
    }

    /// Appends `tokens` tokens that the policy `version` sampled.
    ///
    /// # Panics
    /// Panics if a run would have 2^32 tokens or more.
    pub fn push_run(&mut self, version: PolicyVersion, tokens: usize) {
        let added = u32::try_from(tokens).expect("a response has fewer than 2^32 tokens");
        match self.runs.last_mut() {
            _ if added == 0 => {}
            Some((last, tokens)) if *last == version => {
                *tokens = tokens.checked_add(added).expect("a response has fewer than 2^32 tokens");
            }
            _ => self.runs.push((version, added)),
        }
    }

    /// Keeps the first `tokens` tokens, or all tokens if there are fewer.
    pub fn truncate(&mut self, tokens: usize) {
        *self = self.prefix(tokens);
    }

    /// Appends tokens of `version`, or drops the last tokens, so that there are `tokens` tokens.
    ///
    /// # Panics
    /// Panics if a run would have 2^32 tokens or more.
    pub fn resize(&mut self, tokens: usize, version: PolicyVersion) {
        match tokens.checked_sub(self.len()) {
            Some(more) => self.push_run(version, more),
            None => self.truncate(tokens),
        }
    }

    /// Returns the versions of the first `tokens` tokens, or of all if there are fewer.
    #[must_use]
    pub fn prefix(&self, tokens: usize) -> Self {
        let mut prefix = Self::default();
        let mut left = tokens;
        for &(version, tokens) in &self.runs {
            let kept = left.min(tokens as usize);
            prefix.push_run(version, kept);
            left -= kept;
        }
        prefix
    }

    /// Returns `true` if `other` has the versions of the first tokens of this response.
    #[must_use]
    pub fn starts_with(&self, other: &Self) -> bool {
        self.prefix(other.len()) == *other
    }
}

impl Extend<PolicyVersion> for TokenVersions {
    fn extend<I: IntoIterator<Item = PolicyVersion>>(&mut self, versions: I) {
        versions.into_iter().for_each(|version| self.push(version));
    }
}

impl FromIterator<PolicyVersion> for TokenVersions {
    fn from_iter<I: IntoIterator<Item = PolicyVersion>>(versions: I) -> Self {
        let mut all = Self::default();
        all.extend(versions);
        all
    }
}

impl FromIterator<(PolicyVersion, u32)> for TokenVersions {
    fn from_iter<I: IntoIterator<Item = (PolicyVersion, u32)>>(runs: I) -> Self {
        let mut all = Self::default();
        runs.into_iter().for_each(|(version, tokens)| all.push_run(version, tokens as usize));
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn versions() -> impl Strategy<Value = Vec<PolicyVersion>> {
        prop::collection::vec((0_u64..3).prop_map(PolicyVersion), 0..12)
    }

    fn runs(versions: &[PolicyVersion]) -> TokenVersions {
        versions.iter().copied().collect()
    }

    proptest! {
        #[test]
        fn runs_behave_like_a_list_with_an_entry_per_token(
            list in versions(),
            more in versions(),
            tokens in 0_usize..16,
        ) {
            let mut expected = list.clone();
            let mut found = runs(&list);
            prop_assert_eq!(found.len(), expected.len());
            prop_assert_eq!(found.first(), expected.first().copied());
            prop_assert_eq!(found.starts_with(&runs(&more)), expected.starts_with(&more));
            prop_assert_eq!(found.runs().iter().copied().collect::<TokenVersions>(), found.clone());

            expected.extend(&more);
            found.extend(more);
            prop_assert_eq!(found.iter().collect::<Vec<_>>(), expected.clone());
            prop_assert!(found.runs().windows(2).all(|two| two[0].0 != two[1].0));

            expected.resize(tokens, PolicyVersion(1));
            found.resize(tokens, PolicyVersion(1));
            prop_assert_eq!(found, runs(&expected));
        }
    }
}
