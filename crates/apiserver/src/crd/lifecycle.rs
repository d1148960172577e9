//! The life of a definition: accepted and served at once, cleaned up when deleted.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tombolo_k8s::crd::{self, CLEANUP_FINALIZER, set_condition};
use tombolo_store::Range;

use super::definitions::Definitions;
use crate::http::route::Target;
use crate::http::status::{Failure, Result};
use crate::registry::delete::{self, DeleteOptions};
use crate::registry::resource::Shared;
use crate::registry::update::{self, Part, Proposal};
use crate::registry::write::{self, WriteOptions, metadata};
use crate::server::{App, Call};

/// Fills in the status of a new or changed definition: whether its names are free, and which versions it has stored.
pub fn settle(object: &mut Value, others: &Definitions) {
    crd::default_definition(object);
    let now = write::now();
    if let Some(storage) = crd::storage_version(object).map(str::to_owned) {
        if !object["status"].is_object() {
            object["status"] = json!({});
        }
        let stored = &mut object["status"]["storedVersions"];
        if !stored.is_array() {
            *stored = json!([]);
        }
        if let Some(list) = stored.as_array_mut()
            && !list.iter().any(|v| *v == storage.as_str())
        {
            list.push(storage.into());
        }
    }
    match conflict(object, others) {
        None => {
            object["status"]["acceptedNames"] = object["spec"]["names"].clone();
            set_condition(object, "NamesAccepted", "True", "NoConflicts", "no conflicts found", &now);
            let text = "the initial names have been accepted";
            set_condition(object, "Established", "True", "InitialNamesAccepted", text, &now);
        }
        Some((reason, message)) => {
            set_condition(object, "NamesAccepted", "False", reason, &message, &now);
            if !crd::has_condition(object, "Established") {
                let text = "not all names are accepted";
                set_condition(object, "Established", "False", "NotAccepted", text, &now);
            }
        }
    }
}

/// A name that another definition of the group has taken.
fn conflict(object: &Value, others: &Definitions) -> Option<(&'static str, String)> {
    let names = &object["spec"]["names"];
    let own = write::name_of(object);
    let mut resources: Vec<&str> = Vec::new();
    let mut kinds: Vec<&str> = Vec::new();
    for other in others.of_group(write::text(object, "/spec/group")).filter(|o| write::name_of(o) != own) {
        let accepted = &other["status"]["acceptedNames"];
        resources.extend(["plural", "singular"].iter().filter_map(|k| accepted[*k].as_str()));
        resources.extend(accepted["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str));
        kinds.extend(["kind", "listKind"].iter().filter_map(|k| accepted[*k].as_str()));
    }
    let taken = |list: &[&str], name: &str| !name.is_empty() && list.contains(&name);
    for (key, reason) in [("plural", "PluralConflict"), ("singular", "SingularConflict")] {
        let name = names[key].as_str().unwrap_or_default();
        if taken(&resources, name) {
            return Some((reason, format!("\"{name}\" is already in use")));
        }
    }
    for name in names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if taken(&resources, name) {
            return Some(("ShortNamesConflict", format!("\"{name}\" is already in use")));
        }
    }
    for (key, reason) in [("kind", "KindConflict"), ("listKind", "ListKindConflict")] {
        let name = names[key].as_str().unwrap_or_default();
        if taken(&kinds, name) {
            return Some((reason, format!("\"{name}\" is already in use")));
        }
    }
    None
}

/// A delete asked for: the definition stays until its objects are gone.
pub fn hold_for_cleanup(object: &mut Value) {
    let mut finalizers = write::finalizers(object);
    if !finalizers.iter().any(|f| f == CLEANUP_FINALIZER) {
        finalizers.push(CLEANUP_FINALIZER.into());
        metadata(object).insert("finalizers".into(), json!(finalizers));
    }
}

pub fn terminating(object: &mut Value) {
    let text = "CustomResource deletion is in progress";
    set_condition(object, "Terminating", "True", "InstanceDeletionInProgress", text, &write::now());
}

/// Whether a definition waits for its objects to be deleted.
pub fn needs_cleanup(object: &Value) -> bool {
    write::is_deleting(object) && write::finalizers(object).iter().any(|f| f == CLEANUP_FINALIZER)
}

/// Deletes the definition's objects and then lets the definition go. Safe to run twice and to begin again.
pub fn spawn_cleanup(app: &Arc<App>, definition: &Value) {
    let app = app.clone();
    let name = write::name_of(definition).to_owned();
    let stop = app.stop.clone();
    tokio::spawn(async move {
        let mut wait = Duration::from_millis(20);
        loop {
            match clean(&app, &name).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(definition = name, %error, "cannot delete all custom objects yet")
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => wait = (wait * 2).min(Duration::from_secs(5)),
            }
        }
    });
}

async fn clean(app: &Arc<App>, name: &str) -> Result<bool> {
    let Some(definition) =
        app.object("apiextensions.k8s.io", "v1", "customresourcedefinitions", "", name).await?
    else {
        return Ok(true);
    };
    if !needs_cleanup(&definition) {
        return Ok(true);
    }
    let rows = app
        .registry
        .rows_of(app, write::text(&definition, "/spec/group"), write::text(&definition, "/spec/names/plural"))
        .await?;
    // In the version that they are kept in nothing of them can be lost.
    if let Some(row) = rows.iter().find(|row| row.canonical).or(rows.first())
        && !empty(app, row).await?
    {
        return Ok(false);
    }
    let target = Target {
        verb: "update",
        group: "apiextensions.k8s.io".into(),
        version: "v1".into(),
        resource: "customresourcedefinitions".into(),
        name: name.to_owned(),
        ..Target::default()
    };
    let mut call = Call::internal(app, target);
    let resource = app
        .registry
        .built_in
        .find("apiextensions.k8s.io", "v1", "customresourcedefinitions")
        .cloned()
        .expect("the tables hold definitions");
    let options = WriteOptions::internal("apiserver", false);
    let result = update::change(&mut call, &resource, Part::Status, &options, |current| {
        let mut object = current.clone();
        let finalizers: Vec<String> =
            write::finalizers(current).into_iter().filter(|f| f != CLEANUP_FINALIZER).collect();
        metadata(&mut object).insert("finalizers".into(), json!(finalizers));
        if finalizers.is_empty() {
            metadata(&mut object).remove("finalizers");
        }
        set_condition(
            &mut object,
            "Terminating",
            "False",
            "InstanceDeletionCompleted",
            "removed all instances",
            &write::now(),
        );
        Ok(Proposal { object, owned: false })
    })
    .await;
    match result {
        Ok(_) => Ok(true),
        Err(failure) if failure.code() == 404 => Ok(true),
        Err(failure) => Err(failure),
    }
}

/// Deletes what is there; true when nothing was left.
async fn empty(app: &Arc<App>, row: &Shared) -> Result<bool> {
    let page = app.store.range(Range::all(&row.place)).await.map_err(|e| app.store_failure(e))?;
    let none = page.records.is_empty();
    for record in page.records {
        let (namespace, name) = row.split_key(&record.key);
        let target = Target {
            verb: "delete",
            group: row.group.clone(),
            version: row.version.clone(),
            resource: row.plural.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..Target::default()
        };
        let mut call = Call::internal(app, target);
        match delete::delete(&mut call, row, namespace, name, &DeleteOptions::default()).await {
            Ok(_) => {}
            Err(failure) if failure.code() == 404 => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(none)
}

/// Refuses new objects of a kind that is going away.
pub fn check_creatable(resource: &Shared, terminating: bool) -> Result<()> {
    if terminating {
        let text = "create not allowed while custom resource definition is terminating";
        return Err(Failure::new(405, "MethodNotAllowed", text).about(&resource.group, &resource.plural, ""));
    }
    Ok(())
}
