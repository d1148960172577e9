//! What `up` prints at the end: the fleet, where to look, what to try.

use std::path::Path;

use anyhow::Result;
use kube::api::{Api, ListParams};
use tombolo_api::Site;

use super::fleet::{Fleet, Role};
use super::{DATA_DIR, NODE_PORT, connect};
use crate::commands::sites;
use crate::output::emphasis;

pub async fn show(fleet: &Fleet) -> Result<()> {
    let hub = fleet.member("hub")?;
    let client = connect(fleet, hub).await?.client;
    let list = Api::<Site>::all(client).list(&ListParams::default()).await?.items;
    print!("{}", sites::table(&list).render(false));
    println!("\nThe sample application, at each site:\n");
    for member in fleet.sites() {
        println!("  {:<10} http://{}:{NODE_PORT}/", member.name, member.address());
    }
    for member in fleet.with_role(Role::Agent) {
        println!(
            "  {:<10} an existing cluster; the sample's image is not there, so it is left out",
            member.name
        );
    }
    println!("\nThe hub is an ordinary Kubernetes API:\n");
    println!("  {}\n", emphasis(&format!("export KUBECONFIG={}", fleet.kubeconfig(hub).display())));
    println!("Five things to try:\n");
    let program = program();
    let dir = data_dir_flag(fleet.dir());
    for (line, why) in [
        ("kubectl get pods -o wide".to_owned(), "the pods of all sites; the NODE is the site"),
        ("kubectl scale deploy/hello --replicas=9".to_owned(), "and watch them spread"),
        (format!("{program} explain place deploy/hello"), "why each replica is where it is"),
        (format!("{program} tour{dir}"), "cut a link, kill a site, overflow an edge, step by step"),
        (format!("{program} down{dir}"), "remove all of it"),
    ] {
        println!("  {}\n      {why}", emphasis(&line));
    }
    Ok(())
}

/// How the user calls this program: by its name if that finds it.
pub fn program() -> String {
    let own = std::env::current_exe().unwrap_or_else(|_| Path::new("tombolo").to_owned());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let first = std::env::split_paths(&path).map(|dir| dir.join("tombolo")).find(|file| file.exists());
    let found = first.and_then(|file| file.canonicalize().ok());
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
