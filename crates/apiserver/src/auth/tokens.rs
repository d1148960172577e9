//! Bearer tokens: service accounts and bootstrap tokens.

use serde_json::{Value, json};

use super::identity::Identity;
use super::jwt::{Signer, looks_like_jwt};
use crate::http::status::Result;
use crate::registry::write;
use crate::server::App;

/// What a token asks to be bound to, besides its service account.
pub struct Bound {
    pub kind: &'static str,
    pub name: String,
    pub uid: String,
    /// For pods: the node they run on, as (name, uid).
    pub node: Option<(String, String)>,
}

/// The claims of a new token.
pub fn claims(
    issuer: &str,
    namespace: &str,
    account: (&str, &str),
    audiences: &[String],
    seconds: i64,
    now: i64,
    bound: Option<&Bound>,
    id: &str,
) -> Value {
    let (name, uid) = account;
    let mut private = json!({"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}});
    if let Some(bound) = bound {
        private[bound.kind] = json!({"name": bound.name, "uid": bound.uid});
        if let Some((name, uid)) = &bound.node {
            private["node"] = json!({"name": name, "uid": uid});
        }
    }
    json!({
        "iss": issuer, "sub": format!("system:serviceaccount:{namespace}:{name}"), "aud": audiences,
        "exp": now + seconds, "iat": now, "nbf": now, "jti": id, "kubernetes.io": private,
    })
}

/// Who a token belongs to, and the audiences it is good for among those asked for.
pub async fn identify(
    app: &App,
    signer: &Signer,
    token: &str,
    audiences: &[String],
) -> Result<Option<(Identity, Vec<String>)>> {
    if looks_like_jwt(token) {
        return service_account(app, signer, token, audiences).await;
    }
    Ok(bootstrap_token(app, token).await?.map(|identity| (identity, audiences.to_vec())))
}

async fn service_account(
    app: &App,
    signer: &Signer,
    token: &str,
    audiences: &[String],
) -> Result<Option<(Identity, Vec<String>)>> {
    let Some(claims) = signer.verify(token) else { return Ok(None) };
    if claims["iss"] != app.config.issuer.as_str() || !is_current(&claims, jiff::Timestamp::now()) {
        return Ok(None);
    }
    let has = |audience: &String| {
        claims["aud"].as_array().is_some_and(|list| list.iter().any(|a| a == audience.as_str()))
            || claims["aud"] == audience.as_str()
    };
    let good: Vec<String> = audiences.iter().filter(|a| has(a)).cloned().collect();
    if good.is_empty() {
        return Ok(None);
    }
    let private = &claims["kubernetes.io"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let namespace = text(&private["namespace"]);
    let (name, uid) = (text(&private["serviceaccount"]["name"]), text(&private["serviceaccount"]["uid"]));
    if !alive(app, "serviceaccounts", &namespace, &name, &uid).await? {
        return Ok(None);
    }
    let mut identity = Identity::new(
        format!("system:serviceaccount:{namespace}:{name}"),
        ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")],
    );
    identity.uid = uid;
    if let Some(id) = claims["jti"].as_str() {
        identity.extra.insert("authentication.kubernetes.io/credential-id".into(), vec![format!("JTI={id}")]);
    }
    for (kind, plural) in [("pod", "pods"), ("secret", "secrets"), ("node", "nodes")] {
        let Some(bound) = private.get(kind) else { continue };
        let (bound_name, bound_uid) = (text(&bound["name"]), text(&bound["uid"]));
        let home = if kind == "node" { "" } else { namespace.as_str() };
        // A pod's node is only a fact about it; the token lives and dies with the pod.
        let binding = kind != "node" || private.get("pod").is_none();
        if binding && !alive(app, plural, home, &bound_name, &bound_uid).await? {
            return Ok(None);
        }
        if kind != "secret" {
            identity.extra.insert(format!("authentication.kubernetes.io/{kind}-name"), vec![bound_name]);
            if !bound_uid.is_empty() {
                identity.extra.insert(format!("authentication.kubernetes.io/{kind}-uid"), vec![bound_uid]);
            }
        }
    }
    Ok(Some((identity, good)))
}

/// Whether it is not over; clocks may differ by a minute about its beginning. One that says nothing of its end is over.
fn is_current(claims: &Value, now: jiff::Timestamp) -> bool {
    let (time, now) = (|key: &str| claims[key].as_i64().unwrap_or(0), now.as_second());
    now < time("exp") && time("nbf") <= now + 60
}

/// Whether the very object (not a later one of the same name) still exists.
async fn alive(app: &App, plural: &str, namespace: &str, name: &str, uid: &str) -> Result<bool> {
    let Some(object) = app.object("", "v1", plural, namespace, name).await? else { return Ok(false) };
    // A deleted object's tokens stay good for a minute, so that its last words can be said.
    let gone = object
        .pointer("/metadata/deletionTimestamp")
        .and_then(Value::as_str)
        .and_then(|t| t.parse::<jiff::Timestamp>().ok())
        .is_some_and(|t| t.as_second() + 60 < jiff::Timestamp::now().as_second());
    Ok(!gone && (uid.is_empty() || write::text(&object, "/metadata/uid") == uid))
}

/// `id.secret`, kept in a Secret of kube-system.
async fn bootstrap_token(app: &App, token: &str) -> Result<Option<Identity>> {
    let Some((id, secret)) = token.split_once('.') else { return Ok(None) };
    let plain = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    if !plain(id, 6) || !plain(secret, 16) {
        return Ok(None);
    }
    let refused = |why: &str| {
        app.refusals.token(id, why);
        Ok(None)
    };
    let name = format!("bootstrap-token-{id}");
    let Some(object) = app.object("", "v1", "secrets", "kube-system", &name).await? else {
        return refused("there is no such token");
    };
    if object["type"] != "bootstrap.kubernetes.io/token" || write::is_deleting(&object) {
        return refused("there is no such token");
    }
    let field = |key: &str| {
        use base64::Engine;
        let text = object["data"][key].as_str()?;
        String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text).ok()?).ok()
    };
    let known = field("token-secret").unwrap_or_default();
    if field("token-id").as_deref() != Some(id)
        || !same_secret(&known, secret)
        || field("usage-bootstrap-authentication").as_deref() != Some("true")
    {
        return refused("its secret is wrong, or it is not for signing in");
    }
    if let Some(expiration) = field("expiration") {
        match expiration.parse::<jiff::Timestamp>() {
            Ok(at) if at > jiff::Timestamp::now() => {}
            _ => return refused("it has expired"),
        }
    }
    let mut groups = vec!["system:bootstrappers".to_owned()];
    let extra = field("auth-extra-groups").unwrap_or_default();
    groups.extend(extra.split(',').filter(|g| g.starts_with("system:bootstrappers:")).map(str::to_owned));
    Ok(Some(Identity::new(format!("system:bootstrap:{id}"), groups)))
}

/// Takes the same time wherever the first difference is.
fn same_secret(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_token_is_good_from_its_beginning_to_its_end() {
        let claims = json!({"nbf": 1_000, "exp": 2_000});
        let at = |second| jiff::Timestamp::from_second(second).expect("a time");
        let good = [939, 940, 1_999, 2_000].map(|second| is_current(&claims, at(second)));
        assert_eq!(good, [false, true, true, false]);
        assert!(!is_current(&json!({"nbf": 1_000}), at(1_500)));
    }
}
