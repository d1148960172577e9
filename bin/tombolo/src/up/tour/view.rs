//! What the tour waits for, as the hub tells it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams};
use tombolo_api::{Site, Work, names};

use super::super::progress::{Line, until};
use super::super::{connect, network};
use super::Stage;

/// A lost lease, a wait, new containers and their probes fit in here with room to spare on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
pub const SAMPLE: &str = "hello";

/// Where a wait says that it goes on.
pub fn line() -> Line {
    Line::new(" ")
}

/// A site's part of a Deployment.
struct Part {
    site: String,
    replicas: i64,
    ready: i64,
}

impl Part {
    fn of(work: &Work) -> Option<Self> {
        let site = names::site_of_namespace(work.metadata.namespace.as_deref()?)?.to_owned();
        let pods = work.status.iter().flat_map(|status| status.pods.values());
        let ready = i64::try_from(pods.filter(|pod| pod.ready).count()).unwrap_or(i64::MAX);
        Some(Self { site, replicas: work.spec.replicas?, ready })
    }
}

/// The sites that do not have exactly what they shall have, as `tombolo place` would show them.
fn unsettled(parts: &[Part]) -> Vec<String> {
    let differs = parts.iter().filter(|part| part.ready != part.replicas);
    differs.map(|part| format!("{} has {} ready of {}", part.site, part.ready, part.replicas)).collect()
}

impl Stage {
    /// The sites' parts of a Deployment.
    async fn parts(&self, deployment: &str) -> Result<Vec<Part>> {
        let works = Api::<Work>::all(self.hub.clone()).list(&ListParams::default()).await?.items;
        let root = |work: &Work| work.spec.root.kind == "Deployment" && work.spec.root.name == deployment;
        let alive = works.iter().filter(|work| root(work) && work.spec.tombstone.is_none());
        Ok(alive.filter_map(Part::of).collect())
    }

    /// Replicas of a Deployment, by site.
    pub async fn shares(&self, deployment: &str) -> Result<BTreeMap<String, i64>> {
        Ok(self.parts(deployment).await?.into_iter().map(|part| (part.site, part.replicas)).collect())
    }

    pub async fn until_site(&self, name: &str, ready: bool) -> Result<()> {
        let sites: Api<Site> = Api::all(self.hub.clone());
        let what = format!("{name} to be {}", if ready { "heard" } else { "missed" });
        until(&line(), &what, PATIENCE, || async {
            ensure!(sites.get(name).await?.is_ready() == ready, "the hub has not noticed");
            Ok(())
        })
        .await
    }

    /// Until every replica of a Deployment is ready, and `wanted` likes the shares (given with how many there shall be).
    pub async fn until_shares(
        &self,
        deployment: &str,
        wanted: impl Fn(&BTreeMap<String, i64>, i64) -> bool,
    ) -> Result<()> {
        let api: Api<Deployment> = Api::namespaced(self.hub.clone(), "default");
        until(&line(), &format!("all replicas of {deployment}"), PATIENCE, || async {
            let found = api.get(deployment).await?;
            let want = found.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
            let status = found.status.unwrap_or_default();
            let shares = self.shares(deployment).await?;
            ensure!(wanted(&shares, i64::from(want)), "they are placed as {shares:?}");
            let ready = status.ready_replicas.unwrap_or(0);
            ensure!(ready == want, "{ready} of {want} are ready");
            Ok(())
        })
        .await
    }

    /// Until a Deployment runs in full without a site; what that site was given last may still stand there.
    pub async fn until_without(&self, deployment: &str, site: &str) -> Result<()> {
        let elsewhere = |shares: &BTreeMap<String, i64>| -> i64 {
            shares.iter().filter(|(name, _)| *name != site).map(|(_, replicas)| replicas).sum()
        };
        self.until_shares(deployment, |shares, want| elsewhere(shares) >= want).await
    }

    /// The fleet as `up` left it: every site heard, every replica of the sample ready, every site with its part and
    /// no pod more.
    pub async fn settled(&self) -> Result<()> {
        for member in self.fleet.sites() {
            self.until_site(&member.name, true).await?;
        }
        let sites: Vec<_> = self.fleet.sites().map(|m| m.name.clone()).collect();
        self.until_shares(SAMPLE, |shares, want| {
            let least = want / i64::try_from(sites.len()).unwrap_or(1);
            shares.values().sum::<i64>() == want
                && sites.iter().all(|site| shares.get(site).copied().unwrap_or(0) >= least)
        })
        .await?;
        until(&line(), "every site to run its part and no more", PATIENCE, || async {
            let unsettled = unsettled(&self.parts(SAMPLE).await?);
            ensure!(unsettled.is_empty(), "{}", unsettled.join(", "));
            Ok(())
        })
        .await
    }

    /// Deletes a pod of the sample at a site, from inside its network, and waits for the one in its place.
    pub async fn replace_a_pod_at(&self, name: &str) -> Result<(String, String)> {
        let member = self.fleet.member(name)?;
        let namespace = tombolo_wan::Namespace::of_another(&network::namespace(name));
        let (fleet, member) = (super::super::fleet::Fleet::new(self.fleet.dir()), member.clone());
        let inside = move || -> Result<(String, String)> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let pods: Api<Pod> = Api::namespaced(connect(&fleet, &member).await?.client, "default");
                let list = ListParams::default().labels(&format!("app={SAMPLE}"));
                let names =
                    |pods: Vec<Pod>| pods.into_iter().filter_map(|pod| pod.metadata.name).collect::<Vec<_>>();
                let before = names(pods.list(&list).await?.items);
                let victim = before.first().context("no pod of the sample is there")?.clone();
                pods.delete(&victim, &DeleteParams::default()).await?;
                let new = until(&line(), "another pod in its place", PATIENCE, || async {
                    let found = pods.list(&list).await?.items;
                    let new = found.into_iter().find(|pod| {
                        let fresh = pod.metadata.name.as_ref().is_some_and(|n| !before.contains(n));
                        let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
                        fresh
                            && conditions
                                .into_iter()
                                .flatten()
                                .any(|c| c.type_ == "Ready" && c.status == "True")
                    });
                    new.and_then(|pod| pod.metadata.name).context("it is not ready yet")
                })
                .await?;
                Ok((victim, new))
            })
        };
        tokio::task::spawn_blocking(move || namespace.run(inside)).await??
    }

    /// Until a site has told its hub that no node of it has this much left.
    pub async fn until_free_below(&self, site: &str, milli: i64) -> Result<()> {
        until(&line(), &format!("{site} to tell that it is full"), PATIENCE, || async {
            let free = self.free_milli_cpu(site).await?;
            ensure!(free < milli, "{free}m are free");
            Ok(())
        })
        .await
    }

    /// Milli-CPUs that are free on the roomiest node of a site.
    pub async fn free_milli_cpu(&self, site: &str) -> Result<i64> {
        let site = Api::<Site>::all(self.hub.clone()).get(site).await?;
        let shapes = site.status.map(|status| status.shapes).unwrap_or_default();
        let free = shapes.iter().filter_map(|s| tombolo_api::quantity::milli(s.free.get("cpu")?)).max();
        match free {
            Some(free) if free > 0 => Ok(free),
            _ => bail!("the site has not told yet how much room it has; try again in a moment"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_with_a_pod_too_many_or_too_few_is_not_settled() {
        let part = |site: &str, replicas, ready| Part { site: site.into(), replicas, ready };
        let parts = [part("cloud", 2, 2), part("edge-1", 2, 3), part("edge-2", 2, 1)];
        assert_eq!(unsettled(&parts), ["edge-1 has 3 ready of 2", "edge-2 has 1 ready of 2"]);
        assert!(unsettled(&parts[..1]).is_empty());
    }
}
