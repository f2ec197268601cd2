//! Real servers: processes of `rollpacker serve`.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::Child;

use serde_json::Value;

use super::workspace::TestWorkspace;

/// A running server. It is killed with the value.
pub(crate) struct Peer {
    child: Child,
    address: SocketAddr,
}

/// A server that may not listen yet.
pub(crate) struct StartingPeer(Child);

impl Peer {
    /// Starts a server of the model in the folder `model`.
    pub(crate) fn start(workspace: &TestWorkspace) -> StartingPeer {
        let line = ["serve", "--model", "model", "--device", "cpu", "--port", "0"];
        StartingPeer(workspace.command(&line).spawn().unwrap())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl StartingPeer {
    /// Waits until the server listens.
    pub(crate) fn ready(mut self) -> Peer {
        let mut announced = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut announced).unwrap();
        let announced: Value = serde_json::from_str(&announced).expect("the server listens");
        let address = announced["url"].as_str().unwrap().strip_prefix("http://").unwrap();
        Peer { address: address.parse().unwrap(), child: self.0 }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
