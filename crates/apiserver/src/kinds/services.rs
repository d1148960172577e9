//! Services: cluster addresses and node ports.

use serde_json::Value;

use crate::config::Config;
use crate::http::status::Result;
use crate::server::Call;

pub struct Addresses {}

impl Addresses {
    pub fn new(_config: &Config) -> Self {
        Self {}
    }
}

pub async fn allocate(_call: &mut Call, _object: &mut Value, _old: Option<&Value>, _dry_run: bool) -> Result<()> {
    Ok(())
}
