//! The check that a server refuses wrong requests with a message.

use reqwest::Method;
use serde_json::{Value, json};

use super::finding::{Checked, Finding};
use super::session::ProbeSession;
use crate::http::ServerError;
use crate::vllm::protocol::path;

/// The largest context, in tokens, for which the check sends a prompt that is longer than the context of the server.
const MAX_CHECKED_CONTEXT: u64 = 1 << 18;

impl ProbeSession {
    pub(super) async fn check_errors(&self) -> Checked {
        let cases = self.wrong_requests();
        let mut wrong = Vec::new();
        for (what, request) in &cases {
            if let Some(found) = self.defect(request).await {
                wrong.push(format!("{what}: {found}"));
            }
        }
        // The server must still work.
        self.check_token_ids().await?;
        let details = match wrong.len() {
            0 => "wrong requests get status 4xx and a message".to_owned(),
            _ => format!("expected status 4xx with a message; {}", wrong.join("; ")),
        };
        Ok(Finding::passed_if(wrong.is_empty(), details).figure("requests", cases.len() as f64))
    }

    fn wrong_requests(&self) -> Vec<(&'static str, Value)> {
        let with = |params: Value| json!({"token_ids": self.prompt(), "sampling_params": params});
        let mut named = with(json!({"max_tokens": 1}));
        named["model"] = json!(format!("no-model-{:016x}", self.nonce));
        let mut cases = vec![
            ("a request without fields", json!({})),
            ("a negative temperature", with(json!({"temperature": -1.0, "max_tokens": 1}))),
            ("an unknown model", named),
        ];
        if self.context() <= MAX_CHECKED_CONTEXT {
            let token = self.canary()[0];
            let prompt = vec![token; usize::try_from(self.context()).unwrap_or(0) + 1];
            let params = json!({"max_tokens": 1});
            let long = json!({"token_ids": prompt, "sampling_params": params});
            cases.push(("a prompt longer than the context", long));
        }
        cases
    }

    /// Returns a description of the reaction to a wrong request; `None` if the server refused the request with a client error (status 4xx)
    /// and a message in plain text.
    async fn defect(&self, request: &Value) -> Option<String> {
        let endpoint = self.client.endpoint();
        let limit = self.client.call_limit();
        match endpoint.call(Method::POST, path::GENERATE, Some(request), limit).await {
            Ok(()) => Some("accepted".to_owned()),
            Err(ServerError::Status { status, message, .. }) if status.is_client_error() => {
                let is_text = !message.is_empty() && !message.starts_with(['{', '[', '<']);
                (!is_text).then(|| format!("{status} without a message"))
            }
            Err(error) => Some(error.to_string()),
        }
    }
}
