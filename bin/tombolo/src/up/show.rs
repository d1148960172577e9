//! What `up` prints at the end: the fleet, where to look, what to try.

use std::path::{Path, PathBuf};

use anyhow::Result;
use kube::api::{Api, ListParams};
use tombolo_api::Site;

use super::fleet::{Fleet, Member, Role};
use super::progress::say;
use super::{DATA_DIR, NODE_PORT, connect};
use crate::commands::sites;
use crate::output::emphasis;

pub async fn show(fleet: &Fleet) -> Result<()> {
    let hub = fleet.member("hub")?;
    let client = connect(fleet, hub).await?.client;
    let list = Api::<Site>::all(client).list(&ListParams::default()).await?.items;
    say(&sites::table(&list).render(false));
    say("The sample application, at each site:\n");
    for member in fleet.sites() {
        say(&format!("  {:<10} http://{}:{NODE_PORT}/", member.name, member.address()));
    }
    for member in fleet.with_role(Role::Agent) {
        let why = "an existing cluster; the sample's image is not there, so it is left out";
        say(&format!("  {:<10} {why}", member.name));
    }
    say("\nThe hub is an ordinary Kubernetes API:\n");
    say(&format!("  {}\n", emphasis(&format!("export KUBECONFIG={}", fleet.kubeconfig(hub).display()))));
    let kubectl = in_path("kubectl").is_some();
    if !kubectl {
        say("kubectl is not in your PATH: https://kubernetes.io/docs/tasks/tools/ has it. Without it:\n");
    }
    say("Five things to try:\n");
    let edge = fleet.sites().last().unwrap_or(hub);
    for (line, why) in to_try(&program(), &data_dir_flag(fleet.dir()), edge, kubectl) {
        say(&format!("  {}\n      {why}", emphasis(&line)));
    }
    Ok(())
}

/// Five commands, of programs that are there.
fn to_try(program: &str, dir: &str, edge: &Member, kubectl: bool) -> [(String, &'static str); 5] {
    let [first, second] = if kubectl {
        [
            ("kubectl get pods -o wide".to_owned(), "the pods of all sites; the NODE is the site"),
            ("kubectl scale deploy/hello --replicas=9".to_owned(), "and watch them spread"),
        ]
    } else {
        [
            (format!("{program} place hello"), "how many replicas run at which site"),
            (
                format!("{program} lab fetch {}{dir}", edge.name),
                "the sample's page, as somebody beside that site sees it",
            ),
        ]
    };
    [
        first,
        second,
        (format!("{program} explain place deploy/hello"), "why each replica is where it is"),
        (format!("{program} tour{dir}"), "cut a link, kill a site, overflow an edge, step by step"),
        (format!("{program} down{dir}"), "remove all of it"),
    ]
}

/// The first program of that name which the shell would find.
fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.exists())
}

/// How the user calls this program: by its name if that finds it.
pub fn program() -> String {
    let own = std::env::current_exe().unwrap_or_else(|_| Path::new("tombolo").to_owned());
    let found = in_path("tombolo").and_then(|file| file.canonicalize().ok());
    if found.is_some_and(|file| Some(file) == own.canonicalize().ok()) {
        "tombolo".into()
    } else {
        own.display().to_string()
    }
}

/// The flag that a hint needs, when the fleet is not where every command looks first.
pub fn data_dir_flag(dir: &Path) -> String {
    if dir == Path::new(DATA_DIR) { String::new() } else { format!(" --data-dir {}", dir.display()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_to_type_a_command_that_is_not_there() {
        let edge = Member { name: "edge-2".into(), ..Member::default() };
        let lines = |kubectl| to_try("./tombolo", " --data-dir /x", &edge, kubectl).map(|(line, _)| line);
        assert!(lines(true).iter().any(|line| line.starts_with("kubectl ")));
        assert!(lines(false).iter().all(|line| line.starts_with("./tombolo ")), "{:?}", lines(false));
        assert!(lines(false).contains(&"./tombolo lab fetch edge-2 --data-dir /x".to_owned()));
    }
}
