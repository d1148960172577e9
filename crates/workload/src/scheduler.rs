//! The scheduler's shell: feeds the placement snapshot from watches, asks it, posts Bindings.
//!
//! Decisions are made one after the other over one snapshot (each counts at once, before its binding is written);
//! bindings are written side by side. A pod that does not fit waits until something changes that could help.

use crate::{
    meta::{self, tell},
    pod,
    shell::{Action, Controller, Enqueue, Key, Object, PatchKind, Severity, Shell, Watch, World},
};
use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use parking_lot::Mutex;
use serde_json::json;
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tombolo_placement::pods::{
    Cluster, Decision, NodeView, PodView, Unschedulable, preempt, queue_order, schedule,
};

const COMPONENT: &str = "default-scheduler";
/// Bindings being written at once.
const BINDINGS: usize = 64;
/// Before a pod whose binding failed is decided again.
const RETRY: std::time::Duration = std::time::Duration::from_millis(100);
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

#[derive(Default)]
struct State {
    cluster: Cluster,
    /// To be decided now.
    ready: BTreeSet<Key>,
    /// Decided not to fit; back to `ready` when the cluster changes.
    unfit: BTreeSet<Key>,
    /// Decided, binding not seen yet: the uid of the pod.
    assumed: HashMap<Key, String>,
    /// Pods for whose sake others were asked to leave.
    nominated: HashMap<Key, Nomination>,
}

/// The room that a pod makes for itself is its own: else whoever comes first, such as the victim's successor, takes it, and
/// has to leave in turn.
struct Nomination {
    pod: PodView,
    node: String,
    victims: Vec<String>,
}

#[derive(Default)]
pub struct Scheduler {
    state: Mutex<State>,
    wake: Notify,
}

fn is_waiting(pod: &Pod) -> bool {
    let ours = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref()).unwrap_or(COMPONENT);
    pod::node(pod).is_none() && ours == COMPONENT && pod::is_active(pod)
}

impl State {
    /// Decides about one pod, as if those that make room, and matter no less, had taken it already.
    fn decide(&mut self, key: &Key, pod: &PodView) -> Decision {
        let mut held = Vec::new();
        for nomination in self.nominated.iter().filter(|(other, _)| *other != key).map(|(_, n)| n) {
            let name = nomination.pod.key();
            if nomination.pod.priority >= pod.priority && self.cluster.node_of(&name).is_none() {
                self.cluster.assume(&nomination.pod, &nomination.node);
                held.push(name);
            }
        }
        let decision = schedule(&self.cluster, pod);
        held.iter().for_each(|name| drop(self.cluster.remove_pod(name)));
        decision
    }

    fn pod_changed(&mut self, old: Option<&Arc<Pod>>, new: Option<&Arc<Pod>>) {
        let Some(pod) = new.or(old) else { return };
        let key = Key::of(&pod.metadata);
        let same = self.assumed.get(&key).is_some_and(|uid| uid == meta::uid(&pod.metadata));
        match new {
            Some(pod) if is_waiting(pod) => {
                // Our own note in its status, why it does not fit, is no reason to look again.
                let noted =
                    old.is_some_and(|old| old.spec == pod.spec && old.metadata.labels == pod.metadata.labels);
                if !same && !(noted && self.unfit.contains(&key)) {
                    self.unfit.remove(&key);
                    self.ready.insert(key);
                }
            }
            Some(pod) => {
                self.drop_waiting(&key);
                self.cluster.set_pod(PodView::from(&**pod));
                if pod::is_finished(pod) || pod::is_deleting(pod) {
                    self.something_freed();
                }
            }
            None => {
                self.drop_waiting(&key);
                self.cluster.remove_pod(&format!("{}/{}", key.namespace, key.name));
                self.something_freed();
            }
        }
    }

    fn drop_waiting(&mut self, key: &Key) {
        self.ready.remove(key);
        self.unfit.remove(key);
        self.assumed.remove(key);
        self.nominated.remove(key);
    }

    fn something_freed(&mut self) {
        self.ready.append(&mut self.unfit);
    }
}

/// What the pod's claims mean for scheduling.
enum Claims {
    Ready,
    /// Claims that wait for the pod's node to be chosen.
    Choose(Vec<Arc<PersistentVolumeClaim>>),
}

impl Scheduler {
    fn view(world: &World, pod: &Pod) -> (PodView, Claims) {
        let mut view = PodView::from(pod);
        let mut choose = Vec::new();
        for name in crate::volume::claim_names(pod) {
            let namespace = meta::namespace(&pod.metadata);
            let Some(claim) = world.volume_claims.get(&Key::new(namespace, &name)) else {
                view.blocked.push(format!("persistentvolumeclaim \"{name}\" not found"));
                continue;
            };
            if claim.metadata.deletion_timestamp.is_some() {
                view.blocked.push(format!("persistentvolumeclaim \"{name}\" is being deleted"));
            } else if crate::volume::is_bound(&claim) {
                let volume =
                    claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
                match world.volumes.get(&Key::new("", volume)) {
                    Some(volume) => view.add_volume(&volume),
                    None => view.blocked.push(format!("persistentvolume \"{volume}\" not found")),
                }
            } else if crate::volume::waits_for_consumer(world, &claim) {
                choose.push(claim);
            } else {
                view.blocked.push("pod has unbound immediate PersistentVolumeClaims".into());
            }
        }
        (view, if choose.is_empty() { Claims::Ready } else { Claims::Choose(choose) })
    }

    async fn run(self: Arc<Self>, shell: Shell, shutdown: CancellationToken) {
        let slots = Arc::new(Semaphore::new(BINDINGS));
        loop {
            let ready = std::mem::take(&mut self.state.lock().ready);
            if ready.is_empty() {
                tokio::select! {
                    () = self.wake.notified() => continue,
                    () = shutdown.cancelled() => return,
                }
            }
            let mut waiting: Vec<_> = ready
                .into_iter()
                .filter_map(|key| Some((key.clone(), shell.world.pods.get(&key)?)))
                .filter(|(_, pod)| is_waiting(pod))
                .map(|(key, pod)| {
                    let (view, claims) = Self::view(&shell.world, &pod);
                    (key, pod, view, claims)
                })
                .collect();
            let since = |pod: &Pod| meta::created(&pod.metadata).as_second().unsigned_abs();
            waiting.sort_by(|a, b| queue_order((&a.2, since(&a.1)), (&b.2, since(&b.1))));
            for (key, pod, view, claims) in waiting {
                let decision = {
                    let mut state = self.state.lock();
                    let decision = state.decide(&key, &view);
                    match (&decision, &claims) {
                        (Decision::Node(choice), Claims::Ready) => {
                            state.nominated.remove(&key);
                            state.cluster.assume(&view, &choice.node);
                            state.assumed.insert(key.clone(), meta::uid(&pod.metadata).to_owned());
                        }
                        // Back when the claims are bound, or when the pod does fit somewhere.
                        _ => drop(state.unfit.insert(key.clone())),
                    }
                    decision
                };
                let Ok(slot) = slots.clone().acquire_owned().await else { return };
                let (this, shell) = (self.clone(), shell.clone());
                tokio::spawn(async move {
                    match (decision, claims) {
                        (Decision::Node(choice), Claims::Ready) => {
                            this.bind(&shell, key, &pod, &choice.node).await
                        }
                        (Decision::Node(choice), Claims::Choose(claims)) => {
                            choose_node(&shell, &claims, &choice.node).await;
                        }
                        (Decision::None(why), _) => this.refuse(&shell, key, &pod, &view, &why).await,
                    }
                    drop(slot);
                });
            }
        }
    }

    async fn bind(&self, shell: &Shell, key: Key, pod: &Pod, node: &str) {
        let body = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"namespace": key.namespace, "name": key.name, "uid": pod.metadata.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let path = Pod::RESOURCE.path(&key.namespace, &key.name, "binding");
        match shell.send("POST", &path, "application/json", body.to_string().into_bytes()).await {
            Ok(_) => {
                let message = format!("Successfully assigned {key} to {node}");
                note(shell, pod, Severity::Normal, "Scheduled", message);
            }
            Err(error) => {
                // Gone, or bound by someone else: the watch will tell. Anything else is tried again.
                let again = !error.is_not_found() && !error.is_conflict();
                if again {
                    tracing::warn!(pod = %key, %error, "binding failed; deciding again");
                    tokio::time::sleep(RETRY).await;
                }
                self.take_back(key, again);
            }
        }
    }

    fn take_back(&self, key: Key, again: bool) {
        let mut state = self.state.lock();
        state.assumed.remove(&key);
        state.cluster.remove_pod(&format!("{}/{}", key.namespace, key.name));
        if again {
            state.ready.insert(key);
        }
        drop(state);
        self.wake.notify_one();
    }

    async fn refuse(&self, shell: &Shell, key: Key, pod: &Pod, view: &PodView, why: &Unschedulable) {
        let message = why.to_string();
        let gated = pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.scheduling_gates.as_ref().is_some_and(|g| !g.is_empty()));
        let reason = if gated { "SchedulingGated" } else { "Unschedulable" };
        if !gated {
            note(shell, pod, Severity::Warning, "FailedScheduling", message.clone());
        }
        let path = Pod::RESOURCE.path(&key.namespace, &key.name, "status");
        if let Some(conditions) =
            pod::with_condition(pod, "PodScheduled", "False", reason, &message, shell.now())
        {
            let body = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": conditions}});
            if let Err(error) = shell.patch(&path, PatchKind::Merge, &body).await
                && !error.is_not_found()
            {
                tracing::warn!(pod = %key, %error, "cannot write why the pod does not fit");
            }
        }
        if !gated {
            self.make_room(shell, key, pod, view, why).await;
        }
    }

    /// Asks pods of lower priority to leave, if that lets this one in.
    async fn make_room(&self, shell: &Shell, key: Key, pod: &Pod, view: &PodView, why: &Unschedulable) {
        let preemption = {
            let mut state = self.state.lock();
            let still_leaving = state
                .nominated
                .get(&key)
                .is_some_and(|n| n.victims.iter().any(|k| state.cluster.node_of(k).is_some()));
            // One that went meanwhile needs no room.
            if still_leaving || !(state.unfit.contains(&key) || state.ready.contains(&key)) {
                return;
            }
            state.nominated.remove(&key);
            let Some(preemption) = preempt(&state.cluster, view, why) else { return };
            let (pod, node, victims) = (view.clone(), preemption.node.clone(), preemption.victims.clone());
            state.nominated.insert(key.clone(), Nomination { pod, node, victims });
            preemption
        };
        let path = Pod::RESOURCE.path(&key.namespace, &key.name, "status");
        let body = json!({"status": {"nominatedNodeName": preemption.node}});
        let _ = shell.patch(&path, PatchKind::Merge, &body).await;
        for victim in &preemption.victims {
            let Some((namespace, name)) = victim.split_once('/') else { continue };
            let Some(victim) = shell.world.pods.get(&Key::new(namespace, name)) else { continue };
            let message =
                format!("Preempted by pod {} on node {}", meta::uid(&pod.metadata), preemption.node);
            note(shell, &victim, Severity::Normal, "Preempted", message);
            if let Err(error) = shell.act(preempted(&victim, shell.now())).await {
                tracing::warn!(pod = %key, %error, "cannot preempt");
            }
        }
    }
}

/// A pod that has to leave is told why before it goes: who counts its failures (a Job, say) can leave this one out.
fn preempted(victim: &Pod, now: Timestamp) -> Vec<Action> {
    let text = format!("{COMPONENT}: preempting to accommodate a higher priority pod");
    let conditions =
        pod::with_condition(victim, "DisruptionTarget", "True", "PreemptionByScheduler", &text, now);
    let mark = conditions.map(|conditions| {
        let body = json!({"metadata": {"uid": victim.metadata.uid}, "status": {"conditions": conditions}});
        meta::patch::<Pod>(&victim.metadata, "status", &body)
    });
    mark.into_iter().chain([meta::delete::<Pod>(&victim.metadata)]).collect()
}

fn note(shell: &Shell, pod: &Pod, severity: Severity, reason: &'static str, message: String) {
    if let Action::Tell(note) = tell::<Pod>(&pod.metadata, COMPONENT, severity, reason, message) {
        shell.events.tell(note);
    }
}

/// Tells the volume binder on which node the pod's volumes shall be made.
async fn choose_node(shell: &Shell, claims: &[Arc<PersistentVolumeClaim>], node: &str) {
    for claim in claims {
        if meta::annotation(&claim.metadata, SELECTED_NODE).is_some() {
            continue;
        }
        let body = json!({"metadata": {"annotations": {SELECTED_NODE: node}}});
        let action = meta::patch::<PersistentVolumeClaim>(&claim.metadata, "", &body);
        if let Err(error) = shell.act(vec![action]).await {
            tracing::warn!(claim = meta::name(&claim.metadata), %error, "cannot choose a node for the claim");
        }
    }
}

/// The engine's side of the scheduler.
pub struct Scheduling(pub Arc<Scheduler>);

impl Controller for Scheduling {
    fn name(&self) -> &'static str {
        "scheduler"
    }

    fn watches(&self) -> &'static [Watch] {
        &[
            Watch::Pods,
            Watch::Nodes,
            Watch::Namespaces,
            Watch::VolumeClaims,
            Watch::Volumes,
            Watch::StorageClasses,
        ]
    }

    fn wire(&self, world: &Arc<World>, _enqueue: Enqueue) {
        let scheduler = self.0.clone();
        world.pods.on_change(move |old, new| {
            scheduler.state.lock().pod_changed(old, new);
            scheduler.wake.notify_one();
        });
        let scheduler = self.0.clone();
        world.nodes.on_change(move |old, new| {
            let mut state = scheduler.state.lock();
            match (old, new) {
                (_, Some(node)) => {
                    let view = NodeView::from(&**node);
                    if old.is_some_and(|old| NodeView::from(&**old) == view) {
                        return;
                    }
                    state.cluster.set_node(view);
                }
                (Some(node), None) => state.cluster.remove_node(meta::name(&node.metadata)),
                (None, None) => {}
            }
            state.something_freed();
            drop(state);
            scheduler.wake.notify_one();
        });
        let scheduler = self.0.clone();
        world.namespaces.on_change(move |old, new| {
            let mut state = scheduler.state.lock();
            match (old, new) {
                (_, Some(namespace)) => {
                    let labels = namespace.metadata.labels.clone().unwrap_or_default();
                    state.cluster.set_namespace(meta::name(&namespace.metadata), labels);
                }
                (Some(namespace), None) => state.cluster.remove_namespace(meta::name(&namespace.metadata)),
                (None, None) => {}
            }
        });
        let scheduler = self.0.clone();
        let volumes_changed = move || {
            scheduler.state.lock().something_freed();
            scheduler.wake.notify_one();
        };
        let changed = volumes_changed.clone();
        world.volume_claims.on_change(move |_, _| changed());
        world.volumes.on_change(move |_, _| volumes_changed());
    }

    fn background(
        self: Arc<Self>,
        shell: Shell,
        shutdown: CancellationToken,
    ) -> Option<BoxFuture<'static, ()>> {
        Some(self.0.clone().run(shell, shutdown).boxed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Node;
    use serde_json::Value;

    fn view(name: &str, priority: i32, cpu: &str) -> PodView {
        let pod = json!({
            "metadata": {"name": name, "namespace": "n"},
            "spec": {"priority": priority, "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        });
        PodView::from(&serde_json::from_value::<Pod>(pod).unwrap())
    }

    #[test]
    fn the_room_that_a_pod_makes_goes_to_nobody_who_matters_less() {
        let mut state = State::default();
        let node = json!({"metadata": {"name": "a"}, "status": {"allocatable": {"cpu": "10", "pods": "9"}}});
        state.cluster.set_node(NodeView::from(&serde_json::from_value::<Node>(node).unwrap()));
        state.cluster.assume(&view("stays", 3, "4"), "a");
        let preemptor = view("preemptor", 4, "5");
        let key = |name: &str| Key::new("n", name);
        let nomination = Nomination { pod: preemptor.clone(), node: "a".into(), victims: Vec::new() };
        state.nominated.insert(key("preemptor"), nomination);
        let mut fits = |name: &str, pod: &PodView| matches!(state.decide(&key(name), pod), Decision::Node(_));
        assert!(!fits("successor", &view("successor", 1, "2")), "of ten, five are spoken for");
        assert!(fits("small", &view("small", 1, "1")));
        assert!(fits("preemptor", &preemptor), "its own claim does not stand in its way");
        assert!(fits("urgent", &view("urgent", 9, "6")), "who matters more may have it");
        assert!(state.cluster.node_of("n/preemptor").is_none(), "nothing is kept");
    }

    #[test]
    fn a_pod_that_makes_room_is_told_why_before_it_goes() {
        let pod = json!({
            "metadata": {"name": "low", "namespace": "n", "uid": "u"}, "spec": {"containers": []},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let plan = preempted(&pod, Timestamp::UNIX_EPOCH);
        let [Action::Patch { subresource: "status", body, .. }, Action::Delete { uid, .. }] = plan.as_slice()
        else {
            panic!("{plan:?}")
        };
        assert_eq!(uid.as_deref(), Some("u"));
        let body: Value = body.read().unwrap();
        let conditions = &body["status"]["conditions"];
        assert_eq!(conditions[0]["type"], "Ready", "what others said stays");
        let told = (&conditions[1]["type"], &conditions[1]["status"], &conditions[1]["reason"]);
        assert_eq!(told, (&json!("DisruptionTarget"), &json!("True"), &json!("PreemptionByScheduler")));
    }
}
