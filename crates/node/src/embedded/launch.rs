//! The last step before a container's program runs: its terminal, its system call filter, its capabilities.

use std::collections::HashSet;
use std::path::Path;
use std::str::FromStr;

use caps::{CapSet, Capability};
use libcontainer::oci_spec::runtime::Spec;
use libcontainer::workload::default::DefaultExecutor;
use libcontainer::workload::{Executor, ExecutorError, ExecutorValidationError};
use serde::{Deserialize, Serialize};

use super::seccomp;

/// Runs the program of a container.
///
/// A filter may be installed only by a process with CAP_SYS_ADMIN or with "no new privileges". So a filtered
/// container is created with that capability in hand, the filter is installed here, and then the capabilities
/// are cut to what the pod asked for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Launch {
    /// Standard input is a terminal that this session shall control.
    pub terminal: bool,
    /// Apply the default system call filter.
    pub filtered: bool,
    /// End when the process that started us ends: a command must not outlive its session.
    #[serde(default)]
    pub dies_with_parent: bool,
    /// The capabilities that remain; only looked at when `filtered`.
    pub capabilities: Vec<String>,
}

impl Executor for Launch {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let failed =
            |what: &str, error: &dyn std::fmt::Display| ExecutorError::Other(format!("{what}: {error}"));
        if self.dies_with_parent {
            nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)
                .map_err(|e| failed("prctl", &e))?;
        }
        if self.terminal {
            crate::sys::take_terminal().map_err(|e| failed("take the terminal", &e))?;
        }
        if self.filtered {
            for filter in
                seccomp::default_filters(&self.capabilities).map_err(|e| failed("system call filter", &e))?
            {
                crate::sys::install_filter(&filter)
                    .map_err(|e| failed("install the system call filter", &e))?;
            }
            self.cut_capabilities().map_err(|e| failed("drop capabilities", &e))?;
        }
        DefaultExecutor {}.exec(spec)
    }

    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        let process = spec.process().as_ref();
        let program =
            process.and_then(|p| p.args().as_ref()).and_then(|a| a.first()).map_or("", String::as_str);
        if program.contains('/') && !Path::new(program).exists() {
            return Err(ExecutorValidationError::ArgValidationError(format!(
                "exec: {program:?}: no such file or directory"
            )));
        }
        DefaultExecutor {}.validate(spec).map_err(|error| match error {
            ExecutorValidationError::ArgValidationError(_) if !program.contains('/') => {
                ExecutorValidationError::ArgValidationError(format!(
                    "exec: {program:?}: executable file not found in $PATH"
                ))
            }
            other => other,
        })
    }
}

impl Launch {
    fn cut_capabilities(&self) -> Result<(), caps::errors::CapsError> {
        let keep: HashSet<Capability> =
            self.capabilities.iter().filter_map(|name| Capability::from_str(name).ok()).collect();
        for capability in caps::read(None, CapSet::Bounding)?.difference(&keep) {
            caps::drop(None, CapSet::Bounding, *capability)?;
        }
        let had: HashSet<Capability> = caps::read(None, CapSet::Effective)?;
        caps::set(None, CapSet::Effective, &had.intersection(&keep).copied().collect())?;
        let had: HashSet<Capability> = caps::read(None, CapSet::Permitted)?;
        caps::set(None, CapSet::Permitted, &had.intersection(&keep).copied().collect())
    }
}
