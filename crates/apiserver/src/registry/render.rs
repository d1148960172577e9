//! From a stored record to what the client asked for.

use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};
use tombolo_k8s::tables::{Include, Printer};

use super::resource::Shared;
use crate::http::body::Body;
use crate::http::negotiate::Output;
use crate::http::query::Query;
use crate::http::status::{Failure, Result, bytes_response};
use crate::record::Record;

/// One way to show objects of one kind.
pub struct Form {
    output: Output,
    resource: Shared,
    table: Option<Table>,
    omits_managers: bool,
}

struct Table {
    printer: Printer,
    include: Include,
    now: Timestamp,
}

impl Form {
    pub fn new(output: Output, resource: &Shared, query: &Query) -> Self {
        let table = matches!(output, Output::Table(_)).then(|| Table {
            printer: resource.schema.printer(),
            include: Include::parse(query.get("includeObject")).unwrap_or(Include::Metadata),
            now: Timestamp::now(),
        });
        Self { output, resource: resource.clone(), table, omits_managers: omits_managers(query) }
    }

    pub fn columns(&self) -> Value {
        self.table.as_ref().map_or(Value::Null, |t| t.printer.definitions())
    }

    /// Appends one object, in the form that stands in a list of its kind.
    pub fn item(&self, out: &mut Vec<u8>, value: &[u8], revision: u64) {
        let resource = &self.resource;
        let Ok(mut record) = Record::read(value) else { return };
        if self.omits_managers {
            record = record.without_managers();
        }
        match self.output {
            Output::Json | Output::Yaml => {
                if resource.schema.copies(resource, record.shape) {
                    record.render_into(out, &resource.prefix, revision);
                } else if let Ok(mut object) = resource.decode(value, revision) {
                    if let Some(metadata) = object["metadata"].as_object_mut().filter(|_| self.omits_managers)
                    {
                        metadata.remove("managedFields");
                    }
                    write(out, &object);
                }
            }
            Output::Metadata(_) => record.render_metadata_into(out, revision),
            Output::Table(_) => {
                let (Ok(object), Some(table)) = (resource.decode(value, revision), &self.table) else {
                    return;
                };
                write(out, &table.printer.row(&object, table.include, table.now));
            }
        }
    }

    /// Appends one object as an answer of its own or as the object of a watch event.
    pub fn single(&self, out: &mut Vec<u8>, value: &[u8], revision: u64, columns: bool) {
        let Output::Table(version) = self.output else { return self.item(out, value, revision) };
        out.extend_from_slice(b"{\"kind\":\"Table\",\"apiVersion\":\"");
        out.extend_from_slice(version.api_version().as_bytes());
        out.extend_from_slice(b"\",\"metadata\":{\"resourceVersion\":\"");
        crate::record::push_number(out, revision);
        out.extend_from_slice(b"\"},\"columnDefinitions\":");
        if columns {
            write(out, &self.columns());
        } else {
            out.extend_from_slice(b"null");
        }
        out.extend_from_slice(b",\"rows\":[");
        self.item(out, value, revision);
        out.extend_from_slice(b"]}");
    }

    /// Appends the object of a bookmark.
    pub fn bookmark(&self, out: &mut Vec<u8>, revision: u64, initial_events_end: bool) {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if initial_events_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let partial =
            |version| json!({"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": metadata});
        let object = match self.output {
            Output::Json | Output::Yaml => {
                json!({"kind": self.resource.kind, "apiVersion": self.resource.api_version(), "metadata": metadata})
            }
            Output::Metadata(version) => partial(version.api_version()),
            Output::Table(version) => json!({
                "kind": "Table", "apiVersion": version.api_version(),
                "metadata": {"resourceVersion": revision.to_string()}, "columnDefinitions": self.columns(),
                "rows": [{"cells": [], "object": partial(version.api_version())}],
            }),
        };
        write(out, &object);
    }
}

/// An option of ours: who wrote which field is often half of an object, and most programs throw it away.
pub fn omits_managers(query: &Query) -> bool {
    query.flag("omitManagedFields")
}

/// Answers with one stored object.
pub fn stored(
    output: Output,
    resource: &Shared,
    query: &Query,
    code: StatusCode,
    value: &[u8],
    revision: u64,
) -> Result<Response<Body>> {
    let mut out = Vec::with_capacity(value.len() + 256);
    Form::new(output, resource, query).single(&mut out, value, revision, true);
    if output == Output::Yaml {
        return yaml(&out);
    }
    out.push(b'\n');
    Ok(bytes_response(code, "application/json", out))
}

pub fn yaml(json: &[u8]) -> Result<Response<Body>> {
    let value: Value = serde_json::from_slice(json).map_err(Failure::internal)?;
    let text = serde_yaml_ng::to_string(&value).map_err(Failure::internal)?;
    Ok(bytes_response(StatusCode::OK, "application/yaml", text))
}

fn write(out: &mut Vec<u8>, value: &Value) {
    serde_json::to_writer(out, value).expect("JSON values always write to memory");
}
