//! What the runtime says, in the node's words. Pure.

use std::net::IpAddr;

use jiff::Timestamp;
use serde_json::Value;

use super::messages as cri;
use super::spec;
use crate::image::{Image, ImageConfig};
use crate::runtime::{ContainerPhase, ContainerState, SandboxState, Usage};

fn time(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The process a verbose answer tells of.
fn pid(info: &cri::Labels) -> Option<u32> {
    let info: Value = serde_json::from_str(info.get("info")?).ok()?;
    u32::try_from(info["pid"].as_u64()?).ok().filter(|pid| *pid > 0)
}

pub(super) fn sandbox(details: &cri::SandboxStatusResponse) -> Option<SandboxState> {
    let status = details.status.as_ref().filter(|status| status.state == cri::SANDBOX_READY)?;
    let network = status.network.iter();
    let addresses: Vec<IpAddr> = network
        .flat_map(|network| {
            std::iter::once(&network.ip).chain(network.additional_ips.iter().map(|ip| &ip.ip))
        })
        .filter_map(|ip| ip.parse().ok())
        .collect();
    Some(SandboxState { addresses, pid: pid(&details.info)?, created: time(status.created_at) })
}

pub(super) fn running_pid(details: &cri::ContainerStatusResponse) -> Option<u32> {
    details.status.as_ref().filter(|status| status.state == cri::state::RUNNING)?;
    pid(&details.info)
}

pub(super) fn has_terminal(details: &cri::ContainerStatusResponse) -> bool {
    let annotations = details.status.as_ref().map(|status| &status.annotations);
    annotations.and_then(|a| a.get(spec::TERMINAL)).is_some_and(|text| text == "true")
}

/// `current`: it was made in the sandbox that is up.
pub(super) fn container(details: &cri::ContainerStatusResponse, current: bool) -> Option<ContainerState> {
    let status = details.status.as_ref()?;
    let metadata = status.metadata.as_ref()?;
    let phase = match status.state {
        cri::state::RUNNING => ContainerPhase::Running { pid: pid(&details.info).unwrap_or(0) },
        cri::state::EXITED => ContainerPhase::Exited {
            code: status.exit_code,
            finished: time(status.finished_at),
            oom: status.reason == "OOMKilled",
        },
        _ => ContainerPhase::Lost,
    };
    Some(ContainerState {
        id: status.id.clone(),
        name: metadata.name.clone(),
        attempt: metadata.attempt,
        image: status.annotations.get(spec::IMAGE).cloned().unwrap_or_default(),
        image_id: status.image_ref.clone(),
        started: time(if status.started_at > 0 { status.started_at } else { status.created_at }),
        phase,
        current,
    })
}

pub(super) fn usage(answer: &cri::ContainerStatsResponse) -> Usage {
    let stats = answer.stats.as_ref();
    let value = |found: Option<&cri::UInt64Value>| found.map_or(0, |number| number.value);
    let memory = stats.and_then(|s| s.memory.as_ref());
    let working_set = value(memory.and_then(|m| m.working_set_bytes.as_ref()));
    Usage {
        cpu_nanos: value(stats.and_then(|s| s.cpu.as_ref()?.usage_core_nano_seconds.as_ref())),
        // Not every version tells both.
        memory_bytes: value(memory.and_then(|m| m.usage_bytes.as_ref())).max(working_set),
        working_set_bytes: working_set,
    }
}

/// The image's own configuration from a verbose answer.
pub(super) fn image_config(info: &cri::Labels) -> ImageConfig {
    let parsed = info.get("info").and_then(|text| serde_json::from_str::<Value>(text).ok());
    let config = parsed.map(|info| info["imageSpec"]["config"].clone()).unwrap_or_default();
    serde_json::from_value(config).unwrap_or_default()
}

pub(super) fn image(image: &cri::Image, config: ImageConfig) -> Image {
    Image {
        id: image.id.clone(),
        layers: Vec::new(),
        config,
        size: image.size,
        digests: image.repo_digests.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn details(state: i32, reason: &str) -> cri::ContainerStatusResponse {
        cri::ContainerStatusResponse {
            status: Some(cri::ContainerStatus {
                id: "c".into(),
                metadata: Some(cri::ContainerMetadata { name: "main".into(), attempt: 2 }),
                state,
                started_at: 5_000_000_000,
                finished_at: 7_000_000_000,
                exit_code: 137,
                reason: reason.into(),
                ..Default::default()
            }),
            info: cri::Labels::from([("info".to_owned(), r#"{"pid": 42}"#.to_owned())]),
        }
    }

    #[test]
    fn a_container_is_running_ended_or_lost() {
        let phase = |state, reason: &str| container(&details(state, reason), true).map(|c| c.phase);
        assert_eq!(phase(cri::state::RUNNING, ""), Some(ContainerPhase::Running { pid: 42 }));
        assert_eq!(running_pid(&details(cri::state::EXITED, "")), None);
        let Some(ContainerPhase::Exited { code: 137, finished, oom: true }) =
            phase(cri::state::EXITED, "OOMKilled")
        else {
            panic!("it ended for lack of memory");
        };
        assert_eq!(finished.as_second(), 7);
        assert_eq!(phase(3, ""), Some(ContainerPhase::Lost));
    }
}
