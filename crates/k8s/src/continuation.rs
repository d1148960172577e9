//! Continue tokens: where a chunked list goes on, and at which revision.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use thiserror::Error;

const VERSION: &str = "meta.k8s.io/v1";

/// `revision` is -1 when the list may go on from the newest state instead of the one it began with.
#[derive(Serialize, Deserialize)]
struct Wire {
    v: String,
    rv: i64,
    start: String,
}

/// Why a token is refused; answered with 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("continue key is not valid: {0}")]
pub struct BadContinue(&'static str);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continue {
    pub revision: Option<u64>,
    /// The key that was returned last, relative to the scope of the list.
    pub after: String,
}

impl Continue {
    pub fn encode(revision: Option<u64>, after: &str) -> String {
        let rv = revision.map_or(-1, |r| r as i64);
        let wire = Wire { v: VERSION.into(), rv, start: format!("{after}\0") };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&wire).expect("a token of strings is JSON"))
    }

    pub fn decode(token: &str) -> Result<Self, BadContinue> {
        let bad = BadContinue;
        let bytes =
            URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).map_err(|_| bad("it is not base64"))?;
        let wire: Wire = serde_json::from_slice(&bytes).map_err(|_| bad("it does not decode"))?;
        if wire.v != VERSION {
            return Err(bad("server does not recognize this encoded version"));
        }
        let after = wire.start.trim_end_matches('\0').to_owned();
        if after.is_empty() || after.split('/').any(|part| part == ".." || part == ".") {
            return Err(bad("it names no key of this list"));
        }
        let revision = match wire.rv {
            0 => return Err(bad("incorrect encoded start resourceVersion")),
            rv if rv < 0 => None,
            rv => Some(rv as u64),
        };
        Ok(Self { revision, after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_where_and_when_to_go_on() {
        let token = Continue::decode(&Continue::encode(Some(7), "ns/a")).unwrap();
        assert_eq!((token.revision, token.after.as_str()), (Some(7), "ns/a"));
        assert_eq!(Continue::decode(&Continue::encode(None, "ns/a")).unwrap().revision, None);
    }

    #[test]
    fn a_token_that_leaves_its_list_is_refused() {
        for bad in ["", "???", &Continue::encode(Some(1), "../x"), &Continue::encode(Some(1), "")] {
            assert!(Continue::decode(bad).is_err(), "{bad}");
        }
    }
}
