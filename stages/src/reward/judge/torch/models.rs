//! The in-process judge models that a registry has made.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Model, TorchChat};
use crate::catalog::CatalogError;
use crate::reward::judge::TorchChatOptions;
use crate::rollout::guests::Guests;

/// The in-process models that judges share: one for each folder, even if several rewards use it.
#[derive(Clone, Default)]
pub(in crate::reward::judge) struct Models {
    open: Arc<Mutex<BTreeMap<PathBuf, Opened>>>,
    guests: Guests,
}

/// A model with the options that it was opened with.
type Opened = (TorchChatOptions, Weak<Model>);

impl Models {
    /// Returns the models that wait for an engine to host them.
    pub(in crate::reward::judge) fn guests(&self) -> Guests {
        self.guests.clone()
    }

    /// Returns the model of a folder. Opens it, unless it is open already.
    ///
    /// # Errors
    /// As [`TorchChat::open`], or if another reward uses the same folder with different options.
    pub(in crate::reward::judge) fn open(
        &self,
        options: TorchChatOptions,
    ) -> Result<TorchChat, CatalogError> {
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
            chat.colocate(&self.guests);
        }
        open.insert(folder, (options, Arc::downgrade(&chat.0)));
        Ok(chat)
    }
}
