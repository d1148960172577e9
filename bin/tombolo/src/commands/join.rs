//! `tombolo join` and `tombolo leave`: tie a site to a hub, or untie it, from the site's side.
//!
//! The wish is a Secret at the site. The site's own process watches for it and runs an agent per hub, so joining needs
//! nothing but the site's API, and a site may be tied to several hubs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams};
use sha2::{Digest, Sha256};
use tombolo_agent::{ActingAs, StateSecret};
use tombolo_api::{Location, SiteSpec, Tier, names};

use super::limits::{self, LimitArgs};
use super::token::Ticket;
use crate::client::Target;
use crate::up::progress::{Line, ticking};

/// Marks the Secrets that say to which hubs a site is tied.
pub const TIE_LABEL: &str = "tombolo.dev/tie";
/// On a tie that a site's process heeds: it goes when that process has cleaned up.
pub const TIE_FINALIZER: &str = "tombolo.dev/tie";
/// On a tie that came to nothing: why.
pub const FAULT_ANNOTATION: &str = "tombolo.dev/fault";
const MANAGER: &str = "tombolo-cli";
/// How long joining waits for the same hub to be left.
const PATIENCE: Duration = Duration::from_secs(40);
/// How long it waits to be let in; longer, where a person must approve it.
const WELCOME: Duration = Duration::from_secs(10);

/// Tie this site to a hub
#[derive(clap::Args)]
#[command(
    after_help = "Example (the line `tombolo token create` printed at the hub):\n  tombolo join https://hub:6443 --token abcdef.0123456789abcdef --ca-hash sha256:… --name harbour --tier edge"
)]
pub struct Args {
    /// The hub's address
    url: String,
    /// Join token, as printed by `tombolo token create` at the hub
    #[arg(long, env = "TOMBOLO_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: String,
    /// Hash of the hub's CA, as printed with the token
    #[arg(long, env = "TOMBOLO_CA_HASH", value_name = "sha256:HEX")]
    ca_hash: String,
    #[command(flatten)]
    description: DescriptionArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// What the hub learns about a site.
#[derive(clap::Args, Clone, Debug)]
pub struct DescriptionArgs {
    /// The site's name at the hub
    #[arg(long, default_value_t = host_name())]
    pub name: String,
    /// Kind of place
    #[arg(long, value_enum, default_value = "edge")]
    pub tier: TierArg,
    /// Region, for example eu-central
    #[arg(long)]
    pub region: Option<String>,
    /// Zone within the region
    #[arg(long)]
    pub zone: Option<String>,
    /// Latitude in degrees
    #[arg(long, allow_negative_numbers = true, value_name = "DEGREES")]
    pub lat: Option<f64>,
    /// Longitude in degrees
    #[arg(long, allow_negative_numbers = true, value_name = "DEGREES")]
    pub lon: Option<f64>,
    /// Whose law applies, for example EU
    #[arg(long)]
    pub jurisdiction: Option<String>,
    /// Who runs it, for example hetzner
    #[arg(long)]
    pub provider: Option<String>,
    /// Labels of the site, as key=value
    #[arg(long, value_delimiter = ',', value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum TierArg {
    Cloud,
    Fog,
    Edge,
}

/// Untie this site from a hub; the hub need not be reachable
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tombolo leave https://hub:6443\n  tombolo --kubeconfig member.kubeconfig leave https://hub:6443      (a cluster whose agent was stopped before)"
)]
pub struct LeaveArgs {
    /// The hub's address; may be left out when this is a Tombolo site that is tied to one hub only
    url: Option<String>,
}

/// A site's description of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    pub name: String,
    pub spec: SiteSpec,
    pub labels: BTreeMap<String, String>,
}

/// The wish to be tied to one hub, as kept at the site.
#[derive(Clone, Debug, PartialEq)]
pub struct Tie {
    /// Name of the Secret.
    pub name: String,
    pub url: String,
    pub token: String,
    pub ca_hash: String,
    pub description: Description,
    /// As whom the hub acts here; nobody in particular: as the agent itself.
    pub acting_as: Option<ActingAs>,
}

pub async fn run(args: Args, target: &Target) -> Result<()> {
    let site = target.connect().await?.client;
    let ticket = Ticket { url: args.url, token: args.token, ca_hash: args.ca_hash };
    let description = Description::try_from(args.description)?;
    let tie_name = tie_name(&ticket.url);
    let acting_as = args.limits.acting_as(&tie_name);
    let user = acting_as.as_ref().map_or("", |acting| acting.user.as_str());
    let limits = args.limits.objects(&tie_name, user)?;
    limits::apply(&site, &tie_name, &limits).await?;
    tie(&site, &ticket, &description, acting_as.as_ref()).await?;
    // What an earlier `join` allowed and this one does not.
    limits::prune(&site, &tie_name, &limits).await.context("cannot take back what was allowed earlier")?;
    let line = Line::new(format!("{} asks {} to be let in", description.name, ticket.url));
    match ticking(&line, welcomed(&site, &ticket, &tie_name)).await? {
        Welcome::Joined => {
            println!("{} has joined {}; `tombolo sites` at the hub shows it", description.name, ticket.url)
        }
        Welcome::NotYet => println!(
            "{} is not let in by {} yet, and goes on asking. At the hub, `kubectl get csr` shows whether it waits for \
             `tombolo sites approve {}`; here, `tombolo check site` tells how far it is",
            description.name, ticket.url, description.name
        ),
        Welcome::Nobody => {
            ties(&site).delete(&tie_name, &DeleteParams::default()).await?;
            limits::remove(&site, &tie_name).await?;
            bail!(
                "nothing here can tie this cluster to a hub: `tombolo join` is for a cluster that `tombolo site` or \
                 `tombolo hub` runs. For any other: `tombolo agent --hub {} --token ... --ca-hash ... --name {}`",
                ticket.url,
                description.name
            );
        }
    }
    Ok(())
}

/// What came of asking a hub.
enum Welcome {
    Joined,
    /// It has neither said yes nor no.
    NotYet,
    /// No process of this cluster heeds ties.
    Nobody,
}

/// Waits for the answer to this ticket; a refusal is an error.
async fn welcomed(site: &kube::Client, ticket: &Ticket, name: &str) -> Result<Welcome> {
    let deadline = Instant::now() + WELCOME;
    let token = ticket.token.split('.').next().unwrap_or_default();
    let state = StateSecret::new(site.clone(), &state_of(name));
    loop {
        let tie = ties(site).get_opt(name).await?;
        let state = state.load().await?;
        if state.joined() && state.token_id == token {
            return Ok(Welcome::Joined);
        }
        if let Some(why) = tie.as_ref().and_then(fault_of) {
            bail!("{} does not let this site in: {why}", ticket.url);
        }
        if Instant::now() > deadline {
            return Ok(if tie.as_ref().is_some_and(is_held) { Welcome::NotYet } else { Welcome::Nobody });
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Why a tie came to nothing, if it did.
pub fn fault_of(tie: &Secret) -> Option<&str> {
    tie.annotations().get(FAULT_ANNOTATION).map(String::as_str).filter(|why| !why.is_empty())
}

/// A process of the site heeds it.
fn is_held(tie: &Secret) -> bool {
    tie.finalizers().iter().any(|f| f == TIE_FINALIZER)
}

/// Writes the wish down at the site.
pub async fn tie(
    site: &kube::Client,
    ticket: &Ticket,
    description: &Description,
    acting_as: Option<&ActingAs>,
) -> Result<()> {
    if !ticket.url.starts_with("https://") {
        bail!("{:?} is no hub address; it looks like https://host:6443", ticket.url);
    }
    let namespace = Namespace {
        metadata: ObjectMeta { name: Some(names::SYSTEM_NAMESPACE.into()), ..Default::default() },
        ..Default::default()
    };
    let params = PatchParams::apply(MANAGER).force();
    Api::<Namespace>::all(site.clone())
        .patch(names::SYSTEM_NAMESPACE, &params, &Patch::Apply(&namespace))
        .await
        .context("cannot write at the site")?;
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    let name = tie_name(&ticket.url);
    wait_until_left(site, &name).await?;
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(BTreeMap::from([(TIE_LABEL.to_owned(), "true".to_owned())])),
            // What an earlier try came to is over.
            annotations: Some(BTreeMap::from([(FAULT_ANNOTATION.to_owned(), String::new())])),
            ..Default::default()
        },
        data: Some(BTreeMap::from([
            ("url".to_owned(), bytes(&ticket.url)),
            ("token".to_owned(), bytes(&ticket.token)),
            ("caHash".to_owned(), bytes(&ticket.ca_hash)),
            ("name".to_owned(), bytes(&description.name)),
            ("spec".to_owned(), ByteString(serde_json::to_vec(&description.spec)?)),
            ("labels".to_owned(), ByteString(serde_json::to_vec(&description.labels)?)),
            ("actAs".to_owned(), bytes(acting_as.map_or("", |a| a.user.as_str()))),
            ("actAsGroups".to_owned(), bytes(&acting_as.map_or(String::new(), |a| a.groups.join("\n")))),
        ])),
        ..Default::default()
    };
    ties(site)
        .patch(&name, &params, &Patch::Apply(&secret))
        .await
        .context("cannot write the tie at the site")?;
    Ok(())
}

/// A tie that is being removed would take the new wish with it.
async fn wait_until_left(site: &kube::Client, name: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = ties(site).get_opt(name).await.context("cannot read the site's ties")?;
        if found.is_none_or(|tie| tie.metadata.deletion_timestamp.is_none()) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("this site still leaves that hub; its log says what holds it up. Try again later");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

pub async fn leave(args: LeaveArgs, target: &Target) -> Result<()> {
    let site = target.connect().await?.client;
    let found = ties(&site).list(&ListParams::default().labels(TIE_LABEL)).await?.items;
    let found: Vec<(Tie, bool)> =
        found.iter().filter_map(|secret| Some((Tie::from_secret(secret)?, is_held(secret)))).collect();
    let chosen = match (&args.url, &found[..]) {
        (Some(url), all) => all.iter().find(|(tie, _)| &tie.url == url),
        (None, [only]) => Some(only),
        (None, _) => None,
    };
    match (chosen, args.url) {
        (Some((tie, held)), _) => {
            ties(&site).delete(&tie.name, &DeleteParams::default()).await?;
            if !held {
                leave_now(&site, &tie.url).await?;
            }
            println!("{} leaves {}; what the hub placed here is removed", tie.description.name, tie.url);
        }
        // An agent beside the cluster has no tie.
        (None, Some(url)) if has_traces(&site, &url).await? => {
            leave_now(&site, &url).await?;
            println!("this cluster has left {url}; what the hub placed here is removed");
        }
        (None, url) => {
            let tied: Vec<String> = found.into_iter().map(|(tie, _)| tie.url).collect();
            let all = ties(&site).list(&ListParams::default()).await?.items;
            let agents: Vec<String> = all.iter().filter_map(|secret| agent_record(secret, &tied)).collect();
            bail!("{}", which_hub(url.as_deref(), &[tied, agents].concat()));
        }
    }
    Ok(())
}

/// What an agent beside the cluster wrote down, in words: its hub's address is not in it.
fn agent_record(secret: &Secret, tied: &[String]) -> Option<String> {
    let name = secret.metadata.name.as_deref()?;
    if !name.starts_with("hub-")
        || !name.ends_with("-state")
        || tied.iter().any(|url| state_name(url) == name)
    {
        return None;
    }
    let data = secret.data.as_ref()?;
    let text = |key: &str| Some(String::from_utf8_lossy(&data.get(key)?.0).into_owned());
    let id = text("hub").filter(|id| !id.is_empty())?;
    let at =
        text("replicas").filter(|urls| !urls.is_empty()).map(|urls| format!(", which answers at {urls}"));
    Some(format!("an agent's hub {id}{}", at.unwrap_or_default()))
}

/// Why there is nothing to leave, or not before it is said which hub is meant.
fn which_hub(asked: Option<&str>, known: &[String]) -> String {
    let all = known.join("; ");
    match (asked, known) {
        (Some(url), []) => {
            format!("nothing is recorded here for {url}, nor for any other hub: there is nothing to leave")
        }
        (Some(url), _) => format!(
            "nothing is recorded here for {url}; recorded are: {all}. Give the address as `tombolo join` or `tombolo agent --hub` had it"
        ),
        (None, []) => "nothing is recorded here for any hub: there is nothing to leave".to_owned(),
        (None, _) => {
            format!("say which hub to leave, by the address it was joined with; recorded are: {all}")
        }
    }
}

/// Was the cluster ever tied to that hub? Its agent's state goes before the limits: leaving may have ended in between.
async fn has_traces(site: &kube::Client, url: &str) -> Result<bool, kube::Error> {
    Ok(ties(site).get_opt(&state_name(url)).await?.is_some() || limits::any(site, &tie_name(url)).await?)
}

/// Where no process of the site does it.
async fn leave_now(site: &kube::Client, url: &str) -> Result<()> {
    match clean_up(site, &tie_name(url)).await.context("cannot clean up what the hub placed here")? {
        0 => Ok(()),
        left => bail!("{left} objects of the hub could not be removed; try again"),
    }
}

/// Removes all that was made for the hub of a tie. Gives the number of objects that could not be removed.
pub async fn clean_up(site: &kube::Client, tie: &str) -> Result<usize, kube::Error> {
    let left = tombolo_agent::leave(site, &state_of(tie), false).await?;
    limits::remove(site, tie).await?;
    Ok(left)
}

/// The Secrets that say to which hubs the site is tied.
pub fn ties(site: &kube::Client) -> Api<Secret> {
    Api::namespaced(site.clone(), names::SYSTEM_NAMESPACE)
}

/// The Secret in which the agent for this hub keeps its key and certificate.
pub fn state_name(url: &str) -> String {
    state_of(&tie_name(url))
}

pub fn state_of(tie: &str) -> String {
    format!("{tie}-state")
}

/// Name of the tie to a hub.
pub fn tie_name(url: &str) -> String {
    let hash = Sha256::digest(url.as_bytes());
    format!("hub-{}", hash.iter().take(5).map(|b| format!("{b:02x}")).collect::<String>())
}

impl Tie {
    pub fn from_secret(secret: &Secret) -> Option<Self> {
        let data = secret.data.as_ref()?;
        let text = |key: &str| Some(String::from_utf8_lossy(&data.get(key)?.0).into_owned());
        Some(Self {
            name: secret.metadata.name.clone()?,
            url: text("url")?,
            token: text("token")?,
            ca_hash: text("caHash")?,
            acting_as: text("actAs").filter(|user| !user.is_empty()).map(|user| ActingAs {
                user,
                groups: text("actAsGroups").unwrap_or_default().lines().map(str::to_owned).collect(),
            }),
            description: Description {
                name: text("name")?,
                spec: serde_json::from_slice(&data.get("spec")?.0).ok()?,
                labels: serde_json::from_slice(&data.get("labels")?.0).ok()?,
            },
        })
    }
}

impl TryFrom<DescriptionArgs> for Description {
    type Error = anyhow::Error;

    fn try_from(args: DescriptionArgs) -> Result<Self> {
        if !names::valid_site_name(&args.name) {
            bail!(
                "{:?} cannot name a site: up to 40 lower-case letters, digits and dashes, please",
                args.name
            );
        }
        let labels = args.labels.iter().map(|pair| {
            let (key, value) =
                pair.split_once('=').with_context(|| format!("{pair:?} is no label; write key=value"))?;
            Ok((key.to_owned(), value.to_owned()))
        });
        let labels = labels.collect::<Result<_>>()?;
        let location = Location {
            region: args.region,
            zone: args.zone,
            latitude: args.lat,
            longitude: args.lon,
            jurisdiction: args.jurisdiction,
        };
        let tier = match args.tier {
            TierArg::Cloud => Tier::Cloud,
            TierArg::Fog => Tier::Fog,
            TierArg::Edge => Tier::Edge,
        };
        let spec = SiteSpec { tier, location, provider: args.provider, ..Default::default() };
        Ok(Self { name: args.name, spec, labels })
    }
}

pub fn host_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|n| n.into_string().ok()).unwrap_or_default();
    let name: String =
        name.to_lowercase().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(40).collect();
    if names::valid_site_name(&name) { name } else { "site".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaving_a_hub_of_which_nothing_is_recorded_says_so_and_what_is() {
        let known = ["https://a:6443".to_owned(), "https://b:6443".to_owned()];
        let said = which_hub(Some("https://x:6443"), &known);
        assert!(
            said.starts_with(
                "nothing is recorded here for https://x:6443; recorded are: https://a:6443; https://b:6443."
            ),
            "{said}"
        );
        let said = which_hub(Some("https://x:6443"), &[]);
        assert_eq!(
            said,
            "nothing is recorded here for https://x:6443, nor for any other hub: there is nothing to leave"
        );
        assert!(which_hub(None, &known).starts_with("say which hub to leave"));
        assert!(which_hub(None, &[]).ends_with("there is nothing to leave"));
    }

    #[test]
    fn what_an_agent_beside_the_cluster_recorded_counts_and_a_tie_s_own_state_does_not() {
        let secret = |name: &str, data: &[(&str, &str)]| Secret {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..Default::default() },
            data: Some(
                data.iter().map(|(k, v)| ((*k).to_owned(), ByteString(v.as_bytes().to_vec()))).collect(),
            ),
            ..Default::default()
        };
        let (tied, other) = ("https://a:6443".to_owned(), "https://b:6443");
        let state = [("hub", "1234"), ("replicas", "https://b-1:6443")];
        let record = |name: &str, data: &[(&str, &str)]| {
            agent_record(&secret(name, data), std::slice::from_ref(&tied))
        };
        assert_eq!(record(&state_name(&tied), &state), None);
        assert_eq!(record("something-else", &state), None);
        assert_eq!(record(&state_name(other), &[("hub", "")]), None, "it never joined");
        assert_eq!(
            record(&state_name(other), &state),
            Some("an agent's hub 1234, which answers at https://b-1:6443".into())
        );
    }
}
