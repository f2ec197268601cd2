//! The table `rollout.serve`: inference servers that the run starts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::recipe::section::section;

section! {
    /// The table `rollout.serve`: inference servers as processes of the run. They start and end with the run. `docs/servers.md` has
    /// examples.
    ///
    /// In the arguments and in the values of `env`, `{port}` is the port of the server, `{model}` the absolute path of the model folder,
    /// and `{index}` the number of the server from 0.
    Serve {
        /// Program and arguments of a server. An argument or a value of `env` must contain `{port}`. Required.
        command: Vec<String> = Vec::new(),
        /// Number of servers, from 1 to 256; default 1.
        count: usize [servers] = 1,
        /// Environment variables of the servers, in addition to the environment of the run. vLLM also gets `VLLM_SERVER_DEV_MODE=1`, unless
        /// this table has the variable. Default: none.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        env: BTreeMap<String, String> = BTreeMap::new(),
    }
}
