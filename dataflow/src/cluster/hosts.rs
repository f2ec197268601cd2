//! Hostfiles: the addresses of a run's processes.

use std::num::NonZero;
use std::path::Path;

use super::error::ClusterError;

/// The addresses of all processes as `host:port`, in the order of their indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// Reads a hostfile with one address per line. Empty lines and text after a `#` are ignored.
    ///
    /// # Errors
    /// If the file cannot be read, a line is not an address, an address occurs twice, or the file lists no address.
    pub fn read(path: &Path) -> Result<Self, ClusterError> {
        let text = std::fs::read_to_string(path).map_err(|error| ClusterError::Read {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        Self::parse(&text, path)
    }

    /// Parses the text of a hostfile; `path` is its name in error messages.
    ///
    /// # Errors
    /// If a line is not an address, an address occurs twice, or the text lists no address.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ClusterError> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let mut hosts: Vec<String> = Vec::new();
        for (line, address) in (1..).zip(lines).filter(|(_, address)| !address.is_empty()) {
            if !is_address(address) {
                let (path, found) = (path.to_owned(), address.to_owned());
                return Err(ClusterError::Address { path, line, found });
            }
            if hosts.iter().any(|host| host == address) {
                let found = format!("`{address}` twice");
                return Err(ClusterError::Hosts { path: path.to_owned(), found });
            }
            hosts.push(address.to_owned());
        }
        if hosts.is_empty() {
            Err(ClusterError::Hosts { path: path.to_owned(), found: "none".to_owned() })
        } else {
            Ok(Self(hosts))
        }
    }

    /// Returns the number of processes, at least 1.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the address of a process.
    ///
    /// # Panics
    /// If there is no such process.
    #[must_use]
    pub fn address(&self, process: usize) -> &str {
        &self.0[process]
    }

    pub(crate) fn name(&self, process: usize) -> String {
        format!("process {process} ({})", self.0[process])
    }
}

/// Returns `true` for a host and a port that other processes can connect to. Port 0 would be a free port that they do not know.
fn is_address(address: &str) -> bool {
    address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<NonZero<u16>>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&[&str], &str>) {
        let found = Hosts::parse(text, Path::new("hosts"));
        let found = found.map(|hosts| hosts.0).map_err(|error| error.to_string());
        let expected = expected.map(|hosts| hosts.iter().map(|&host| host.to_owned()).collect());
        assert_eq!(found, expected.map_err(str::to_owned), "{text}");
    }

    #[test]
    fn a_hostfile_is_one_address_a_line() {
        check("a:1\n\n  b:2 # the second\n#c:3\n[::1]:4", Ok(&["a:1", "b:2", "[::1]:4"]));
        let refused = |line: u32, found: &str| {
            format!(
                "hosts, line {line}: expected `host:port` with a port from 1 to 65535, found `{found}`"
            )
        };
        check("a:1\nb", Err(&refused(2, "b")));
        check("a:99999", Err(&refused(1, "a:99999")));
        check("a:1\nb:0", Err(&refused(2, "b:0")));
        check("a:1\na:1", Err("hosts: expected one address for each process, found `a:1` twice"));
        check("# none", Err("hosts: expected one address for each process, found none"));
    }
}
