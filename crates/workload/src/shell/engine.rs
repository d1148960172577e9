//! Wires controllers to caches and runs their plans.

use super::{ActError, Action, Key, Recorder, Shell, Watch, World, queue::Queue};
use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use kube::Client;
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::{sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Keys worked on at once.
const WORKERS: usize = 64;

/// When to look again; `None`: at the next change.
pub type Reconciled = Result<Option<Duration>, ActError>;

/// One controller: which kinds it watches, which keys a change concerns, and what to do about a key.
pub trait Controller: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    fn watches(&self) -> &'static [Watch];

    /// Registers handlers on the caches of `world` that enqueue the keys a change concerns.
    fn wire(&self, world: &Arc<World>, enqueue: Enqueue);

    /// Told once which kinds the process follows anyway, for controllers that care about all kinds.
    fn feed(&self, _world: &Arc<World>, _followed: &[Watch]) {}

    /// Snapshot and pure plan. Most controllers are only this.
    fn plan(&self, _key: &Key, _world: &World, _now: Timestamp) -> Vec<Action> {
        Vec::new()
    }

    /// For the few controllers that must ask the server while they decide.
    fn reconcile<'a>(&'a self, _key: &'a Key, _shell: &'a Shell) -> Option<BoxFuture<'a, Reconciled>> {
        None
    }

    /// A task that runs beside the queue, for as long as the engine does.
    fn background(
        self: Arc<Self>,
        _shell: Shell,
        _shutdown: CancellationToken,
    ) -> Option<BoxFuture<'static, ()>> {
        None
    }
}

/// Adds keys to the queue of one controller.
#[derive(Clone)]
pub struct Enqueue {
    queue: Arc<Queue>,
    controller: usize,
}

impl Enqueue {
    pub fn add(&self, key: Key) {
        self.queue.add((self.controller, key));
    }

    pub fn add_after(&self, key: Key, delay: Duration) {
        self.queue.add_after((self.controller, key), delay);
    }
}

pub struct Engine {
    shell: Shell,
    controllers: Vec<Arc<dyn Controller>>,
    followed: Vec<Watch>,
}

impl Engine {
    pub fn new(client: Client, controllers: Vec<Arc<dyn Controller>>) -> Self {
        let shell = Shell::new(client.clone(), Arc::new(World::default()), Recorder::new(client));
        for (index, controller) in controllers.iter().enumerate() {
            controller.wire(&shell.world, Enqueue { queue: shell.queue.clone(), controller: index });
        }
        let followed: BTreeSet<Watch> = controllers.iter().flat_map(|c| c.watches()).copied().collect();
        let followed: Vec<Watch> = followed.into_iter().collect();
        for controller in &controllers {
            controller.feed(&shell.world, &followed);
        }
        Self { shell, controllers, followed }
    }

    /// Runs until `shutdown`; plans start when every watched kind is listed.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut tasks = JoinSet::new();
        for watch in &self.followed {
            tasks.spawn(self.shell.world.follow(*watch, self.shell.client.clone(), shutdown.clone()));
        }
        tasks.spawn(self.shell.events.clone().run(shutdown.clone()));
        for watch in &self.followed {
            tokio::select! {
                () = self.shell.world.synced(*watch) => {}
                () = shutdown.cancelled() => {}
            }
        }
        for controller in &self.controllers {
            if let Some(task) = controller.clone().background(self.shell.clone(), shutdown.clone()) {
                tasks.spawn(task);
            }
        }
        let workers = Arc::new(Semaphore::new(WORKERS));
        let mut running = JoinSet::new();
        loop {
            let Ok(permit) = workers.clone().acquire_owned().await else { break };
            let task = tokio::select! {
                task = self.shell.queue.next() => task,
                () = shutdown.cancelled() => break,
            };
            let (controller, shell) = (self.controllers[task.0].clone(), self.shell.clone());
            running.spawn(async move {
                let outcome = match controller.reconcile(&task.1, &shell) {
                    Some(work) => work.await,
                    None => {
                        let plan = controller.plan(&task.1, &shell.world, shell.now());
                        shell.act_for(&task, plan).await
                    }
                };
                match &outcome {
                    Ok(Some(delay)) => shell.queue.add_after(task.clone(), *delay),
                    Ok(None) => {}
                    Err(error) => {
                        tracing::debug!(controller = controller.name(), key = %task.1, %error, "will try again");
                    }
                }
                shell.queue.done(task, outcome.is_err());
                drop(permit);
            });
            while running.join_next().now_or_never().flatten().is_some() {}
        }
        // Plans are safe to cut short at any request: the next run starts from what the server holds.
        running.shutdown().await;
        tasks.shutdown().await;
    }
}
