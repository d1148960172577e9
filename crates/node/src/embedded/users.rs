//! Names of users and groups, looked up in the image as the program would see it.

use std::fs;
use std::path::{Path, PathBuf};

use super::oci::User;
use crate::runtime::{RuntimeError, Security};

/// Who the program runs as: the pod's word goes before the image's.
pub(crate) fn resolve(
    layers: &[PathBuf],
    image_user: &str,
    security: &Security,
) -> Result<User, RuntimeError> {
    let passwd = read_in(layers, "etc/passwd");
    let group = read_in(layers, "etc/group");
    let (user_part, group_part) = match image_user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (image_user, None),
    };
    let mut user = User::default();
    let mut login = String::new();
    if let Some(uid) = security.user {
        user.uid = uid as u32;
    } else if !user_part.is_empty() {
        match user_part.parse() {
            Ok(uid) => user.uid = uid,
            Err(_) => {
                let found = fields(&passwd).find(|entry| entry[0] == user_part);
                let missing = || {
                    RuntimeError::Create(format!("the image's user {user_part:?} is not in its /etc/passwd"))
                };
                user.uid = found.and_then(|e| e.get(2)?.parse().ok()).ok_or_else(missing)?;
                if security.must_not_be_root {
                    return Err(RuntimeError::Refused(format!(
                        "container has runAsNonRoot and image has non-numeric user ({user_part}), cannot verify user is non-root"
                    )));
                }
            }
        }
    }
    if security.must_not_be_root && user.uid == 0 {
        return Err(RuntimeError::Refused("container has runAsNonRoot and image will run as root".into()));
    }
    let entry = fields(&passwd).find(|entry| entry.get(2).is_some_and(|uid| *uid == user.uid.to_string()));
    if let Some(entry) = entry {
        login = entry[0].to_owned();
        user.gid = entry.get(3).and_then(|gid| gid.parse().ok()).unwrap_or(0);
    }
    if let Some(name) = group_part.filter(|_| security.user.is_none()) {
        let by_name = || fields(&group).find(|e| e[0] == name).and_then(|e| e.get(2)?.parse().ok());
        user.gid = name.parse().ok().or_else(by_name).unwrap_or(user.gid);
    }
    if let Some(gid) = security.group {
        user.gid = gid as u32;
    }
    let member =
        |entry: &Vec<&str>| entry.get(3).is_some_and(|members| members.split(',').any(|m| m == login));
    if !login.is_empty() {
        user.groups = fields(&group).filter(member).filter_map(|e| e.get(2)?.parse().ok()).collect();
    }
    user.groups.extend(security.supplemental_groups.iter().map(|gid| *gid as u32));
    user.groups.retain(|gid| *gid != user.gid);
    user.groups.sort_unstable();
    user.groups.dedup();
    Ok(user)
}

fn fields(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .filter(|line| !line.starts_with('#') && line.contains(':'))
        .map(|line| line.split(':').collect())
}

fn read_in(layers: &[PathBuf], path: &str) -> String {
    layers.iter().find_map(|layer| fs::read_to_string(layer.join(path)).ok()).unwrap_or_default()
}

/// Whether the image has a file or folder at an absolute path.
pub(crate) fn exists_in(layers: &[PathBuf], path: &Path) -> bool {
    let relative = path.strip_prefix("/").unwrap_or(path);
    layers.iter().any(|layer| layer.join(relative).symlink_metadata().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> (tempfile::TempDir, Vec<PathBuf>) {
        let dir = tempfile::tempdir().expect("temporary folder");
        fs::create_dir(dir.path().join("etc")).expect("etc");
        fs::write(dir.path().join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nweb:x:33:44::/:/bin/sh\n")
            .expect("passwd");
        fs::write(dir.path().join("etc/group"), "web:x:44:\nlogs:x:55:web,other\n").expect("group");
        let layers = vec![dir.path().to_owned()];
        (dir, layers)
    }

    #[test]
    fn a_name_in_the_image_becomes_numbers_and_brings_its_groups() {
        let (_keep, layers) = image();
        let user = resolve(&layers, "web", &Security::default()).expect("resolves");
        assert_eq!(user, User { uid: 33, gid: 44, groups: vec![55] });
    }

    #[test]
    fn the_pods_numbers_win() {
        let (_keep, layers) = image();
        let security = Security {
            user: Some(1000),
            group: Some(2000),
            supplemental_groups: vec![7, 2000],
            ..Default::default()
        };
        let user = resolve(&layers, "web", &security).expect("resolves");
        assert_eq!(user, User { uid: 1000, gid: 2000, groups: vec![7] });
    }

    #[test]
    fn root_is_refused_when_the_pod_forbids_it() {
        let (_keep, layers) = image();
        let security = Security { must_not_be_root: true, ..Default::default() };
        assert!(resolve(&layers, "", &security).is_err());
        assert!(resolve(&layers, "web", &security).is_err());
        assert!(resolve(&layers, "33", &security).is_ok());
    }
}
