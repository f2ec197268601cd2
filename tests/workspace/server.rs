//! A running `rollpacker serve`.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command};

use serde_json::Value;

use super::{ProcessEnd, TestWorkspace};

/// A server that may not listen yet. Dropping the value kills it.
pub(crate) struct StartingServer(Option<Child>);

/// A running server. Dropping the value kills it.
pub(crate) struct Server {
    process: StartingServer,
    pub(crate) address: SocketAddr,
}

impl StartingServer {
    /// Starts a server of the model in the folder `model`, with further arguments.
    pub(crate) fn start(workspace: &TestWorkspace, args: &[&str]) -> Self {
        let line = ["serve", "--model", "model", "--device", "cpu", "--port", "0"];
        let mut command = workspace.command(&[&line[..], args].concat());
        Self(Some(command.spawn().expect("the program starts")))
    }

    /// Starts two servers at once.
    pub(crate) fn pair(workspace: &TestWorkspace) -> [Self; 2] {
        [0; 2].map(|_| Self::start(workspace, &[]))
    }

    /// Waits until the server listens.
    pub(crate) fn ready(mut self) -> Server {
        let mut announced = String::new();
        let out = self.0.as_mut().and_then(|child| child.stdout.as_mut()).expect("captured");
        BufReader::new(out).read_line(&mut announced).expect("a line");
        let announced: Value = serde_json::from_str(&announced).expect("the server listens");
        let url = announced["url"].as_str().expect("a URL");
        let address = url.strip_prefix("http://").and_then(|address| address.parse().ok());
        Server { process: self, address: address.expect("an address") }
    }
}

impl Server {
    /// Starts a server of the model in the folder `model`, with further arguments, and waits until it listens.
    pub(crate) fn start(workspace: &TestWorkspace, args: &[&str]) -> Self {
        StartingServer::start(workspace, args).ready()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Asks the server to end.
    pub(crate) fn signal(&self) {
        let id = self.process.0.as_ref().map(Child::id).expect("it runs").to_string();
        assert!(Command::new("kill").arg(id).status().expect("kill starts").success());
    }

    /// Waits for the end of the server.
    pub(crate) fn end(mut self) -> ProcessEnd {
        ProcessEnd::of(self.process.0.take().expect("it runs"))
    }
}

impl Drop for StartingServer {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().expect("killed");
            child.wait().expect("it ended");
        }
    }
}
