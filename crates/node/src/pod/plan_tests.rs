use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::runtime::SandboxState;

const EPOCH: i64 = 1_800_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(EPOCH + seconds).expect("in range")
}

fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"}, "spec": spec})).expect("pod")
}

fn sandbox() -> Option<SandboxState> {
    Some(SandboxState { addresses: vec![], pid: 1, created: at(0) })
}

fn container(name: &str, attempt: u32, started: i64, phase: ContainerPhase) -> ContainerState {
    ContainerState {
        id: format!("{name}-{attempt}"),
        name: name.into(),
        attempt,
        image: String::new(),
        image_id: String::new(),
        started: at(started),
        phase,
        current: started >= 0,
    }
}

fn ended(code: i32, finished: i64) -> ContainerPhase {
    ContainerPhase::Exited { code, finished: at(finished), oom: false }
}

const RUNNING: ContainerPhase = ContainerPhase::Running { pid: 7 };

fn starts(decision: &Decision) -> Vec<(&str, u32)> {
    let start = |a: &'_ Action| match a {
        Action::Start { name, attempt } => Some((name.as_str().to_owned(), *attempt)),
        _ => None,
    };
    let list: Vec<(String, u32)> = decision.actions.iter().filter_map(start).collect();
    list.into_iter().map(|(name, attempt)| (&*Box::leak(name.into_boxed_str()), attempt)).collect()
}

fn decide(pod: &Pod, containers: Vec<ContainerState>, now: i64) -> Decision {
    plan(pod, &PodState { sandbox: sandbox(), containers }, &Memory::default(), at(now))
}

#[test]
fn the_sandbox_comes_first_then_init_containers_in_order_then_the_rest_at_once() {
    let pod = pod(
        json!({"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i1"}, {"name": "i2"}]}),
    );
    let nothing = plan(&pod, &PodState::default(), &Memory::default(), at(1));
    assert_eq!(nothing.actions, [Action::StartSandbox]);
    assert_eq!(starts(&decide(&pod, vec![], 1)), [("i1", 0)]);
    let first = container("i1", 0, 1, RUNNING);
    assert!(decide(&pod, vec![first], 2).actions.is_empty());
    let first = container("i1", 0, 1, ended(0, 2));
    assert_eq!(starts(&decide(&pod, vec![first.clone()], 3)), [("i2", 0)]);
    let second = container("i2", 0, 3, ended(0, 4));
    assert_eq!(starts(&decide(&pod, vec![first, second], 5)), [("a", 0), ("b", 0)]);
}

#[test]
fn a_sidecar_starts_before_the_rest_keeps_running_and_restarts() {
    let pod = pod(
        json!({"containers": [{"name": "a"}], "initContainers": [{"name": "s", "restartPolicy": "Always"}], "restartPolicy": "Never"}),
    );
    assert_eq!(starts(&decide(&pod, vec![], 1)), [("s", 0)]);
    let sidecar = container("s", 0, 1, RUNNING);
    assert_eq!(starts(&decide(&pod, vec![sidecar.clone()], 2)), [("a", 0)]);
    let main = container("a", 0, 2, RUNNING);
    let dead = container("s", 0, 1, ended(1, 3));
    assert_eq!(starts(&decide(&pod, vec![dead, main], 4)), [("s", 1)]);
    let done = container("a", 0, 2, ended(0, 5));
    let decision = decide(&pod, vec![sidecar, done], 6);
    assert!(
        matches!(decision.actions.as_slice(), [Action::Stop { name, .. }] if name == "s"),
        "{decision:?}"
    );
}

#[test]
fn restart_policies_are_followed() {
    for (policy, code, restarts) in [
        ("Always", 0, true),
        ("Always", 1, true),
        ("OnFailure", 0, false),
        ("OnFailure", 1, true),
        ("Never", 0, false),
        ("Never", 1, false),
    ] {
        let pod = pod(json!({"containers": [{"name": "a"}], "restartPolicy": policy}));
        let decision = decide(&pod, vec![container("a", 0, 1, ended(code, 2))], 3);
        assert_eq!(starts(&decision), if restarts { vec![("a", 1)] } else { vec![] }, "{policy} {code}");
        if !restarts {
            assert_eq!(decision.actions, [Action::StopSandbox]);
        }
    }
}

#[test]
fn a_container_that_keeps_failing_waits_longer_each_time_and_a_healthy_run_resets_it() {
    let pod = pod(json!({"containers": [{"name": "a"}]}));
    let mut memory = Memory::default();
    memory.container_mut("a").restarted(at(0), at(1));
    let state = |started, finished| PodState {
        sandbox: sandbox(),
        containers: vec![container("a", 1, started, ended(1, finished))],
    };
    let decision = plan(&pod, &state(2, 3), &memory, at(4));
    assert_eq!((decision.wake, decision.backing_off.as_slice()), (Some(at(13)), &["a".to_owned()][..]));
    assert_eq!(starts(&plan(&pod, &state(2, 3), &memory, at(13))), [("a", 2)]);
    memory.container_mut("a").restarted(at(2), at(3));
    assert_eq!(plan(&pod, &state(13, 14), &memory, at(15)).wake, Some(at(34)));
    assert_eq!(starts(&plan(&pod, &state(13, 13 + 700), &memory, at(714))), [("a", 2)]);
}

#[test]
fn after_a_reboot_init_containers_run_again_and_main_ones_restart() {
    let pod = pod(json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]}));
    let before = vec![container("a", 0, -90, ContainerPhase::Lost), container("i", 0, -100, ended(0, -95))];
    assert_eq!(starts(&decide(&pod, before.clone(), 1)), [("i", 1)]);
    let mut after = before;
    after.push(container("i", 1, 1, ended(0, 2)));
    assert_eq!(starts(&decide(&pod, after, 3)), [("a", 1)]);
}

#[test]
fn a_pod_past_its_deadline_fails() {
    let mut pod = pod(json!({"containers": [{"name": "a"}], "activeDeadlineSeconds": 10}));
    pod.status = serde_json::from_value(json!({"startTime": at(0)})).ok();
    let running = vec![container("a", 0, 1, RUNNING)];
    assert_eq!(decide(&pod, running.clone(), 5).wake, Some(at(10)));
    assert!(matches!(
        decide(&pod, running, 10).actions.as_slice(),
        [Action::Fail { reason: "DeadlineExceeded", .. }]
    ));
}

#[test]
fn a_failing_liveness_probe_stops_the_container_once() {
    let pod = pod(json!({"containers": [{"name": "a", "livenessProbe": {"exec": {"command": ["x"]}}}]}));
    let mut memory = Memory::default();
    memory.container_mut("a").probed = "a-0".into();
    memory.container_mut("a").probes.liveness = Some(false);
    let state = PodState { sandbox: sandbox(), containers: vec![container("a", 0, 1, RUNNING)] };
    assert!(matches!(plan(&pod, &state, &memory, at(2)).actions.as_slice(), [Action::Stop { .. }]));
    memory.stopping.push("a-0".into());
    assert!(plan(&pod, &state, &memory, at(2)).actions.is_empty());
}

/// A pretend runtime: does what the plan says, and lets containers end with given codes.
fn simulate(pod: &Pod, codes: &[i32]) -> (PodState, usize) {
    let mut state = PodState::default();
    let mut memory = Memory::default();
    let mut now = 0;
    let mut codes = codes.iter().copied();
    let mut steps = 0;
    for _ in 0..2000 {
        let decision = plan(pod, &state, &memory, at(now));
        if decision.actions.is_empty() {
            let running = state.containers.iter().position(|c| c.phase == RUNNING);
            match (decision.wake, running) {
                (Some(wake), _) => now = now.max(wake.as_second() - EPOCH),
                (None, Some(index)) => match codes.next() {
                    Some(code) => state.containers[index].phase = ended(code, now + 1),
                    None => break,
                },
                (None, None) => break,
            }
        }
        now += 1;
        steps += decision.actions.len();
        for action in decision.actions {
            match action {
                Action::StartSandbox => {
                    state.sandbox = Some(SandboxState { addresses: vec![], pid: 1, created: at(now) })
                }
                Action::Start { name, attempt } => {
                    assert!(state.sandbox.is_some(), "no container without a sandbox");
                    assert!(
                        !state.containers.iter().any(|c| c.name == name && c.phase == RUNNING),
                        "never two of one name"
                    );
                    if let Some(last) = latest(&state, &name)
                        && let ContainerPhase::Exited { finished, .. } = last.phase
                    {
                        memory.container_mut(&name).restarted(last.started, finished);
                    }
                    state.containers.push(container(&name, attempt, now, RUNNING));
                }
                Action::Stop { id, .. } => {
                    for c in state.containers.iter_mut().filter(|c| c.id == id) {
                        c.phase = ended(143, now);
                    }
                }
                Action::StopSandbox => {
                    assert!(state.containers.iter().all(|c| c.phase != RUNNING));
                    state.sandbox = None;
                    memory.finished = true;
                }
                Action::Remove { id } => state.containers.retain(|c| c.id != id),
                Action::Fail { .. } => {}
            }
        }
    }
    (state, steps)
}

proptest! {
    #[test]
    fn whatever_containers_do_the_plan_keeps_its_rules_and_comes_to_rest(
        mains in 1usize..4, inits in 0usize..3, sidecars in 0usize..2, policy in 0usize..3,
        codes in proptest::collection::vec(prop_oneof![Just(0), Just(1), Just(137)], 0..25),
    ) {
        let policy = ["Always", "OnFailure", "Never"][policy];
        let names = |prefix: &str, count: usize| (0..count).map(|i| json!({"name": format!("{prefix}{i}")})).collect::<Vec<_>>();
        let mut init = names("init", inits);
        init.extend((0..sidecars).map(|i| json!({"name": format!("side{i}"), "restartPolicy": "Always"})));
        let pod = pod(json!({"containers": names("main", mains), "initContainers": init, "restartPolicy": policy}));
        let (state, steps) = simulate(&pod, &codes);
        prop_assert!(steps < 1500, "the plan does not come to rest");
        // Of each name at most the newest and the one before it are kept.
        for container in &state.containers {
            prop_assert!(state.containers.iter().filter(|c| c.name == container.name).count() <= 3);
        }
        if policy == "Always" && state.sandbox.is_some() {
            let running = state.containers.iter().filter(|c| c.phase == RUNNING).count();
            prop_assert!(running >= 1, "something runs or waits to");
        }
    }
}
