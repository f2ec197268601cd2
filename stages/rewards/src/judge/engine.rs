//! The inference engine of a judge's model, as configured in recipes.

use std::sync::{Arc, Mutex, PoisonError};

use rollpacker_stages::catalog::{CatalogError, Options, read, take};
use rollpacker_stages::documented;
use rollpacker_stages::reward::chat::{ChatEngine, SharedChat};
use serde::{Deserialize, Serialize};

documented! {
    /// The option that selects the engine. The remaining options belong to the engine.
    #[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
    #[serde(default)]
    pub(super) struct EngineChoice {
        /// The engine of the model: `server`, with the options `base_url`, `model`, `api_key_env` and `extra_body`; or `torch`, in process,
        /// with the options that `docs/rewards.md` describes under "A judge". Default: `server`.
        engine: Engine,
    }
}

/// The engine of the model.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Engine {
    #[default]
    Server,
    Torch,
}

/// The engines of the judges of a registry: servers, and the engine `torch` if the program provides one. Clones share that engine.
#[derive(Clone, Default)]
pub(crate) struct JudgeEngines {
    in_process: Arc<Mutex<Option<Arc<dyn ChatEngine>>>>,
}

impl JudgeEngines {
    /// Sets the engine `torch`. Replaces an earlier engine.
    pub(crate) fn set_in_process(&self, engine: Arc<dyn ChatEngine>) {
        *self.in_process.lock().unwrap_or_else(PoisonError::into_inner) = Some(engine);
    }

    fn in_process(&self) -> Option<Arc<dyn ChatEngine>> {
        self.in_process.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Creates the model that the options select. `options` must no longer contain the options of [`Judgement`](super::Judgement).
    /// `max_answer_tokens` is the maximum length of an answer in tokens.
    pub(super) fn make(
        &self,
        mut options: Options,
        max_answer_tokens: u32,
    ) -> Result<SharedChat, CatalogError> {
        let EngineChoice { engine } = read(take(&mut options, &["engine"]))?;
        match (engine, self.in_process()) {
            (Engine::Server, in_process) => {
                let others = in_process.map(|engine| engine.options()).unwrap_or_default();
                reject_options_of("torch", others, &options)?;
                server(options)
            }
            (Engine::Torch, Some(in_process)) => {
                reject_options_of("server", server_options(), &options)?;
                in_process.open(options, max_answer_tokens)
            }
            (Engine::Torch, None) => {
                let expected =
                    "`server`, because this program was built without the feature `torch`";
                Err(CatalogError::out_of_range("engine", expected, "torch"))
            }
        }
    }
}

/// Creates the client of a server from the options of `ChatServerOptions`.
#[cfg(feature = "http")]
fn server(options: Options) -> Result<SharedChat, CatalogError> {
    let options = read(options)?;
    super::ChatServer::new(options).map(SharedChat::new)
}

#[cfg(not(feature = "http"))]
fn server(_: Options) -> Result<SharedChat, CatalogError> {
    crate::missing_feature::missing_feature("`engine = \"server\"`", "http")
}

/// Returns the names of the options of the engine `server`; empty without the feature `http`.
fn server_options() -> &'static [&'static str] {
    #[cfg(feature = "http")]
    return rollpacker_stages::fields::fields::<super::ChatServerOptions>();
    #[cfg(not(feature = "http"))]
    &[]
}

/// Returns an error if one of the `options` is in `keys`, the options of the engine `other`, which was not selected.
fn reject_options_of(other: &str, keys: &[&str], options: &Options) -> Result<(), CatalogError> {
    match options.iter().find(|(key, _)| keys.contains(&key.as_str())) {
        Some((key, found)) => {
            let expected = format!("`engine = \"{other}\"` as well");
            Err(CatalogError::out_of_range(key, &expected, found))
        }
        None => Ok(()),
    }
}
