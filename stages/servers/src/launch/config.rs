//! The configuration of servers to start.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rollpacker_stages::secret::{self, REDACTED, without_command_secrets};

use crate::server::Protocol;

/// The largest number of servers.
pub const MOST_SERVERS: usize = 256;
/// The placeholder of the port.
const PORT: &str = "{port}";
/// The expected value of a text whose secrets were redacted.
const SECRETS: &str = "its secrets, which the recipe in a run folder lacks";
/// The environment variable that gives vLLM the calls that pause it and load weights.
const DEV_MODE: (&str, &str) = ("VLLM_SERVER_DEV_MODE", "1");

/// Servers that run as processes of this program, on this machine.
///
/// In the arguments and in the values of the environment, `{port}` is the port of the server, `{model}` the absolute path of the model
/// folder, and `{index}` the number of the server from 0. Other braces stay as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// The protocol of the servers.
    pub protocol: Protocol,
    /// The program and its arguments. One of them must contain `{port}`.
    pub command: Vec<String>,
    /// The number of servers, from 1 to [`MOST_SERVERS`].
    pub count: usize,
    /// Environment variables in addition to those of this process. vLLM also gets `VLLM_SERVER_DEV_MODE=1`.
    pub env: BTreeMap<String, String>,
    /// The environment variable of this process with the API key of the servers; no key by default.
    pub api_key_env: Option<String>,
    /// The model folder that the servers start from.
    pub model_folder: PathBuf,
    /// The folder for the output of the servers, `0.log` and so on.
    pub log_folder: PathBuf,
    /// The longest time in which the first server must be ready.
    pub timeout: Duration,
}

/// The field, the expected value and the value found of a configuration that is out of bounds.
pub type Refusal = (&'static str, &'static str, String);

/// A server among several.
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
    /// Checks all bounds that need no process. Returns the field, the expected value and the value found.
    ///
    /// # Errors
    /// The first field that is out of bounds. The values contain no secrets.
    pub fn check(&self) -> Result<(), Refusal> {
        self.check_command()?;
        if !(1..=MOST_SERVERS).contains(&self.count) {
            return Err(("count", "a number from 1 to 256", self.count.to_string()));
        }
        self.check_env()
    }

    fn check_command(&self) -> Result<(), Refusal> {
        let shown = || format!("`{}`", self.shown());
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
        if self.command.iter().any(lacks_secret) {
            return Err(("command", SECRETS, format!("`{REDACTED}`")));
        }
        Ok(())
    }

    fn check_env(&self) -> Result<(), Refusal> {
        let is_wrong = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
        if let Some(name) = self.env.keys().find(is_wrong) {
            return Err(("env", "names of environment variables", format!("`{name}`")));
        }
        if self.env.values().any(|value| value.contains('\0')) {
            return Err(("env", "values without NUL", "a value with NUL".to_owned()));
        }
        if self.env.values().any(lacks_secret) {
            return Err(("env", SECRETS, format!("`{REDACTED}`")));
        }
        Ok(())
    }

    /// Returns the command as it is shown, without secrets.
    pub(super) fn shown(&self) -> String {
        without_command_secrets(&self.command).join(" ")
    }

    /// Registers the secrets in command and environment, so that no message has them.
    pub(super) fn keep_secrets(&self) {
        secret::command_secrets(&self.command).iter().for_each(|secret| secret::keep(secret));
        let named = self.env.iter().filter(|(name, _)| secret::is_secret_parameter(name));
        named.for_each(|(_, value)| secret::keep(value));
    }

    /// Returns the command of a server.
    pub(super) fn command(&self, slot: Slot) -> Vec<String> {
        self.command.iter().map(|argument| self.filled(argument, slot)).collect()
    }

    /// Returns the variables that a server gets in addition to those of this process.
    pub(super) fn variables(&self, slot: Slot) -> BTreeMap<String, String> {
        let own = (self.protocol == Protocol::Vllm).then_some(DEV_MODE);
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let given = self.env.iter().map(|(name, value)| (name.clone(), self.filled(value, slot)));
        own.into_iter().chain(given).collect()
    }

    fn filled(&self, text: &str, slot: Slot) -> String {
        let folder = &self.model_folder;
        // A server may run in another folder. The path is inserted last: its own braces stay as they are.
        let model = std::path::absolute(folder).unwrap_or_else(|_| folder.clone());
        text.replace(PORT, &slot.port.to_string())
            .replace("{index}", &slot.index.to_string())
            .replace("{model}", &model.to_string_lossy())
    }
}

fn lacks_secret(text: impl AsRef<str>) -> bool {
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
