//! Turns `data/*.txt` into Rust statics (`data/README.md` describes the format), so that the tables live in
//! read-only memory and cost nothing at start.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

fn main() {
    let data = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("data");
    let read = |name: &str| {
        let path = data.join(name);
        println!("cargo::rerun-if-changed={}", path.display());
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    println!("cargo::rerun-if-changed=build.rs");
    let types = Types::parse(&read("types.txt"));
    let mut out = types.render();
    out += &resources(&read("resources.txt"), &read("registry.txt"), &types);
    let target = Path::new(&env::var("OUT_DIR").expect("cargo sets it")).join("tables.rs");
    fs::write(target, out).expect("OUT_DIR is writable");
}

struct Types {
    rows: Vec<(String, Vec<String>, Vec<String>)>,
    index: HashMap<String, usize>,
}

impl Types {
    fn parse(text: &str) -> Self {
        let mut rows: Vec<(String, Vec<String>, Vec<String>)> = Vec::new();
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            if let Some(field) = line.strip_prefix(' ') {
                rows.last_mut().expect("a field follows its type").2.push(field.to_owned());
            } else {
                let mut words = line.split(' ').map(str::to_owned);
                let name = words.next().expect("split gives one");
                rows.push((name, words.collect(), Vec::new()));
            }
        }
        let index = rows.iter().enumerate().map(|(i, (name, ..))| (name.clone(), i)).collect();
        Self { rows, index }
    }

    fn render(&self) -> String {
        let mut out = String::from("pub static TYPES: &[Type] = &[\n");
        let mut kinds = Vec::new();
        for (i, (name, flags, fields)) in self.rows.iter().enumerate() {
            let atomic = flags.iter().any(|f| f == "atomic");
            for kind in flags.iter().filter_map(|f| f.strip_prefix("kind=")) {
                let (group, version, kind) = three(kind);
                kinds.push((group.to_owned(), version.to_owned(), kind.to_owned(), i));
            }
            let _ = writeln!(out, "Type {{ name: {name:?}, atomic: {atomic}, fields: &[");
            for field in fields {
                out += &self.field(field);
            }
            out += "] },\n";
        }
        out += "];\npub static KINDS: &[Kind] = &[\n";
        kinds.sort();
        for (group, version, kind, i) in kinds {
            let _ = writeln!(
                out,
                "Kind {{ group: {group:?}, version: {version:?}, kind: {kind:?}, type_index: {i} }},"
            );
        }
        out += "];\n";
        out
    }

    fn field(&self, line: &str) -> String {
        let mut words = line.splitn(4, ' ');
        let mut next = || words.next().unwrap_or_default();
        let (name, number, shape, rest) = (next(), next(), next(), next());
        // `go=` and `default=` may hold spaces, and stand last in that order of need.
        let (rest, go) = split_last(rest, "go=");
        let (rest, default) = split_last(rest, "default=");
        let flags: Vec<&str> = rest.split(' ').collect();
        let has = |flag: &str| flags.contains(&flag);
        let value = |key: &str| flags.iter().find_map(|f| f.strip_prefix(key)).unwrap_or_default();
        let nested = value("in=").replace('.', ", ");
        let list = match value("list=") {
            "" => "ListType::Unset".to_owned(),
            "atomic" => "ListType::Atomic".to_owned(),
            "set" => "ListType::Set".to_owned(),
            keys => format!("ListType::Map(&{:?})", keys.split(',').collect::<Vec<_>>()),
        };
        let (ptr, always, listed) = (has("ptr"), has("always"), has("req"));
        let (merge, retain, replace, map_atomic) =
            (has("merge"), has("retain"), has("replace"), has("mapatomic"));
        let granular = has("granular");
        let (key, embedded) = (value("key="), value("emb="));
        let shape = self.shape(shape);
        format!(
            "Field {{ name: {name:?}, number: {number}, nested: &[{nested}], shape: {shape}, pointer: {ptr}, \
             required: {always}, listed: {listed}, patch_merge: {merge}, patch_retain_keys: {retain}, \
             patch_replace: {replace}, merge_key: {key:?}, list: {list}, map_atomic: {map_atomic}, map_granular: {granular}, \
             default: {default:?}, go: {go:?}, embedded: {embedded:?} }},\n"
        )
    }

    fn shape(&self, text: &str) -> String {
        if let Some(name) = text.strip_prefix('@') {
            return format!("Shape::Object({})", self.index[name]);
        }
        if let Some(inner) = text.strip_prefix("[]") {
            return format!("Shape::List(&{})", self.shape(inner));
        }
        if let Some(inner) = text.strip_prefix("{}") {
            return format!("Shape::Map(&{})", self.shape(inner));
        }
        let name = match text {
            "bool" => "Bool",
            "i32" => "Int32",
            "i64" => "Int64",
            "f64" => "Float64",
            "str" => "String",
            "bytes" => "Bytes",
            "time" => "Time",
            "microtime" => "MicroTime",
            "duration" => "Duration",
            "quantity" => "Quantity",
            "intstr" => "IntOrString",
            "raw" => "Raw",
            "schema|bool" => "SchemaOrBool",
            "schema|array" => "SchemaOrArray",
            "schema|strings" => "SchemaOrStrings",
            other => panic!("types.txt: unknown shape {other}"),
        };
        format!("Shape::{name}")
    }
}

fn split_last<'a>(text: &'a str, key: &str) -> (&'a str, &'a str) {
    match text.find(key).filter(|&at| at == 0 || text.as_bytes()[at - 1] == b' ') {
        Some(at) => (text[..at].trim_end(), &text[at + key.len()..]),
        None => (text, ""),
    }
}

fn three(text: &str) -> (&str, &str, &str) {
    let mut parts = text.split('/');
    let mut next = || parts.next().unwrap_or_default();
    (next(), next(), next())
}

fn resources(resources: &str, registry: &str, types: &Types) -> String {
    let facts: HashMap<&str, Vec<&str>> = registry
        .lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| l.split_once(' '))
        .map(|(name, flags)| (name, flags.split(' ').collect()))
        .collect();
    let mut used = 0;
    let mut kinds: HashMap<&str, usize> = HashMap::new();
    for (i, (_, flags, _)) in types.rows.iter().enumerate() {
        kinds.extend(flags.iter().filter_map(|f| f.strip_prefix("kind=")).map(|k| (k, i)));
    }
    let mut out = String::from("pub static RESOURCES: &[Resource] = &[\n");
    let (mut group, mut version, mut open) = ("", "", false);
    for line in resources.lines().filter(|l| !l.starts_with('#')) {
        if let Some(gv) = line.strip_prefix("group ") {
            (group, version) = gv.split_once('/').expect("group/version");
            continue;
        }
        let sub = line.starts_with("  ");
        let words: Vec<&str> = line.trim().split(' ').collect();
        let list = |key: &str| -> Vec<&str> {
            let found = words.iter().find_map(|w| w.strip_prefix(key)).unwrap_or_default();
            found.split(',').filter(|w| !w.is_empty()).collect()
        };
        let verbs = list("verbs=");
        if sub {
            let (g, v, kind) = three(words[1]);
            let (g, v) = if v.is_empty() { (group, version) } else { (g, v) };
            let _ = writeln!(
                out,
                "Subresource {{ name: {:?}, group: {g:?}, version: {v:?}, kind: {kind:?}, verbs: &{verbs:?} }},",
                words[0]
            );
            continue;
        }
        if open {
            out += "] },\n";
        }
        open = true;
        let (plural, singular, kind, scope) = (words[0], words[1], words[2], words[3]);
        let full = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
        let flags = facts.get(full.as_str()).inspect(|_| used += 1).map(Vec::as_slice).unwrap_or_default();
        let fact = |flag: &str| flags.contains(&flag);
        let fields: Vec<&str> = flags
            .iter()
            .find_map(|f| f.strip_prefix("fields="))
            .unwrap_or_default()
            .split(',')
            .filter(|f| !f.is_empty())
            .collect();
        let hash = words.iter().find_map(|w| w.strip_prefix("hash=")).unwrap_or_default();
        let type_index = kinds[format!("{group}/{version}/{kind}").as_str()];
        let deletion = if fact("orphan") {
            "Orphan"
        } else if fact("no-gc") {
            "Unsupported"
        } else {
            "Background"
        };
        let _ = writeln!(
            out,
            "Resource {{ group: {group:?}, version: {version:?}, kind: {kind:?}, list_kind: \"{kind}List\", plural: {plural:?}, \
             singular: {singular:?}, namespaced: {}, short_names: &{:?}, categories: &{:?}, verbs: &{verbs:?}, \
             storage_hash: {hash:?}, type_index: {type_index}, generation: {}, create_on_update: {}, unconditional_update: {}, \
             deletion: Deletion::{deletion}, fields: &{fields:?}, volatile: {}, subresources: &[",
            scope == "namespaced",
            list("short="),
            list("cat="),
            fact("generation"),
            fact("create-on-update"),
            !fact("conditional-update"),
            fact("volatile"),
        );
    }
    assert_eq!(used, facts.len(), "registry.txt names a resource that resources.txt does not have");
    out += "] },\n];\n";
    out
}
