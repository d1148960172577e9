//! `tombolo token`: tickets with which a site may join a hub, or a node a site.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, DeleteParams, ListParams};
use ring::rand::{SecureRandom, SystemRandom};
use serde::Serialize;
use serde_json::json;
use tombolo_fleet::tokens::NewToken;

use crate::client::{Connected, Target};
use crate::output::{Output, Table};

/// Make, list and remove join tokens
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tombolo token create --ttl 1h --uses 1\n  tombolo token create --node --kubeconfig site/admin.kubeconfig\n  tombolo token list\n  tombolo token remove abcdef"
)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a token and print the command that uses it
    #[command(
        after_help = "Examples:\n  tombolo token create --ttl 1h --uses 1\n  tombolo token create -o json | jq -r .command"
    )]
    Create {
        /// For a node that joins a site, instead of a site that joins a hub
        #[arg(long, conflicts_with_all = ["uses", "needs_approval"])]
        node: bool,
        /// How long it can be used: seconds, or with a unit (30s, 10m, 1h, 2d)
        #[arg(long, default_value = "1h", value_parser = duration, value_name = "TIME")]
        ttl: Duration,
        /// How many sites may join with it
        #[arg(long, value_name = "N")]
        uses: Option<u32>,
        /// Each site that joins with it waits for `tombolo sites approve`
        #[arg(long)]
        needs_approval: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Show the tokens that can still be used
    #[command(after_help = "Example:\n  tombolo token list -o json")]
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Make a token useless
    #[command(visible_alias = "delete", after_help = "Example:\n  tombolo token remove abcdef")]
    Remove {
        /// The part of the token before the dot
        id: String,
    },
}

/// How long and how often a token can be used.
pub struct Terms {
    pub ttl: Duration,
    pub uses: Option<u32>,
    /// A person must approve each site that joins with it.
    pub needs_approval: bool,
}

/// What a site needs to join.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ticket {
    pub url: String,
    pub token: String,
    pub ca_hash: String,
}

/// A ticket, with the line to type at the newcomer.
#[derive(Serialize)]
struct Printed<'a> {
    command: &'a str,
    #[serde(flatten)]
    ticket: &'a Ticket,
}

const NAMESPACE: &str = "kube-system";
/// How many sites may still join with a token; the hub counts it down.
const USES_KEY: &str = "tombolo-uses";
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";

pub async fn run(args: Args, target: &Target) -> Result<()> {
    let hub = target.connect().await?;
    match args.action {
        Action::Create { node, ttl, uses, needs_approval, output } => {
            let (start, ticket) = if node {
                let start = "tombolo node --data-dir /var/lib/tombolo/node --join";
                (start, create_for_nodes(&hub, ttl).await?)
            } else {
                ("tombolo join", create(&hub, &Terms { ttl, uses, needs_approval }).await?)
            };
            let command =
                format!("{start} {} --token {} --ca-hash {}", ticket.url, ticket.token, ticket.ca_hash);
            let printed = Printed { command: &command, ticket: &ticket };
            let id = ticket.token.split('.').next().unwrap_or_default();
            output.one(&format!("{command}\n"), &printed, id)?;
        }
        Action::List { output } => list(&hub, output).await?,
        Action::Remove { id } => {
            let id = id.split('.').next().unwrap_or_default();
            secrets(&hub)
                .delete(&format!("bootstrap-token-{id}"), &DeleteParams::default())
                .await
                .with_context(|| format!("no token {id}; `tombolo token list` shows them"))?;
            println!("token {id} removed");
        }
    }
    Ok(())
}

fn secrets(hub: &Connected) -> Api<Secret> {
    Api::namespaced(hub.client.clone(), NAMESPACE)
}

/// Makes a bootstrap token that may ask for a site's certificate, and nothing else.
pub async fn create(hub: &Connected, terms: &Terms) -> Result<Ticket> {
    let ca_hash = ca_hash(hub)?;
    let mut random = [0; 16];
    SystemRandom::new().fill(&mut random).map_err(|_| anyhow::anyhow!("the system has no random numbers"))?;
    let new = NewToken { ttl: Some(terms.ttl), uses: terms.uses, needs_approval: terms.needs_approval };
    let now = k8s_openapi::jiff::Timestamp::now().as_second();
    let token = tombolo_fleet::tokens::create(&hub.client, &new, now, random)
        .await
        .context("cannot store the token")?;
    let url = advertised(hub).await.unwrap_or_else(|| hub.config.cluster_url.to_string());
    Ok(Ticket { url: url.trim_end_matches('/').to_owned(), token, ca_hash })
}

fn ca_hash(hub: &Connected) -> Result<String> {
    let certificate = hub.config.root_cert.as_ref().and_then(|all| all.first());
    let certificate = certificate.context(
        "the kubeconfig has no certificate-authority-data, by which newcomers know whom they join",
    )?;
    let pem = pem::encode(&pem::Pem::new("CERTIFICATE", certificate.clone()));
    tombolo_agent::ca_hash(&pem).context("the kubeconfig's CA is not a certificate")
}

/// Makes a bootstrap token that may ask for the certificate of a new node, and vouches for `cluster-info`.
async fn create_for_nodes(site: &Connected, ttl: Duration) -> Result<Ticket> {
    let ca_hash = ca_hash(site)?;
    let mut random = [0; 16];
    SystemRandom::new().fill(&mut random).map_err(|_| anyhow::anyhow!("the system has no random numbers"))?;
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let (id, key) = (&text[..6], &text[6..22]);
    let end = k8s_openapi::jiff::Timestamp::now() + k8s_openapi::jiff::SignedDuration::try_from(ttl)?;
    let token = json!({
        "apiVersion": "v1", "kind": "Secret", "type": SECRET_TYPE,
        "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": NAMESPACE},
        "stringData": {
            "token-id": id, "token-secret": key,
            "expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
            "auth-extra-groups": tombolo_api::names::NODE_JOIN_GROUP,
        },
    });
    let token: Secret = serde_json::from_value(token)?;
    secrets(site).create(&Default::default(), &token).await.context("cannot store the token")?;
    let url = advertised(site).await.unwrap_or_else(|| site.config.cluster_url.to_string());
    Ok(Ticket { url: url.trim_end_matches('/').to_owned(), token: format!("{id}.{key}"), ca_hash })
}

/// Where the hub says that sites reach it; the kubeconfig at hand may name another way in.
async fn advertised(hub: &Connected) -> Option<String> {
    let info: Api<ConfigMap> = Api::namespaced(hub.client.clone(), "kube-public");
    let data = info.get_opt("cluster-info").await.ok()??.data?;
    let kubeconfig: serde_json::Value = serde_yaml_ng::from_str(data.get("kubeconfig")?).ok()?;
    Some(kubeconfig.pointer("/clusters/0/cluster/server")?.as_str()?.to_owned())
}

async fn list(hub: &Connected, output: Output) -> Result<()> {
    let field = |secret: &Secret, key: &str| {
        let value =
            secret.data.as_ref().and_then(|d| d.get(key)).map(|b| String::from_utf8_lossy(&b.0).into_owned());
        value.unwrap_or_else(|| "-".into())
    };
    let params = ListParams::default().fields(&format!("type={SECRET_TYPE}"));
    let found = secrets(hub).list(&params).await?.items;
    let mut table = Table::new(&["ID", "EXPIRES", "USES LEFT"], 3);
    for secret in &found {
        table.row(vec![field(secret, "token-id"), field(secret, "expiration"), field(secret, USES_KEY)]);
    }
    // The secret part is not printed again, in no format.
    let ids: Vec<_> = found
        .iter()
        .map(|s| {
            let uses = field(s, USES_KEY).parse::<u32>().ok();
            json!({"id": field(s, "token-id"), "expires": field(s, "expiration"), "usesLeft": uses})
        })
        .collect();
    output.rows(&table, &ids, |id| id["id"].as_str().unwrap_or_default().to_owned())
}

pub fn duration(text: &str) -> Result<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let factor = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86400,
        _ => bail!("{unit:?} is no unit of time; use s, m, h or d"),
    };
    Ok(Duration::from_secs(number.parse::<u64>().context("not a number")? * factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("90").expect("seconds"), Duration::from_secs(90));
        assert_eq!(duration("2h").expect("hours"), Duration::from_secs(7200));
        assert!(duration("2 weeks").is_err() && duration("h").is_err());
    }
}
