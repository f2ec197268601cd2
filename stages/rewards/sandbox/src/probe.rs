//! The probe of the available isolation.

use std::fmt;
use std::fs;

use super::config::{Isolation, SandboxConfig};
use super::error::SandboxError;
use super::zygote::IsolationFacts;

/// The isolation of the processes of a slot, layer by layer, as measured when the slot starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    isolation: Isolation,
    layers: Vec<Layer>,
    limits: String,
    cgroups: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Layer {
    name: &'static str,
    /// `Ok` with the scope of an active layer, such as `for each job`, or with the user of the runs for the layer `user`. `Err` with the
    /// reason if the layer is missing.
    state: Result<String, String>,
}

/// Namespaces: the kernel's name and the displayed name.
const NAMESPACES: [(&str, &str); 6] = [
    ("user", "user namespace"),
    ("pid", "pid namespace"),
    ("mnt", "mount namespace"),
    ("net", "network namespace"),
    ("ipc", "ipc namespace"),
    ("uts", "uts namespace"),
];

impl Probe {
    /// Builds the probe from the facts about a trial process. A namespace counts as isolated if it differs from that of this process.
    pub(super) fn of(config: &SandboxConfig, facts: &IsolationFacts) -> Self {
        let mut layers: Vec<_> =
            NAMESPACES.iter().map(|(link, name)| namespace(facts, link, name)).collect();
        layers.push(Layer { name: "seccomp", state: Ok("for each run".into()) });
        layers.push(user(facts));
        let cgroups = facts.cgroups.clone();
        Self { isolation: config.isolation, layers, limits: limits(config), cgroups }
    }

    /// Returns a probe without any isolation, because of `reason`.
    pub(super) fn failed(config: &SandboxConfig, reason: &str) -> Self {
        let layer = Layer { name: "isolation", state: Err(reason.into()) };
        let cgroups = "not tried".into();
        Self { isolation: config.isolation, layers: vec![layer], limits: limits(config), cgroups }
    }

    /// Returns `true` if all layers are active.
    #[must_use]
    pub fn is_isolated(&self) -> bool {
        self.missing().next().is_none()
    }

    fn missing(&self) -> impl Iterator<Item = String> {
        self.layers.iter().filter_map(|layer| {
            layer.state.as_ref().err().map(|why| format!("{} ({why})", layer.name))
        })
    }

    /// Returns an error if full isolation is requested and a layer is missing.
    pub(super) fn check(&self) -> Result<(), SandboxError> {
        let missing: Vec<_> = self.missing().collect();
        if self.isolation == Isolation::None || missing.is_empty() {
            return Ok(());
        }
        Err(SandboxError::NoIsolation { missing: missing.join(", ") })
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Layer { name, state, .. } in &self.layers {
            match state {
                Ok(what) => writeln!(f, "{name:<18} active: {what}")?,
                Err(why) => writeln!(f, "{name:<18} MISSING: {why}")?,
            }
        }
        writeln!(f, "{:<18} {}", "limits", self.limits)?;
        writeln!(f, "{:<18} {}", "cgroups", self.cgroups)?;
        if self.isolation == Isolation::None {
            writeln!(
                f,
                "warning: isolation = \"none\": code can read and write everything that this process can"
            )?;
        }
        Ok(())
    }
}

fn namespace(facts: &IsolationFacts, link: &str, name: &'static str) -> Layer {
    let state = match (fs::read_link(format!("/proc/self/ns/{link}")), facts.inner.get(link)) {
        (Err(error), _) => Err(error.to_string()),
        (Ok(_), None) => Err("not reported".into()),
        (Ok(own), Some(inner)) if own.to_string_lossy() == *inner => {
            Err("shared with this process".into())
        }
        (Ok(_), inner) if inner == facts.outer.get(link) => Ok("for each slot".into()),
        (Ok(_), Some(_)) => Ok("for each job".into()),
    };
    Layer { name, state }
}

fn user(facts: &IsolationFacts) -> Layer {
    let state = if facts.uid == 0 {
        Err("runs are root".into())
    } else {
        Ok(format!("runs are uid {}", facts.uid))
    };
    Layer { name: "user", state }
}

fn limits(config: &SandboxConfig) -> String {
    let SandboxConfig {
        memory_bytes,
        processes,
        file_bytes,
        open_files,
        tmpfs_bytes,
        output_bytes,
        ..
    } = config;
    let mib = |bytes: &u64| bytes >> 20;
    format!(
        "{} MiB of memory per process, {processes} processes, files of {} MiB, {open_files} open files, {} MiB in /tmp, {} MiB of output",
        mib(memory_bytes),
        mib(file_bytes),
        mib(tmpfs_bytes),
        mib(output_bytes)
    )
}
