//! What the server does by itself, beside answering: forgetting old history and old events, taking note of changed
//! definitions, and finishing what a stopped server left behind.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_store::{CompactionSchedule, Expect, Range, StoreError};

use crate::crd::{self, lifecycle};
use crate::registry::builtin::place;
use crate::server::App;

const EVERY: Duration = Duration::from_secs(60);
/// How long events are kept after they were last written.
const EVENTS_LIVE: Duration = Duration::from_secs(3600);

pub fn spawn(app: &Arc<App>) {
    tokio::spawn(follow_definitions(app.clone()));
    let app = app.clone();
    let stop = app.stop.clone();
    tokio::spawn(async move {
        resume_cleanups(&app).await;
        let mut compaction = CompactionSchedule::default();
        let mut past = Past::default();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
            let Ok(revision) = app.store.revision().await else { continue };
            let now = Instant::now();
            if let Some(old) = compaction.sample(now, revision)
                && let Err(error) = app.store.compact(old).await
            {
                tracing::warn!(%error, "cannot forget old history");
            }
            if let Some(old) = past.sample(now, revision)
                && let Err(error) = expire_events(&app, old).await
            {
                tracing::warn!(%error, "cannot remove old events");
            }
        }
    });
}

/// Watches end when their definition changes, also where nobody asks for anything.
async fn follow_definitions(app: Arc<App>) {
    let stop = app.stop.clone();
    let follow = async {
        loop {
            if let Err(error) = note_definitions(&app).await {
                match error {
                    StoreError::Closed => return,
                    StoreError::Lagged { .. } | StoreError::Compacted { .. } => {}
                    error => {
                        tracing::warn!(%error, "cannot follow the custom resource definitions");
                        tokio::time::sleep(EVERY).await;
                    }
                }
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow => {}
    }
}

async fn note_definitions(app: &App) -> Result<(), StoreError> {
    let revision = app.store.revision().await?;
    let mut watch = app.store.watch(&crd::source(), revision).await?;
    loop {
        app.registry.note(&*app.store).await?;
        watch.next().await?;
    }
}

/// Definitions that were being deleted when the server stopped.
async fn resume_cleanups(app: &Arc<App>) {
    let Ok(definitions) = app.registry.custom(app).await.map(|d| d.all()) else { return };
    for definition in definitions.iter().filter(|d| lifecycle::needs_cleanup(d)) {
        lifecycle::spawn_cleanup(app, definition);
    }
}

/// Which revision was current when: tells the age of a record without reading it.
#[derive(Default)]
struct Past {
    samples: VecDeque<(Instant, u64)>,
}

impl Past {
    /// The newest revision that is older than events live.
    fn sample(&mut self, now: Instant, revision: u64) -> Option<u64> {
        self.samples.push_back((now, revision));
        let mut old = None;
        while let Some(&(at, revision)) = self.samples.front()
            && now.saturating_duration_since(at) >= EVENTS_LIVE
        {
            old = Some(revision);
            self.samples.pop_front();
        }
        old
    }
}

async fn expire_events(app: &App, old: u64) -> Result<(), StoreError> {
    let events = app.registry.built_in.find("", "v1", "events").expect("the tables hold events");
    let page = app.store.range(Range::all(&place("", "events"))).await?;
    for record in page.records.iter().filter(|r| r.revision <= old) {
        match app.store.delete(&record.key, Expect::Revision(record.revision), events.durability).await {
            Ok(_) | Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_old_an_hour_after_its_last_write() {
        let start = Instant::now();
        let mut past = Past::default();
        assert_eq!(past.sample(start, 10), None);
        assert_eq!(past.sample(start + Duration::from_secs(1800), 20), None);
        assert_eq!(past.sample(start + Duration::from_secs(3600), 30), Some(10));
        assert_eq!(past.sample(start + Duration::from_secs(5400), 40), Some(20));
    }
}
