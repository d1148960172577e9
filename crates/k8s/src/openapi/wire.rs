//! A v2 document in the protobuf form that older clients ask for (the messages of `openapi.v2`, known as gnostic).
//!
//! A message is a row of fields: the JSON name, the number, and what is in it. Only what our documents can say has a
//! row; vendor extensions (`x-…`) go where each message keeps them, as YAML text, of which JSON is a part.

use serde_json::{Map, Value};

/// A message: its fields, and the number under which it keeps vendor extensions.
struct Message {
    fields: &'static [(&'static str, u64, Shape)],
    extensions: Option<u64>,
}

enum Shape {
    Text,
    Texts,
    Bool,
    Integer,
    Double,
    /// Any value, as YAML.
    Any,
    Anys,
    One(&'static Message),
    Many(&'static Message),
    /// A map, as a message that repeats pairs of name and value under its field 1.
    Named(&'static Message),
    /// The paths are under field 2.
    Paths,
    /// The answers, each in a choice of answer and reference.
    Responses,
    /// A schema in a choice of schema and file.
    Answer,
    /// One name or several.
    Type,
    /// One schema or several.
    Items,
    /// A schema or a truth value.
    Additional,
    Parameters,
}

use Shape::{
    Additional, Answer, Any, Anys, Bool, Double, Integer, Items, Many, Named, One, Parameters, Paths,
    Responses, Text, Texts, Type,
};

static DOCUMENT: Message = Message {
    fields: &[
        ("swagger", 1, Text),
        ("info", 2, One(&INFO)),
        ("paths", 8, Paths),
        ("definitions", 9, Named(&SCHEMA)),
        ("securityDefinitions", 13, Named(&SECURITY)),
    ],
    extensions: Some(16),
};

static INFO: Message = Message {
    fields: &[("title", 1, Text), ("version", 2, Text), ("description", 3, Text)],
    extensions: Some(7),
};

/// A choice of which we use one: a key in a header.
static SECURITY: Message = Message { fields: &[("", 2, One(&API_KEY))], extensions: None };

static API_KEY: Message = Message {
    fields: &[("type", 1, Text), ("name", 2, Text), ("in", 3, Text), ("description", 4, Text)],
    extensions: Some(5),
};

static PATH: Message = Message {
    fields: &[
        ("get", 2, One(&OPERATION)),
        ("put", 3, One(&OPERATION)),
        ("post", 4, One(&OPERATION)),
        ("delete", 5, One(&OPERATION)),
        ("options", 6, One(&OPERATION)),
        ("head", 7, One(&OPERATION)),
        ("patch", 8, One(&OPERATION)),
        ("parameters", 9, Parameters),
    ],
    extensions: Some(10),
};

static OPERATION: Message = Message {
    fields: &[
        ("tags", 1, Texts),
        ("summary", 2, Text),
        ("description", 3, Text),
        ("operationId", 5, Text),
        ("produces", 6, Texts),
        ("consumes", 7, Texts),
        ("parameters", 8, Parameters),
        ("responses", 9, Responses),
        ("schemes", 10, Texts),
        ("deprecated", 11, Bool),
    ],
    extensions: Some(13),
};

static BODY: Message = Message {
    fields: &[
        ("description", 1, Text),
        ("name", 2, Text),
        ("in", 3, Text),
        ("required", 4, Bool),
        ("schema", 5, One(&SCHEMA)),
    ],
    extensions: Some(6),
};

static QUERY: Message = Message {
    fields: &[
        ("required", 1, Bool),
        ("in", 2, Text),
        ("description", 3, Text),
        ("name", 4, Text),
        ("type", 6, Text),
        ("format", 7, Text),
        ("uniqueItems", 20, Bool),
    ],
    extensions: Some(23),
};

static IN_PATH: Message = Message {
    fields: &[
        ("required", 1, Bool),
        ("in", 2, Text),
        ("description", 3, Text),
        ("name", 4, Text),
        ("type", 5, Text),
        ("format", 6, Text),
        ("uniqueItems", 19, Bool),
    ],
    extensions: Some(22),
};

static RESPONSE: Message =
    Message { fields: &[("description", 1, Text), ("schema", 2, Answer)], extensions: Some(5) };

static EXTERNAL_DOCS: Message =
    Message { fields: &[("description", 1, Text), ("url", 2, Text)], extensions: Some(3) };

static SCHEMA: Message = Message {
    fields: &[
        ("$ref", 1, Text),
        ("format", 2, Text),
        ("title", 3, Text),
        ("description", 4, Text),
        ("default", 5, Any),
        ("multipleOf", 6, Double),
        ("maximum", 7, Double),
        ("exclusiveMaximum", 8, Bool),
        ("minimum", 9, Double),
        ("exclusiveMinimum", 10, Bool),
        ("maxLength", 11, Integer),
        ("minLength", 12, Integer),
        ("pattern", 13, Text),
        ("maxItems", 14, Integer),
        ("minItems", 15, Integer),
        ("uniqueItems", 16, Bool),
        ("maxProperties", 17, Integer),
        ("minProperties", 18, Integer),
        ("required", 19, Texts),
        ("enum", 20, Anys),
        ("additionalProperties", 21, Additional),
        ("type", 22, Type),
        ("items", 23, Items),
        ("allOf", 24, Many(&SCHEMA)),
        ("properties", 25, Named(&SCHEMA)),
        ("discriminator", 26, Text),
        ("readOnly", 27, Bool),
        ("externalDocs", 29, One(&EXTERNAL_DOCS)),
        ("example", 30, Any),
    ],
    extensions: Some(31),
};

/// A document of [`super::v2`] in its protobuf form.
pub fn encode(document: &Value) -> Vec<u8> {
    message(&DOCUMENT, document)
}

fn message(message: &Message, value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, number, shape) in message.fields {
        // A choice has no name of its own in JSON.
        let value = if name.is_empty() { Some(value) } else { value.get(name) };
        if let Some(value) = value {
            field(&mut out, *number, shape, value);
        }
    }
    if let (Some(number), Some(object)) = (message.extensions, value.as_object()) {
        for (name, value) in object.iter().filter(|(name, _)| name.starts_with("x-")) {
            bytes(&mut out, number, &pair(name, &any(value)));
        }
    }
    out
}

fn field(out: &mut Vec<u8>, number: u64, shape: &Shape, value: &Value) {
    let each = |value: &Value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
    match shape {
        Text => bytes(out, number, value.as_str().unwrap_or_default().as_bytes()),
        Texts => texts(out, number, value),
        Bool => varint_field(out, number, u64::from(value.as_bool().unwrap_or_default())),
        // Negative lengths do not exist; two's complement is what the wire would have.
        Integer => varint_field(out, number, value.as_i64().unwrap_or_default() as u64),
        Double => {
            key(out, number, 1);
            out.extend(value.as_f64().unwrap_or_default().to_le_bytes());
        }
        Any => bytes(out, number, &any(value)),
        Anys => each(value).iter().for_each(|v| bytes(out, number, &any(v))),
        One(inner) => bytes(out, number, &message(inner, value)),
        Many(inner) => each(value).iter().for_each(|v| bytes(out, number, &message(inner, v))),
        Named(inner) => bytes(out, number, &named(1, value, |v| message(inner, v))),
        Paths => bytes(out, number, &named(2, value, |v| message(&PATH, v))),
        Responses => bytes(out, number, &named(1, value, |v| choice(1, &message(&RESPONSE, v)))),
        Answer => bytes(out, number, &choice(1, &message(&SCHEMA, value))),
        Type => {
            let mut names = Vec::new();
            each(value).iter().for_each(|v| texts(&mut names, 1, v));
            bytes(out, number, &names);
        }
        Items => {
            let mut items = Vec::new();
            each(value).iter().for_each(|v| bytes(&mut items, 1, &message(&SCHEMA, v)));
            bytes(out, number, &items);
        }
        Additional => {
            let mut inner = Vec::new();
            match value {
                Value::Bool(allowed) => varint_field(&mut inner, 2, u64::from(*allowed)),
                schema => bytes(&mut inner, 1, &message(&SCHEMA, schema)),
            }
            bytes(out, number, &inner);
        }
        Parameters => each(value).iter().for_each(|v| bytes(out, number, &choice(1, &parameter(v)))),
    }
}

/// A parameter is a body, or one of four others by its place; ours are in queries and paths.
fn parameter(value: &Value) -> Vec<u8> {
    match value["in"].as_str() {
        Some("body") => choice(1, &message(&BODY, value)),
        Some("path") => choice(2, &choice(4, &message(&IN_PATH, value))),
        _ => choice(2, &choice(3, &message(&QUERY, value))),
    }
}

fn named(number: u64, value: &Value, encode: impl Fn(&Value) -> Vec<u8>) -> Vec<u8> {
    let nothing = Map::new();
    let mut out = Vec::new();
    for (name, value) in value.as_object().unwrap_or(&nothing) {
        bytes(&mut out, number, &pair(name, &encode(value)));
    }
    out
}

fn pair(name: &str, value: &[u8]) -> Vec<u8> {
    let mut out = choice(1, name.as_bytes());
    bytes(&mut out, 2, value);
    out
}

fn any(value: &Value) -> Vec<u8> {
    choice(2, value.to_string().as_bytes())
}

/// A message with this one field.
fn choice(number: u64, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(content.len() + 8);
    bytes(&mut out, number, content);
    out
}

fn texts(out: &mut Vec<u8>, number: u64, value: &Value) {
    match value {
        Value::Array(all) => all.iter().for_each(|v| texts(out, number, v)),
        one => bytes(out, number, one.as_str().unwrap_or_default().as_bytes()),
    }
}

fn bytes(out: &mut Vec<u8>, number: u64, content: &[u8]) {
    key(out, number, 2);
    varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

fn varint_field(out: &mut Vec<u8>, number: u64, value: u64) {
    key(out, number, 0);
    varint(out, value);
}

fn key(out: &mut Vec<u8>, number: u64, wire: u64) {
    varint(out, number << 3 | wire);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protobuf::wire::Reader;

    /// What is under a path of field numbers, each time it is there.
    fn at(bytes: &[u8], path: &[u32]) -> Vec<Vec<u8>> {
        let Some((first, rest)) = path.split_first() else { return vec![bytes.to_vec()] };
        let mut found = Vec::new();
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field().unwrap() {
            if number == *first {
                found.extend(at(value.bytes().unwrap(), rest));
            }
        }
        found
    }

    fn text(found: &[Vec<u8>]) -> Vec<String> {
        found.iter().map(|b| String::from_utf8(b.clone()).unwrap()).collect()
    }

    #[test]
    fn names_types_and_extensions_are_where_clients_look_for_them() {
        let document = json!({"swagger": "2.0", "definitions": {"a.B": {
            "type": "object", "required": ["c"], "description": "words",
            "properties": {"c": {"type": "array", "items": {"$ref": "#/definitions/d"}, "maxItems": 300}},
            "additionalProperties": {"type": "string"}, "x-kubernetes-group-version-kind": [{"kind": "B"}],
        }}});
        let bytes = encode(&document);
        assert_eq!(text(&at(&bytes, &[1])), ["2.0"]);
        assert_eq!(text(&at(&bytes, &[9, 1, 1])), ["a.B"]);
        assert_eq!(text(&at(&bytes, &[9, 1, 2, 22, 1])), ["object"]);
        assert_eq!(text(&at(&bytes, &[9, 1, 2, 25, 1, 1])), ["c"]);
        assert_eq!(text(&at(&bytes, &[9, 1, 2, 25, 1, 2, 23, 1, 1])), ["#/definitions/d"]);
        assert_eq!(text(&at(&bytes, &[9, 1, 2, 21, 1, 22, 1])), ["string"]);
        assert_eq!(text(&at(&bytes, &[9, 1, 2, 31, 1])), ["x-kubernetes-group-version-kind"]);
        assert_eq!(text(&at(&bytes, &[9, 1, 2, 31, 2, 2])), [r#"[{"kind":"B"}]"#]);
    }

    #[test]
    fn every_path_operation_and_definition_of_the_document_is_in_it() {
        let document = super::super::v2(&[]);
        let bytes = encode(&document);
        let names = |name: &str| document[name].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(text(&at(&bytes, &[8, 2, 1])), names("paths"));
        assert_eq!(text(&at(&bytes, &[9, 1, 1])), names("definitions"));
        // `kubectl` looks for a query parameter of patches, and for the kind that they are of.
        let patches = at(&bytes, &[8, 2, 2, 8]);
        assert!(patches.len() > 90, "{}", patches.len());
        // What is passed on to a pod is nobody's patch.
        let own = |patch: &&Vec<u8>| !text(&at(patch, &[5]))[0].starts_with("connect");
        for patch in patches.iter().filter(own) {
            assert!(text(&at(patch, &[8, 1, 2, 3, 4])).contains(&"fieldValidation".to_owned()));
            assert!(text(&at(patch, &[13, 1])).contains(&"x-kubernetes-group-version-kind".to_owned()));
        }
    }

    /// What has no row would be lost without a word.
    #[test]
    fn the_tables_know_every_word_of_the_document() {
        fn check(message: &Message, value: &Value) {
            for (name, value) in value.as_object().into_iter().flatten().filter(|(n, _)| !n.starts_with("x-"))
            {
                let row = message.fields.iter().find(|(n, ..)| n == name);
                let (_, _, shape) = row.unwrap_or_else(|| panic!("no row for {name:?}: {value}"));
                let all = |message: &Message, value: &Value| {
                    value.as_object().into_iter().flatten().for_each(|(_, v)| check(message, v));
                };
                match shape {
                    One(inner) => check(inner, value),
                    Many(inner) => value.as_array().into_iter().flatten().for_each(|v| check(inner, v)),
                    Named(inner) if !std::ptr::eq(*inner, &raw const SECURITY) => all(inner, value),
                    Paths => all(&PATH, value),
                    Responses => all(&RESPONSE, value),
                    Answer | Items | Additional => check(&SCHEMA, value),
                    Parameters => {
                        value.as_array().into_iter().flatten().for_each(|v| match v["in"].as_str() {
                            Some("body") => check(&BODY, v),
                            Some("path") => check(&IN_PATH, v),
                            Some("query") => check(&QUERY, v),
                            other => panic!("a parameter in {other:?}"),
                        })
                    }
                    _ => {}
                }
            }
        }
        check(&DOCUMENT, &super::super::v2(&[]));
    }
}
