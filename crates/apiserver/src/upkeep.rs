//! What the server does by itself, beside answering: forgetting old history.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_store::CompactionSchedule;

use crate::server::App;

pub fn spawn(app: &Arc<App>) {
    let app = app.clone();
    let stop = app.stop.clone();
    tokio::spawn(async move {
        let mut schedule = CompactionSchedule::default();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(Duration::from_secs(60)) => {}
            }
            let Ok(revision) = app.store.revision().await else { continue };
            if let Some(old) = schedule.sample(Instant::now(), revision)
                && let Err(error) = app.store.compact(old).await
            {
                tracing::warn!(%error, "cannot forget old history");
            }
        }
    });
}
