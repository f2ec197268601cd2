//! The in-process judge models that rewards share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rollpacker_stages::catalog::{CatalogError, Options, read};
use rollpacker_stages::fields::fields;
use rollpacker_stages::reward::chat::{ChatEngine, SharedChat};

use super::{JudgeModel, TorchChat, TorchChatOptions};
use crate::rollout::colocated::ColocatedModels;

/// The in-process models that judges share: one for each folder, even if several rewards use it.
#[derive(Clone, Default)]
pub struct JudgeModels {
    open: Arc<Mutex<BTreeMap<PathBuf, OpenModel>>>,
    colocated: ColocatedModels,
}

/// A model with the options that it was opened with.
type OpenModel = (TorchChatOptions, Weak<JudgeModel>);

impl JudgeModels {
    /// Returns the list of the models with `colocated = true`, which an engine can run on its instances.
    #[must_use]
    pub fn colocated(&self) -> ColocatedModels {
        self.colocated.clone()
    }

    /// Returns the model of a folder. Opens the model unless it is open already. A model stays open as long as a reward uses it.
    ///
    /// # Errors
    /// Returns an error if an option is out of range, [`TorchChat::open`] fails, or another reward uses the same folder with different
    /// options.
    pub(super) fn open_model(&self, options: TorchChatOptions) -> Result<TorchChat, CatalogError> {
        options.check()?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = options.model_path.canonicalize();
        let folder = folder.unwrap_or_else(|_| options.model_path.clone());
        let known = open.get(&folder).and_then(|(known, model)| Some((known, model.upgrade()?)));
        if let Some((known, model)) = known {
            options.agree_with(known)?;
            return Ok(TorchChat(model));
        }
        let chat = TorchChat::open(&options)?;
        if options.colocated {
            chat.register_in(&self.colocated);
        }
        open.insert(folder, (options, Arc::downgrade(&chat.0)));
        Ok(chat)
    }
}

impl ChatEngine for JudgeModels {
    fn options(&self) -> &'static [&'static str] {
        fields::<TorchChatOptions>()
    }

    fn open(&self, options: Options, max_tokens: u32) -> Result<SharedChat, CatalogError> {
        let chat = self.open_model(read(options)?)?;
        let limit = chat.token_limit();
        if max_tokens == 0 || max_tokens as usize >= limit {
            let expected = format!(
                "1 to {}, less than the context of {limit} (the smaller of the model's and `kv_cache_tokens`)",
                limit.saturating_sub(1)
            );
            return Err(CatalogError::out_of_range("max_tokens", &expected, max_tokens));
        }
        Ok(SharedChat::new(chat))
    }
}
