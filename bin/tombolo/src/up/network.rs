//! The sample fleet's network: one bridge on this machine, and a network namespace per member behind it.
//!
//! Everything is made through netlink, because a fresh machine may have no `ip` tool. Names carry a prefix that nobody
//! else uses, and a note outside the fleet's folder says whose they are: the names allow one fleet per machine.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use futures::TryStreamExt;
use rtnetlink::{Handle, LinkBridge, LinkUnspec, LinkVeth, RouteMessageBuilder};
use tombolo_wan::Namespace;

use super::wan;

const BRIDGE: &str = "tombolo-up0";
const PREFIX: &str = "tombolo-up-";
/// The folder of the machine's one fleet, gone after a reboot like the namespaces.
const NOTE: &str = "/run/tombolo-up";
/// From the range for benchmarks between networks (RFC 2544), which neither homes nor offices use.
const NETWORK: [u8; 3] = [198, 19, 77];
const PREFIX_LENGTH: u8 = 24;
/// The numbers that members have: the hub, the cloud site, up to fifty edges.
pub const FIRST: u8 = 10;
const LAST: u8 = FIRST + 51;

/// The address of the n-th member; the bridge itself is number 1.
pub fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(NETWORK[0], NETWORK[1], NETWORK[2], number)
}

/// The namespace of a member.
pub fn namespace(member: &str) -> String {
    format!("{PREFIX}{member}")
}

/// Whether a fleet's namespaces are there.
pub fn in_use() -> bool {
    !Namespace::list(PREFIX).is_empty()
}

/// Notes whose the names are, before any of them is taken.
pub fn claim(dir: &Path) -> Result<()> {
    fs::write(NOTE, dir.as_os_str().as_encoded_bytes()).with_context(|| format!("cannot write {NOTE}"))
}

/// Whether the names are those of the fleet in `dir`, or nobody's.
pub fn is_of(dir: &Path) -> bool {
    owner().is_none_or(|owner| owner == dir)
}

/// The folder of the fleet that has the names.
pub fn owner() -> Option<PathBuf> {
    fs::read_to_string(NOTE).ok().map(PathBuf::from)
}

/// Makes the bridge, if it is not there.
pub async fn create_bridge() -> Result<()> {
    let handle = connect()?;
    if index(&handle, BRIDGE).await.is_ok() {
        return Ok(());
    }
    handle
        .link()
        .add(LinkBridge::new(BRIDGE).build())
        .execute()
        .await
        .context("cannot create a network bridge")?;
    let bridge = index(&handle, BRIDGE).await?;
    handle.address().add(bridge, IpAddr::V4(address(1)), PREFIX_LENGTH).execute().await?;
    handle.link().change(LinkUnspec::new_with_index(bridge).up().build()).execute().await?;
    Ok(())
}

/// Makes a member's namespace with nothing in it but loopback, for a network that somebody else plugs it into.
pub fn create_empty(member: &str) -> Result<()> {
    Namespace::create(&namespace(member))?.keep();
    Ok(())
}

/// Pulls a member's cable, or puts it back.
pub async fn set_cable(number: u8, up: bool) -> Result<()> {
    let handle = connect()?;
    let cable = LinkUnspec::new_with_index(index(&handle, &cable(number)).await?);
    let cable = if up { cable.up() } else { cable.down() };
    handle.link().change(cable.build()).execute().await.context("cannot change the cable")?;
    Ok(())
}

fn cable(number: u8) -> String {
    format!("tombolo-up{number}")
}

/// Whether a member's namespace is there; none outlives a reboot.
pub fn exists(member: &str) -> bool {
    let name = namespace(member);
    Namespace::list(&name).contains(&name)
}

/// Makes a member's namespace, its cable to the bridge, and its address.
pub async fn create_host(member: &str, number: u8) -> Result<()> {
    let namespace = Namespace::create(&namespace(member))?;
    let outside = cable(number);
    let handle = connect()?;
    let bridge = index(&handle, BRIDGE).await?;
    let file = File::open(namespace.path())?;
    handle
        .link()
        .add(LinkVeth::new(&outside, "eth0-tmb").build())
        .execute()
        .await
        .context("cannot create a cable")?;
    let inside = index(&handle, "eth0-tmb").await?;
    let rename = LinkUnspec::new_with_index(inside).name("eth0").setns_by_fd(file.as_raw_fd()).build();
    handle.link().change(rename).execute().await?;
    let outside = index(&handle, &outside).await?;
    handle
        .link()
        .change(LinkUnspec::new_with_index(outside).controller(bridge).up().build())
        .execute()
        .await?;
    namespace.run(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(configure_inside(number))
    })??;
    namespace.keep();
    Ok(())
}

async fn configure_inside(number: u8) -> Result<()> {
    let handle = connect()?;
    let eth0 = index(&handle, "eth0").await?;
    handle.address().add(eth0, IpAddr::V4(address(number)), PREFIX_LENGTH).execute().await?;
    handle.link().change(LinkUnspec::new_with_index(eth0).up().build()).execute().await?;
    let default = RouteMessageBuilder::<Ipv4Addr>::new().gateway(address(1)).build();
    handle.route().add(default).execute().await?;
    Ok(())
}

/// Removes the namespaces and cables of these members, the bridge and the emulated network's device; what is gone already is fine.
pub async fn remove<'a>(members: impl Iterator<Item = (&'a str, u8)>) -> Result<()> {
    // The kernel may be slow to remove the device of a process that ended.
    let mut links = vec![BRIDGE.to_owned(), wan::DEVICE.to_owned()];
    for (name, number) in members {
        if !name.is_empty() {
            Namespace::remove(&namespace(name))?;
        }
        links.push(cable(number));
    }
    let handle = connect()?;
    for link in links {
        // A cable goes with its namespace, maybe while we look at it.
        if let Ok(index) = index(&handle, &link).await {
            let _ = handle.link().del(index).execute().await;
        }
    }
    match fs::remove_file(NOTE) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {NOTE}"))
        }
        _ => Ok(()),
    }
}

/// Removes what a fleet without a record left.
pub async fn remove_leftovers() -> Result<()> {
    let names = Namespace::list(PREFIX);
    let members = names.iter().filter_map(|name| name.strip_prefix(PREFIX));
    // Which cable was whose is not known any more; these are all there can be.
    let cables = (FIRST..=LAST).map(|number| ("", number));
    remove(members.map(|name| (name, FIRST)).chain(cables)).await
}

fn connect() -> Result<Handle> {
    let (connection, handle, _) = rtnetlink::new_connection().context("cannot open a netlink socket")?;
    tokio::spawn(connection);
    Ok(handle)
}

async fn index(handle: &Handle, name: &str) -> Result<u32> {
    let mut links = handle.link().get().match_name(name.to_owned()).execute();
    let link = links.try_next().await.with_context(|| format!("no network link {name:?}"))?;
    Ok(link.with_context(|| format!("no network link {name:?}"))?.header.index)
}
