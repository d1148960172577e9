//! Pods are held to the level of pod security that their namespace enforces.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use tombolo_store::Range;

use super::{Operation, security};
use crate::http::status::{Failure, Result};
use crate::record::Record;
use crate::registry::resource::Resource;
use crate::registry::update::Part;
use crate::registry::write;
use crate::server::Call;

/// At most so many pods are looked at when a namespace becomes stricter.
const LOOKED_AT: usize = 3_000;
/// And no longer than this.
const LOOKED_FOR: Duration = Duration::from_secs(1);

/// A namespace's levels are words that mean something; what is stored already is put up with.
pub fn labels(resource: &Resource, object: &Value, old: Option<&Value>) -> Result<()> {
    let errors = security::label_errors(object);
    if errors.is_empty() || old.is_some_and(|old| security::label_errors(old) == errors) {
        return Ok(());
    }
    Err(resource.invalid(write::name_of(object), &errors))
}

/// Pods are refused; what makes pods is warned of what would become of them, and who makes a namespace stricter of the pods that
/// are there. Comes after the object's own validation: what is wrong in any case is said first.
pub async fn judge(
    call: &mut Call,
    resource: &Resource,
    operation: Operation<'_>,
    object: &Value,
    old: Option<&Value>,
) -> Result<()> {
    if let (Operation::Update(Part::Main), Some(old)) = (operation, old)
        && resource.is("", "namespaces")
    {
        return raised(call, object, old).await;
    }
    let is_pod = resource.is("", "pods");
    let template = match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => Some(object),
        ("", "podtemplates") => object.get("template"),
        ("", "replicationcontrollers") | ("apps", _) | ("batch", "jobs") => object.pointer("/spec/template"),
        ("batch", "cronjobs") => object.pointer("/spec/jobTemplate/spec/template"),
        _ => None,
    };
    let Some(template) = template else { return Ok(()) };
    let matters = match operation {
        Operation::Create => true,
        // What a node reports and where a scheduler puts a pod change nothing of what it asks for.
        Operation::Update(part) if is_pod => {
            !matches!(part.name(), "status" | "binding")
                && old.is_none_or(|old| security::judges_anew(object, old))
        }
        Operation::Update(part) => part == Part::Main,
        Operation::Delete => false,
    };
    if !matters {
        return Ok(());
    }
    let namespaces =
        call.app.registry.built_in.find("", "v1", "namespaces").expect("the tables hold namespaces");
    let Some(record) = call.app.get(&namespaces.key("", &call.target.namespace)).await? else {
        return Ok(());
    };
    let fields = Record::read(&record.value).map_err(Failure::internal)?;
    let (enforced, warned) = security::policies(|key| fields.label(key));
    if is_pod && let Some(text) = enforced.violation(template) {
        return Err(resource.forbidden(write::name_of(object), text));
    }
    if let Some(text) = warned.violation(template) {
        call.warnings.push(text.replacen("violates", "would violate", 1));
    }
    Ok(())
}

/// What to tell who changes the level of a namespace. Its pods stay as they are.
async fn raised(call: &mut Call, namespace: &Value, old: &Value) -> Result<()> {
    let enforced = |namespace: &Value| {
        security::policies(|key| namespace.pointer("/metadata/labels")?.get(key)?.as_str()).0
    };
    let policy = enforced(namespace);
    if !policy.is_stricter_than(enforced(old)) {
        return Ok(());
    }
    let name = write::name_of(namespace);
    let pods = call.app.registry.built_in.find("", "v1", "pods").expect("the tables hold pods");
    let page = call.app.store.range(Range::all(&pods.scope(name))).await;
    let records = page.map_err(|e| call.app.store_failure(e))?.records;
    let mut sample = Sample::default();
    let deadline = Instant::now() + LOOKED_FOR;
    for (n, record) in records.iter().enumerate() {
        if sample.is_full() || Instant::now() > deadline {
            break;
        }
        if let Ok(pod) = pods.decode(&record.value, record.revision) {
            sample.add(pod);
        }
        if n % 100 == 99 {
            tokio::task::yield_now().await;
        }
    }
    let some = sample.chosen();
    if records.len() > some.len() {
        call.warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {} of {} existing pods",
            some.len(),
            records.len()
        ));
    }
    call.warnings.extend(policy.warnings(name, &some));
    Ok(())
}

/// Pods of a namespace, as many as are looked at. Those of one controller are alike: one of each comes before the others.
#[derive(Default)]
struct Sample {
    seen: HashSet<String>,
    first: Vec<Value>,
    others: Vec<Value>,
}

impl Sample {
    fn add(&mut self, pod: Value) {
        let owners = pod.pointer("/metadata/ownerReferences").and_then(Value::as_array).into_iter().flatten();
        let controller = owners.into_iter().find(|owner| owner["controller"] == true);
        let is_first = controller.is_none_or(|owner| self.seen.insert(write::text(owner, "/uid").to_owned()));
        let list = if is_first { &mut self.first } else { &mut self.others };
        if list.len() < LOOKED_AT {
            list.push(pod);
        }
    }

    /// Nothing that is added now would be looked at.
    fn is_full(&self) -> bool {
        self.first.len() >= LOOKED_AT
    }

    fn chosen(mut self) -> Vec<Value> {
        self.first.extend(self.others);
        self.first.truncate(LOOKED_AT);
        self.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_pod_of_each_controller_is_looked_at_first() {
        let mut sample = Sample::default();
        let owned = |uid: &str, n: usize| json!({"metadata": {"name": format!("{uid}-{n}"), "ownerReferences": [{"uid": uid, "controller": true}]}});
        for n in 0..LOOKED_AT {
            sample.add(owned("large", n));
        }
        sample.add(owned("small", 0));
        sample.add(json!({"metadata": {"name": "alone"}}));
        let chosen = sample.chosen();
        assert_eq!(chosen.len(), LOOKED_AT);
        let names: Vec<&str> = chosen.iter().take(4).map(write::name_of).collect();
        assert_eq!(names, ["large-0", "small-0", "alone", "large-1"]);
    }
}
