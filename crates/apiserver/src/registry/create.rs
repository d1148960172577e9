//! Creating objects.

use http::{Response, StatusCode};
use serde_json::Value;
use tombolo_k8s::patch;
use tombolo_store::Expect;

use super::ownership;
use super::resource::{Resource, Shared};
use super::write::{self, WriteOptions, Written, metadata};
use super::{codec, render};
use crate::admission::{self, Operation};
use crate::http::body::Body;
use crate::http::negotiate;
use crate::http::status::{Failure, Result};
use crate::kinds;
use crate::server::Call;

/// A generated name ends in this many characters, none of which make words or look alike.
const SUFFIX: usize = 5;
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const LONGEST_BASE: usize = 63 - SUFFIX;
/// How often another generated name is tried when one is taken.
const NAME_TRIES: usize = 8;

pub async fn handle(call: &mut Call, resource: &Shared, body: Body) -> Result<Response<Body>> {
    let output = negotiate::negotiate(call.accept(), negotiate::ALL)?;
    let options = WriteOptions::parse(&call.query, call.user_agent(), "CreateOptions", false)?;
    if options.with_status {
        call.authorize_status().await?;
    }
    let object = codec::read_object(call, resource, body, options.validation).await?;
    let written = create(call, resource, object, &options).await?;
    render::stored(output, resource, &call.query, written.code, &written.value, written.revision)
}

pub async fn create(
    call: &mut Call,
    resource: &Shared,
    object: Value,
    options: &WriteOptions,
) -> Result<Written> {
    create_as(call, resource, object, options, false).await
}

/// Creates an object whose managed fields are already final.
pub async fn create_owned(
    call: &mut Call,
    resource: &Shared,
    object: Value,
    options: &WriteOptions,
) -> Result<Written> {
    create_as(call, resource, object, options, true).await
}

async fn create_as(
    call: &mut Call,
    resource: &Shared,
    mut object: Value,
    options: &WriteOptions,
    owned: bool,
) -> Result<Written> {
    let namespace = call.target.namespace.clone();
    if resource.namespaced && namespace.is_empty() {
        return Err(Failure::bad_request("the server requires a namespace to create this kind of object"));
    }
    write::check_place(resource, &mut object, &namespace, &call.target.name.clone())?;
    if !matches!(write::text(&object, "/metadata/resourceVersion"), "" | "0") {
        return Err(Failure::new(500, "", "resourceVersion should not be set on objects to be created"));
    }
    let generate = write::text(&object, "/metadata/generateName").to_owned();
    let generated = write::name_of(&object).is_empty() && !generate.is_empty();
    for attempt in 0.. {
        let mut draft = if attempt == 0 && !generated { std::mem::take(&mut object) } else { object.clone() };
        if generated {
            metadata(&mut draft)
                .insert("name".into(), generated_name(&generate, || call.app.random()).into());
        }
        prepare(call, resource, &mut draft, options, owned).await?;
        let name = write::name_of(&draft).to_owned();
        // Last: what is refused uses up nothing.
        if let Err(failure) = admission::charge(call, resource, &draft, options.dry_run).await {
            kinds::abandoned(call).await;
            if generated && failure.code() == 409 && attempt + 1 < NAME_TRIES {
                continue;
            }
            return Err(failure);
        }
        let stored = resource.to_stored(draft);
        let value = resource.encode(&stored);
        if options.dry_run {
            let key = resource.key(&namespace, &name);
            if call.app.get(&key).await?.is_some() {
                return Err(resource.already_exists(&name));
            }
            return Ok(Written { value, revision: 0, code: StatusCode::CREATED });
        }
        let key = resource.key(&namespace, &name);
        match write::put(call, resource, &key, &stored, value.clone(), Expect::Absent).await? {
            Some(revision) => {
                kinds::created(call, resource, &stored, revision).await;
                return Ok(Written { value, revision, code: StatusCode::CREATED });
            }
            None => {
                kinds::abandoned(call).await;
                if !generated || attempt + 1 == NAME_TRIES {
                    return Err(resource.already_exists(&name));
                }
            }
        }
    }
    unreachable!("the loop above returns on its last attempt")
}

/// Everything between the client's words and the store, in upstream's order.
async fn prepare(
    call: &mut Call,
    resource: &Shared,
    object: &mut Value,
    options: &WriteOptions,
    owned: bool,
) -> Result<()> {
    let status = object.get("status").filter(|_| options.with_status).cloned();
    set_system_metadata(resource, object);
    resource.schema.default(object);
    kinds::convert(resource, object, None);
    // Before others have their say: what they add, nobody has asked for.
    if !owned {
        ownership::track_create(call, resource, object, options);
    }
    kinds::prepare_create(call, resource, object).await?;
    if let Some(status) = status {
        let merged = patch::merge(&object["status"], &status).map_err(super::patch::failure)?;
        object["status"] = merged;
    }
    admission::admit(call, resource, Operation::Create, object, None).await?;
    let rule_time = call.app.config.rule_time;
    let errors = resource.schema.validate(resource, object, None, rule_time).await?;
    if !errors.is_empty() {
        return Err(resource.invalid(shown_name(object), &errors));
    }
    admission::judge(call, resource, Operation::Create, object, None).await?;
    kinds::allocate(call, resource, object, None, options.dry_run).await
}

fn shown_name(object: &Value) -> &str {
    match write::name_of(object) {
        "" => write::text(object, "/metadata/generateName"),
        name => name,
    }
}

fn set_system_metadata(resource: &Resource, object: &mut Value) {
    let metadata = metadata(object);
    for key in
        ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "resourceVersion"]
    {
        metadata.remove(key);
    }
    metadata.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
    metadata.insert("creationTimestamp".into(), write::now().into());
    if resource.rules.generation {
        metadata.insert("generation".into(), 1.into());
    }
    if resource.has_status() && kinds::drops_status(resource) {
        resource.schema.clear_status(object);
    }
}

fn generated_name(base: &str, mut random: impl FnMut() -> u64) -> String {
    let mut end = base.len().min(LONGEST_BASE);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    let mut bits = random();
    let mut name = base[..end].to_owned();
    for _ in 0..SUFFIX {
        name.push(ALPHABET[(bits % ALPHABET.len() as u64) as usize] as char);
        bits /= ALPHABET.len() as u64;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_fit_and_begin_with_their_base() {
        let name = generated_name("web-", || 12345);
        assert!(name.starts_with("web-") && name.len() == 9, "{name}");
        assert_eq!(generated_name(&"x".repeat(100), || 1).len(), 63);
    }
}
