//! Volumes of a pod.

use std::collections::HashSet;

use serde_json::Value;

use super::at::{At, Errors};
use super::parts::quantity;
use crate::names;

/// A check of one volume source.
type Source = (&'static str, fn(&mut Errors, &At<'_, '_>));

/// In upstream's order: the first one set is the volume's type, any other is one too many.
const SOURCES: [Source; 30] = [
    ("emptyDir", |e, s| {
        if quantity(&s.get("sizeLimit")).is_some_and(|q| q.is_negative()) {
            e.forbidden(&s.get("sizeLimit"), "SizeLimit field must be a valid resource quantity");
        }
    }),
    ("hostPath", host_path),
    ("gitRepo", |e, s| {
        required(e, s, &["repository"]);
        e.descending_path(&s.get("directory"));
    }),
    ("gcePersistentDisk", |e, s| required(e, s, &["pdName"])),
    ("awsElasticBlockStore", |e, s| required(e, s, &["volumeID"])),
    ("secret", |e, s| keyed_files(e, s, "secretName")),
    ("nfs", |e, s| {
        required(e, s, &["server", "path"]);
        if !s.get("path").is_empty() && !s.get("path").str().starts_with('/') {
            e.invalid(&s.get("path"), "must be an absolute path");
        }
    }),
    ("iscsi", |e, s| required(e, s, &["targetPortal", "iqn"])),
    ("glusterfs", |e, s| required(e, s, &["endpoints", "path"])),
    ("flocker", |_, _| {}),
    ("persistentVolumeClaim", |e, s| required(e, s, &["claimName"])),
    ("rbd", |e, s| required(e, s, &["monitors", "image"])),
    ("cinder", |e, s| required(e, s, &["volumeID"])),
    ("cephfs", |e, s| required(e, s, &["monitors"])),
    ("quobyte", |e, s| required(e, s, &["registry", "volume"])),
    ("downwardAPI", downward_api),
    ("fc", |_, _| {}),
    ("flexVolume", |e, s| required(e, s, &["driver"])),
    ("configMap", |e, s| keyed_files(e, s, "name")),
    ("azureFile", |e, s| required(e, s, &["secretName", "shareName"])),
    ("vsphereVolume", |e, s| required(e, s, &["volumePath"])),
    ("photonPersistentDisk", |e, s| required(e, s, &["pdID"])),
    ("portworxVolume", |e, s| required(e, s, &["volumeID"])),
    ("azureDisk", azure_disk),
    ("storageos", |e, s| required(e, s, &["volumeName"])),
    ("projected", projected),
    ("scaleIO", |e, s| required(e, s, &["gateway", "system", "volumeName"])),
    ("csi", |e, s| required(e, s, &["driver"])),
    ("ephemeral", |e, s| {
        let template = s.get("volumeClaimTemplate");
        if template.is_set() {
            super::storage::claim_spec(e, &template.get("spec"));
        } else {
            e.required(&template, "");
        }
    }),
    ("image", |e, s| {
        required(e, s, &["reference"]);
        e.one_of(&s.get("pullPolicy"), &["Always", "IfNotPresent", "Never"]);
    }),
];

fn required(e: &mut Errors, source: &At<'_, '_>, fields: &[&str]) {
    for field in fields {
        let at = source.get(field);
        if at.is_empty() {
            e.required(&at, "");
        }
    }
}

/// Checks volumes and returns the names of the good ones, for mounts to refer to.
pub(super) fn volumes<'v>(e: &mut Errors, volumes: &At<'v, '_>) -> HashSet<&'v str> {
    let mut names = HashSet::new();
    for volume in volumes.items() {
        let before = e.0.len();
        let mut found = 0;
        for (name, check) in SOURCES {
            let source = volume.get(name);
            if !source.is_set() {
                continue;
            }
            found += 1;
            match found {
                1 => check(e, &source),
                _ => e.forbidden(&source, "may not specify more than 1 volume type"),
            }
        }
        if found == 0 {
            e.required(&volume, "must specify a volume type");
        }
        let name = volume.get("name");
        e.name(&name, names::dns_label);
        if names.contains(name.str()) {
            e.duplicate(&name);
        }
        if e.0.len() == before {
            names.insert(name.str());
        }
    }
    names
}

fn azure_disk(e: &mut Errors, source: &At<'_, '_>) {
    required(e, source, &["diskName", "diskURI"]);
    e.optional_one_of(&source.get("cachingMode"), &["None", "ReadOnly", "ReadWrite"]);
    e.optional_one_of(&source.get("kind"), &["Dedicated", "Managed", "Shared"]);
    let (begins, example) = match source.get("kind").str() {
        "Managed" => (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        ),
        _ => ("https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"),
    };
    if !source.get("diskURI").str().starts_with(begins) {
        e.not_supported(&source.get("diskURI"), &[example]);
    }
}

fn host_path(e: &mut Errors, source: &At<'_, '_>) {
    let path = source.get("path");
    if path.is_empty() {
        e.required(&path, "");
        return;
    }
    e.no_backsteps(&path);
    let kinds =
        ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    e.optional_one_of(&source.get("type"), &kinds);
}

fn keyed_files(e: &mut Errors, source: &At<'_, '_>, name: &str) {
    required(e, source, &[name]);
    e.file_mode(&source.get("defaultMode"));
    source.get("items").items().for_each(|item| key_to_path(e, &item));
}

fn key_to_path(e: &mut Errors, item: &At<'_, '_>) {
    required(e, item, &["key", "path"]);
    e.volume_path(&item.get("path"));
    e.file_mode(&item.get("mode"));
}

fn downward_api(e: &mut Errors, source: &At<'_, '_>) {
    e.file_mode(&source.get("defaultMode"));
    // Upstream reports at the volume source, without the index.
    for item in source.get("items").items() {
        downward_file(e, &source.with(item.value));
    }
}

fn downward_file(e: &mut Errors, file: &At<'_, '_>) {
    required(e, file, &["path"]);
    e.volume_path(&file.get("path"));
    let (field, resource) = (file.get("fieldRef"), file.get("resourceFieldRef"));
    if field.is_set() {
        super::container::field_selector(e, &field, &super::container::VOLUME_FIELDS);
        if resource.is_set() {
            let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
            e.invalid_value(file, &Value::from("resource"), detail);
        }
    } else if resource.is_set() {
        super::container::resource_selector(e, &resource, true);
    } else {
        e.required(file, "one of fieldRef and resourceFieldRef is required");
    }
    e.file_mode(&file.get("mode"));
}

fn projected(e: &mut Errors, volume: &At<'_, '_>) {
    e.file_mode(&volume.get("defaultMode"));
    let mut paths = HashSet::new();
    let sources = volume.get("sources");
    for source in sources.items() {
        let mut found = 0;
        for name in ["secret", "configMap"] {
            let keyed = source.get(name);
            if !keyed.is_set() {
                continue;
            }
            found += 1;
            required(e, &keyed, &["name"]);
            for item in keyed.get("items").items() {
                key_to_path(e, &item);
                let path = item.get("path").str();
                if !path.is_empty() && !paths.insert(path) {
                    let shown = keyed.get("name").value;
                    e.invalid_value(volume, shown, "conflicting duplicate paths");
                }
            }
        }
        let downward = source.get("downwardAPI");
        if downward.is_set() {
            found += 1;
            for item in downward.get("items").items() {
                downward_file(e, &downward.with(item.value));
                let path = item.get("path");
                if !path.is_empty() && !paths.insert(path.str()) {
                    e.invalid_value(volume, path.value, "conflicting duplicate paths");
                }
            }
        }
        let token = source.get("serviceAccountToken");
        if token.is_set() {
            found += 1;
            let seconds = token.get("expirationSeconds");
            e.at_least(&seconds, 10 * 60, "may not specify a duration less than 10 minutes");
            if seconds.int().is_some_and(|s| s > 1 << 32) {
                e.invalid(&seconds, "may not specify a duration larger than 2^32 seconds");
            }
            // Upstream reports the path at the volume.
            let path = volume.get("path").with(token.get("path").value);
            if path.is_empty() {
                e.required(&path, "");
            } else {
                e.volume_path(&path);
            }
        }
        if source.get("clusterTrustBundle").is_set() || source.get("podCertificate").is_set() {
            found += 1;
        }
        if found > 1 {
            e.forbidden(&source, "may not specify more than 1 volume type per source");
        }
    }
}
