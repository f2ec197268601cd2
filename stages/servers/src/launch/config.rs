//! The configuration of servers to start.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rollpacker_stages::secret::{self, REDACTED, without_command_secrets};

use crate::server::Protocol;

/// The maximum number of servers of a fleet.
pub const MAX_SERVERS: usize = 256;
const PORT: &str = "{port}";
/// The text that an error gives as the expected value if secrets were redacted.
const SECRETS: &str = "its secrets, which the recipe in a run folder lacks";
/// The environment variable that enables vLLM's calls for pauses and weights, and its value.
const DEV_MODE: (&str, &str) = ("VLLM_SERVER_DEV_MODE", "1");

/// The configuration of servers that run as child processes on this machine.
///
/// In the command and in the values of the environment, `{port}` is the port of the server, `{model}` the absolute path of the model
/// folder, and `{index}` the number of the server from 0. Other braces are not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// The protocol of the servers.
    pub protocol: Protocol,
    /// The program and its arguments. The program must not be empty. One of these texts, or a value of `env`, must contain `{port}`. No
    /// text may contain NUL or a redacted secret.
    pub command: Vec<String>,
    /// The number of servers, from 1 to [`MAX_SERVERS`].
    pub count: usize,
    /// Environment variables in addition to those of this process. vLLM also gets `VLLM_SERVER_DEV_MODE=1`, unless this map has the
    /// variable. Names must not be empty or contain `=` or NUL. Values must not contain NUL or a redacted secret.
    pub env: BTreeMap<String, String>,
    /// The environment variable of this process that has the API key of the servers; `None` if they need no key.
    pub api_key_env: Option<String>,
    /// The model folder that the servers start from.
    pub model_folder: PathBuf,
    /// The folder for the logs of the servers. The log of server 0 is `0.log`, and so on.
    pub log_folder: PathBuf,
    /// The maximum time to wait for the servers. At least one server must be ready within this time.
    pub timeout: Duration,
}

/// The field, the expected value and the value found of a configuration that is out of bounds.
pub type InvalidField = (&'static str, &'static str, String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) index: usize,
    pub(super) port: u16,
}

impl Slot {
    pub(super) fn url(self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl LaunchConfig {
    /// Checks the fields, without starting a process.
    ///
    /// # Errors
    /// Returns the first field that is out of bounds. The values contain no secrets.
    pub fn check(&self) -> Result<(), InvalidField> {
        self.check_command()?;
        if !(1..=MAX_SERVERS).contains(&self.count) {
            return Err(("count", "a number from 1 to 256", self.count.to_string()));
        }
        self.check_env()
    }

    fn check_command(&self) -> Result<(), InvalidField> {
        let shown = || format!("`{}`", self.redacted_command());
        let has_port = |text: &String| text.contains(PORT);
        if self.command.first().is_none_or(String::is_empty) {
            return Err(("command", "a program and its arguments", "none".to_owned()));
        }
        if !self.command.iter().chain(self.env.values()).any(has_port) {
            return Err(("command", "an argument with `{port}`", shown()));
        }
        if self.command.iter().any(|argument| argument.contains('\0')) {
            return Err(("command", "arguments without NUL", shown()));
        }
        if self.command.iter().any(is_redacted) {
            return Err(("command", SECRETS, format!("`{REDACTED}`")));
        }
        Ok(())
    }

    fn check_env(&self) -> Result<(), InvalidField> {
        let is_wrong = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
        if let Some(name) = self.env.keys().find(is_wrong) {
            return Err(("env", "names of environment variables", format!("`{name}`")));
        }
        if self.env.values().any(|value| value.contains('\0')) {
            return Err(("env", "values without NUL", "a value with NUL".to_owned()));
        }
        if self.env.values().any(is_redacted) {
            return Err(("env", SECRETS, format!("`{REDACTED}`")));
        }
        Ok(())
    }

    /// Returns the command for messages, without secrets and with its placeholders.
    pub(super) fn redacted_command(&self) -> String {
        without_command_secrets(&self.command).join(" ")
    }

    /// Registers the secrets of the command and of the environment variables, so that they are redacted in messages.
    pub(super) fn register_secrets(&self) {
        secret::register_command(&self.command);
        secret::register_command(&self.env.values().cloned().collect::<Vec<_>>());
        let named = self.env.iter().filter(|(name, _)| secret::is_secret_parameter(name));
        named.for_each(|(_, value)| secret::register(value));
    }

    /// Returns the command of a server, with its placeholders replaced.
    pub(super) fn command(&self, slot: Slot) -> Vec<String> {
        self.command.iter().map(|argument| self.fill_placeholders(argument, slot)).collect()
    }

    /// Returns the variables that a server gets in addition to those of this process.
    pub(super) fn variables(&self, slot: Slot) -> BTreeMap<String, String> {
        let own = (self.protocol == Protocol::Vllm).then_some(DEV_MODE);
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let given = self
            .env
            .iter()
            .map(|(name, value)| (name.clone(), self.fill_placeholders(value, slot)));
        own.into_iter().chain(given).collect()
    }

    fn fill_placeholders(&self, text: &str, slot: Slot) -> String {
        let folder = &self.model_folder;
        // A server may run in another folder, so the path is absolute. It is inserted last, so that braces in it are not replaced.
        let model = std::path::absolute(folder).unwrap_or_else(|_| folder.clone());
        text.replace(PORT, &slot.port.to_string())
            .replace("{index}", &slot.index.to_string())
            .replace("{model}", &model.to_string_lossy())
    }
}

fn is_redacted(text: impl AsRef<str>) -> bool {
    text.as_ref().contains(REDACTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(command: &[&str]) -> LaunchConfig {
        LaunchConfig {
            protocol: Protocol::Vllm,
            command: command.iter().map(|&text| text.to_owned()).collect(),
            count: 2,
            env: BTreeMap::new(),
            api_key_env: None,
            model_folder: "/models/a {port}".into(),
            log_folder: "logs".into(),
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn placeholders_are_filled_and_other_braces_stay() {
        let mut config = config(&["serve", "{model}", "--port={port}", r#"{"a": {"b": 1}}"#]);
        config.env.insert("CUDA_VISIBLE_DEVICES".to_owned(), "{index}".to_owned());
        let slot = Slot { index: 1, port: 81 };
        let expected = ["serve", "/models/a {port}", "--port=81", r#"{"a": {"b": 1}}"#];
        assert_eq!(config.command(slot), expected);
        let variables: Vec<_> = config.variables(slot).into_iter().collect();
        let expected = [("CUDA_VISIBLE_DEVICES", "1"), ("VLLM_SERVER_DEV_MODE", "1")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(variables, expected);
    }

    #[test]
    fn a_variable_of_the_recipe_wins() {
        let mut config = config(&["serve", "{port}"]);
        config.env.insert(DEV_MODE.0.to_owned(), "0".to_owned());
        let variables = config.variables(Slot { index: 0, port: 1 });
        assert_eq!(variables[DEV_MODE.0], "0");
        config.protocol = Protocol::Sglang;
        config.env.clear();
        assert!(config.variables(Slot { index: 0, port: 1 }).is_empty());
    }

    #[test]
    fn wrong_commands_are_refused_by_field() {
        let refused = |config: &LaunchConfig| config.check().expect_err("refused").0;
        assert_eq!(refused(&config(&[])), "command");
        assert_eq!(refused(&config(&["serve", "--port", "80"])), "command");
        let mut many = config(&["serve", "{port}"]);
        assert_eq!(many.check(), Ok(()));
        many.count = 0;
        assert_eq!(refused(&many), "count");
        many.count = 1;
        many.env.insert("A=B".to_owned(), String::new());
        assert_eq!(refused(&many), "env");
        assert_eq!(refused(&config(&["serve", "{port}", "--api-key", REDACTED])), "command");
        many.env = [("HF_TOKEN".to_owned(), REDACTED.to_owned())].into();
        assert_eq!(refused(&many), "env");
    }
}
