//! What `kubectl explain` says about the fields that every object has. The rest of upstream's words are not carried.

use super::definitions::META;
use crate::schema::Type;

pub const API_VERSION: &str = "APIVersion defines group and version of this object's schema.";
pub const KIND: &str = "Kind is the name of this object's schema in its group.";
pub const METADATA: &str = "Standard object's metadata: its name, labels, owners and history.";
pub const LIST_METADATA: &str = "Standard list metadata: the version of the list, and how to go on with it.";

const OBJECT_META: &[(&str, &str)] = &[
    ("annotations", "Annotations are free texts by key, for tools and people; nothing selects by them."),
    (
        "creationTimestamp",
        "CreationTimestamp is a timestamp of when the server first stored this object. Read-only.",
    ),
    ("deletionGracePeriodSeconds", "How long the object may take to end before it is removed. Read-only."),
    (
        "deletionTimestamp",
        "DeletionTimestamp is when the object will be gone, once its deletion was asked for. Read-only.",
    ),
    ("finalizers", "Who must finish with the object before it is removed; each one removes its own entry."),
    ("generateName", "A prefix from which the server makes a unique name, when no name is given."),
    ("generation", "A number that grows with every change of what is desired. Read-only."),
    ("labels", "Labels are short texts by key, by which objects are found and selected."),
    ("managedFields", "Who manages which fields; the server keeps it, and server-side apply decides by it."),
    ("name", "Name tells objects of one kind in one namespace apart. It cannot change."),
    (
        "namespace",
        "Namespace is the space in which the name is unique; empty for objects of the whole cluster.",
    ),
    ("ownerReferences", "The objects this one depends on. When all of them are gone, it is removed as well."),
    (
        "resourceVersion",
        "The version of this object as stored. An update that names an older one is refused.",
    ),
    ("selfLink", "No longer filled in."),
    ("uid", "UID tells objects of all times apart, also those of one name. Read-only."),
];

const LIST_META: &[(&str, &str)] = &[
    ("continue", "Set when there is more: the token with which the next part of the list is asked for."),
    ("remainingItemCount", "How many items are still to come, where that is known."),
    ("resourceVersion", "The version at which the list was taken: a watch that starts here misses nothing."),
    ("selfLink", "No longer filled in."),
];

/// The words for a whole type.
pub fn of_type(type_: &Type) -> Option<&'static str> {
    match type_.name.strip_prefix(META)? {
        "ObjectMeta" => Some("ObjectMeta is what every stored object has beside its own fields."),
        "ListMeta" => Some("ListMeta is what every list has beside its items."),
        _ => None,
    }
}

/// The words for a field.
pub fn of_field(type_: &Type, field: &str) -> Option<&'static str> {
    let words = match type_.name.strip_prefix(META) {
        Some("ObjectMeta") => OBJECT_META,
        Some("ListMeta") => LIST_META,
        _ => return top_level(type_, field),
    };
    words.iter().find(|(name, _)| *name == field).map(|(_, text)| *text)
}

/// Only kinds have a version, a kind and metadata together.
fn top_level(type_: &Type, field: &str) -> Option<&'static str> {
    let has = |name| type_.fields.iter().any(|f| f.name == name);
    if !["apiVersion", "kind", "metadata"].into_iter().all(has) {
        return None;
    }
    match field {
        "apiVersion" => Some(API_VERSION),
        "kind" => Some(KIND),
        "metadata" if has("items") => Some(LIST_METADATA),
        "metadata" => Some(METADATA),
        _ => None,
    }
}
