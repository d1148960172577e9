//! Who the node in a data folder is: made once, kept for good.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::NodeError;
use crate::disk;

/// `node.json` of a data folder. The id keeps the links and cgroups of several nodes on one machine apart.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub name: String,
    pub id: String,
}

impl Identity {
    pub fn load(data_dir: &Path) -> Option<Identity> {
        serde_json::from_slice(&fs::read(data_dir.join("node.json")).ok()?).ok()
    }

    pub fn open(data_dir: &Path, name: &str) -> Result<Identity, NodeError> {
        let io = |what| move |source| NodeError::Io { what, path: data_dir.to_owned(), source };
        fs::create_dir_all(data_dir).map_err(io("data folder"))?;
        if let Some(found) = Identity::load(data_dir) {
            return if found.name == name {
                Ok(found)
            } else {
                Err(NodeError::OtherNode { path: data_dir.to_owned(), found: found.name })
            };
        }
        let id = uuid::Uuid::new_v4().simple().to_string()[..8].to_owned();
        let identity = Identity { name: name.to_owned(), id };
        let bytes = serde_json::to_vec(&identity).map_err(|e| io("node.json")(std::io::Error::other(e)))?;
        disk::replace(&data_dir.join("node.json"), &bytes, 0o644).map_err(io("node.json"))?;
        Ok(identity)
    }

    pub fn overlay(&self) -> String {
        format!("tvx{}", self.id)
    }

    pub fn bridge(&self) -> String {
        format!("tbr{}", self.id)
    }
}
