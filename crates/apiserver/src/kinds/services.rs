//! Services: cluster addresses and node ports.
//!
//! An address or port is taken by writing a claim that must not exist yet: an `IPAddress` object for addresses, a
//! record of the `system` tenant for ports. Two replicas over one store can therefore never hand out the same one. A
//! claim whose Service does not exist (a crash between the two writes) is taken over when it is next
//! tried.
//!
//! Several writes of one Service may rely on one claim, and the one that fails must not take it from the one that is stored. So
//! who relies on a claim that is there writes it again, and a claim is given back only as it was when it was made.

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;

use bytes::Bytes;
use serde_json::{Value, json};
use tombolo_k8s::field::{ErrorKind, FieldError};
use tombolo_store::{Durability, Expect, Record, StoreError};

use crate::http::status::{Failure, Result};
use crate::registry::write;
use crate::server::{App, Call};

const PORTS: &str = "/system/nodeports/";
/// How many random picks are tried before the whole range is walked.
const PICKS: usize = 32;

pub fn claim_labels() -> Value {
    json!({"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"})
}

/// What a Service holds, by its spec.
#[derive(Default, PartialEq, Eq)]
struct Holdings {
    addresses: BTreeSet<String>,
    ports: BTreeSet<u16>,
}

impl Holdings {
    fn of(service: &Value) -> Self {
        let texts = |pointer: &str| -> BTreeSet<String> {
            let list = service.pointer(pointer).and_then(Value::as_array);
            let texts = list.into_iter().flatten().filter_map(Value::as_str);
            texts.filter(|t| !t.is_empty() && *t != "None").map(str::to_owned).collect()
        };
        let ports = service.pointer("/spec/ports").and_then(Value::as_array);
        let mut ports: BTreeSet<u16> =
            ports.into_iter().flatten().filter_map(|p| p["nodePort"].as_u64()).map(|p| p as u16).collect();
        ports.extend(service.pointer("/spec/healthCheckNodePort").and_then(Value::as_u64).map(|p| p as u16));
        ports.remove(&0);
        Self { addresses: texts("/spec/clusterIPs"), ports }
    }
}

fn kind(service: &Value) -> &str {
    match write::text(service, "/spec/type") {
        "" => "ClusterIP",
        kind => kind,
    }
}

fn owner(service: &Value) -> String {
    format!("{}/{}", write::text(service, "/metadata/namespace"), write::name_of(service))
}

/// Fills in addresses and ports, claims them, and remembers the claims on the call so that a lost write gives them back.
pub async fn allocate(
    call: &mut Call,
    service: &mut Value,
    old: Option<&Value>,
    dry_run: bool,
) -> Result<()> {
    let app = call.app.clone();
    if !service["spec"].is_object() {
        service["spec"] = json!({});
    }
    let held = old.map(Holdings::of).unwrap_or_default();
    let mut claimed = Claims { creates: old.is_none(), made: Vec::new() };
    let result = fill(&app, service, &held, &mut claimed, dry_run).await;
    match result {
        Ok(()) => {
            call.claims.extend(claimed.made);
            Ok(())
        }
        Err(failure) => {
            release(&app, claimed.made).await;
            Err(failure)
        }
    }
}

/// A client that updates without repeating what it was given keeps it; what the new type cannot have goes with the
/// old one, unless the client insists on it.
pub fn prepare_update(service: &mut Value, old: &Value) {
    if !service["spec"].is_object() {
        service["spec"] = json!({});
    }
    let (addressed, was_addressed) = (kind(service) != "ExternalName", kind(old) != "ExternalName");
    let (ported, was_ported) = (has_node_ports(service), has_node_ports(old));
    let unset =
        |value: Option<&Value>| value.is_none_or(|v| v.is_null() || v == "" || *v == json!([]) || v == 0);
    if addressed && was_addressed {
        let mut kept = vec!["clusterIP", "clusterIPs"];
        if ["ipFamilies", "ipFamilyPolicy"].iter().all(|key| unset(service["spec"].get(*key))) {
            kept.extend(["ipFamilies", "ipFamilyPolicy"]);
        }
        for key in kept {
            if unset(service["spec"].get(key))
                && let Some(value) = old["spec"].get(key)
            {
                service["spec"][key] = value.clone();
            }
        }
    }
    if ported && was_ported {
        keep_node_ports(service, old);
    }
    if has_health_port(service) && has_health_port(old) && unset(service["spec"].get("healthCheckNodePort")) {
        service["spec"]["healthCheckNodePort"] = old["spec"]["healthCheckNodePort"].clone();
    }
    let mut dropped: Vec<&str> = Vec::new();
    if was_addressed && !addressed {
        dropped.extend(["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"]);
    }
    if has_health_port(old) && !has_health_port(service) {
        dropped.push("healthCheckNodePort");
    }
    if kind(old) == "LoadBalancer" && kind(service) != "LoadBalancer" {
        dropped.extend(["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
    }
    if is_external(old) && !is_external(service) {
        dropped.push("externalTrafficPolicy");
    }
    if let Some(spec) = service["spec"].as_object_mut() {
        for key in dropped {
            if spec.get(key) == old["spec"].get(key) {
                spec.remove(key);
            }
        }
    }
    if was_ported && !ported && Holdings::of(service).ports == Holdings::of(old).ports {
        for port in service["spec"]["ports"].as_array_mut().into_iter().flatten() {
            port.as_object_mut().map(|p| p.remove("nodePort"));
        }
    }
}

fn has_node_ports(service: &Value) -> bool {
    match kind(service) {
        "NodePort" => true,
        "LoadBalancer" => service["spec"]["allocateLoadBalancerNodePorts"].as_bool().unwrap_or(true),
        _ => false,
    }
}

fn has_health_port(service: &Value) -> bool {
    kind(service) == "LoadBalancer" && service["spec"]["externalTrafficPolicy"] == "Local"
}

fn is_external(service: &Value) -> bool {
    matches!(kind(service), "NodePort" | "LoadBalancer")
        || (kind(service) == "ClusterIP"
            && service["spec"]["externalIPs"].as_array().is_some_and(|ips| !ips.is_empty()))
}

fn keep_node_ports(service: &mut Value, old: &Value) {
    let target = |port: &Value| (port["port"].as_u64(), port["protocol"].as_str().map(str::to_owned));
    let had = old.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten();
    let had: HashMap<_, _> =
        had.filter_map(|p| Some((target(p), p["nodePort"].as_u64().filter(|n| *n > 0)?))).collect();
    for port in service["spec"]["ports"].as_array_mut().into_iter().flatten() {
        if port["nodePort"].as_u64().unwrap_or(0) == 0
            && let Some(number) = had.get(&target(port))
        {
            port["nodePort"] = (*number).into();
        }
    }
}

/// Services have one family here. Only who fills in the endpoints of a headless service without selector may use
/// both.
fn choose_families(spec: &mut Value) {
    let selects = spec["selector"].as_object().is_some_and(|s| !s.is_empty());
    if spec["clusterIP"] != "None" || selects {
        spec["ipFamilies"] = json!(["IPv4"]);
        if spec["ipFamilyPolicy"].as_str().is_none_or(|p| p == "PreferDualStack") {
            spec["ipFamilyPolicy"] = "SingleStack".into();
        }
        return;
    }
    if !spec["ipFamilyPolicy"].is_string() {
        spec["ipFamilyPolicy"] = "RequireDualStack".into();
    }
    let single = spec["ipFamilyPolicy"] == "SingleStack";
    let families = match spec["ipFamilies"].as_array().map(Vec::as_slice) {
        None | Some([]) if single => json!(["IPv4"]),
        None | Some([]) => json!(["IPv4", "IPv6"]),
        Some([only]) if !single => json!([only, if only == "IPv4" { "IPv6" } else { "IPv4" }]),
        Some(given) => json!(given),
    };
    spec["ipFamilies"] = families;
}

async fn fill(
    app: &App,
    service: &mut Value,
    held: &Holdings,
    claimed: &mut Claims,
    dry_run: bool,
) -> Result<()> {
    let kind = kind(service).to_owned();
    let owner = owner(service);
    if kind == "ExternalName" {
        if let Some(spec) = service["spec"].as_object_mut() {
            for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                spec.remove(key);
            }
        }
        return Ok(());
    }
    let asked = match write::text(service, "/spec/clusterIP") {
        "" => write::text(service, "/spec/clusterIPs/0").to_owned(),
        text => text.to_owned(),
    };
    let address = match asked.as_str() {
        "None" => "None".to_owned(),
        "" => claim_any_address(app, &owner, claimed, dry_run).await?,
        text if held.addresses.contains(text) => text.to_owned(),
        text => {
            claim_address(app, service, text, &owner, claimed, dry_run).await?;
            text.to_owned()
        }
    };
    let spec = &mut service["spec"];
    spec["clusterIP"] = address.as_str().into();
    spec["clusterIPs"] = json!([address]);
    choose_families(spec);
    let wants_ports = kind == "NodePort"
        || (kind == "LoadBalancer" && spec["allocateLoadBalancerNodePorts"].as_bool().unwrap_or(true));
    let count = spec["ports"].as_array().map_or(0, Vec::len);
    // A claim of its own would let it have the same number twice.
    let mut mine = &held.ports | &Holdings::of(service).ports;
    let mut claimed_here: BTreeSet<u16> = BTreeSet::new();
    for index in 0..count {
        let given = service["spec"]["ports"][index]["nodePort"].as_u64().unwrap_or(0) as u16;
        let number = match given {
            0 if !wants_ports => continue,
            0 => claim_any_port(app, &owner, &mine, claimed, dry_run).await?,
            given if held.ports.contains(&given) || claimed_here.contains(&given) => given,
            given => {
                claim_port(app, service, index, given, &owner, claimed, dry_run).await?;
                given
            }
        };
        mine.insert(number);
        claimed_here.insert(number);
        service["spec"]["ports"][index]["nodePort"] = number.into();
    }
    if kind == "LoadBalancer" && service["spec"]["externalTrafficPolicy"] == "Local" {
        let given = service["spec"]["healthCheckNodePort"].as_u64().unwrap_or(0) as u16;
        let number = match given {
            0 => claim_any_port(app, &owner, &mine, claimed, dry_run).await?,
            given if held.ports.contains(&given) => given,
            given => {
                claim_port(app, service, 0, given, &owner, claimed, dry_run).await?;
                given
            }
        };
        service["spec"]["healthCheckNodePort"] = number.into();
    }
    Ok(())
}

/// A claim younger than this may belong to a request that is under way.
const CLAIM_SECONDS: i64 = 60;

/// How often a claim is looked at again that changed meanwhile.
const CLAIM_TRIES: usize = 16;

/// A claim that a write made where there was none: its key, and the revision at which it was made.
pub type Claim = (String, u64);

/// For a write that is not yet done.
struct Claims {
    /// The write brings the Service into being.
    creates: bool,
    made: Vec<Claim>,
}

async fn claim_any_address(app: &App, owner: &str, claimed: &mut Claims, dry_run: bool) -> Result<String> {
    let cidr = app.config.service_cidr;
    // The first address is the API server's own, the last is left alone.
    let (first, last) = (2, cidr.size() - 2);
    let count = last - first + 1;
    let start = (app.random() % u64::from(count)) as u32;
    let picks = (0..PICKS).map(|_| (app.random() % u64::from(count)) as u32);
    for offset in picks.chain((0..count).map(|i| (start + i) % count)) {
        let address = cidr.nth(first + offset).to_string();
        if claim(
            app,
            &address_key(app, &address),
            || address_claim(app, &address, owner),
            owner,
            claimed,
            dry_run,
        )
        .await?
        {
            return Ok(address);
        }
    }
    Err(Failure::internal(format!("failed to allocate a serviceIP: range {cidr} is full")))
}

async fn claim_address(
    app: &App,
    service: &Value,
    address: &str,
    owner: &str,
    claimed: &mut Claims,
    dry_run: bool,
) -> Result<()> {
    let cidr = app.config.service_cidr;
    let refuse = |detail: String| {
        let error = FieldError {
            kind: ErrorKind::Invalid,
            path: "spec.clusterIPs".into(),
            value: json!([address]).to_string(),
            detail,
        };
        Failure::invalid("", "Service", write::name_of(service), &[error])
    };
    let inside = address.parse::<Ipv4Addr>().ok().and_then(|a| cidr.index(a));
    match inside {
        None => {
            return Err(refuse(format!(
                "failed to allocate IP {address}: the provided network does not match the current range"
            )));
        }
        Some(index) if index == 0 || index == cidr.size() - 1 => {
            return Err(refuse(format!(
                "failed to allocate IP {address}: the provided IP is not in the valid range"
            )));
        }
        Some(_) => {}
    }
    if claim(app, &address_key(app, address), || address_claim(app, address, owner), owner, claimed, dry_run)
        .await?
    {
        return Ok(());
    }
    Err(refuse(format!("failed to allocate IP {address}: provided IP is already allocated")))
}

async fn claim_any_port(
    app: &App,
    owner: &str,
    except: &BTreeSet<u16>,
    claimed: &mut Claims,
    dry_run: bool,
) -> Result<u16> {
    let (first, last) = (*app.config.node_ports.start(), *app.config.node_ports.end());
    let count = u64::from(last - first) + 1;
    let start = app.random() % count;
    let picks = (0..PICKS).map(|_| app.random() % count);
    for offset in picks.chain((0..count).map(|i| (start + i) % count)) {
        let port = first + offset as u16;
        if !except.contains(&port)
            && claim(app, &format!("{PORTS}{port}"), || port_claim(owner), owner, claimed, dry_run).await?
        {
            return Ok(port);
        }
    }
    Err(Failure::internal("failed to allocate a nodePort: range is full"))
}

async fn claim_port(
    app: &App,
    service: &Value,
    index: usize,
    port: u16,
    owner: &str,
    claimed: &mut Claims,
    dry_run: bool,
) -> Result<()> {
    let refuse = |detail: String| {
        let path = format!("spec.ports[{index}].nodePort");
        let error = FieldError::invalid(path, &port.into(), detail);
        Failure::invalid("", "Service", write::name_of(service), &[error])
    };
    let range = &app.config.node_ports;
    if !range.contains(&port) {
        return Err(refuse(format!(
            "provided port is not in the valid range. The range of valid ports is {}-{}",
            range.start(),
            range.end()
        )));
    }
    if claim(app, &format!("{PORTS}{port}"), || port_claim(owner), owner, claimed, dry_run).await? {
        return Ok(());
    }
    Err(refuse("provided port is already allocated".into()))
}

fn address_key(app: &App, address: &str) -> String {
    let row = app.registry.built_in.find("networking.k8s.io", "v1", "ipaddresses");
    row.expect("the tables hold IPAddress").key("", address)
}

fn address_claim(app: &App, address: &str, owner: &str) -> Bytes {
    let (namespace, name) = owner.split_once('/').unwrap_or(("", owner));
    let object = json!({
        "metadata": {
            "name": address, "labels": claim_labels(), "uid": uuid::Uuid::new_v4().to_string(), "generation": 1,
            "creationTimestamp": write::now(),
        },
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": namespace, "name": name}},
    });
    let row = app.registry.built_in.find("networking.k8s.io", "v1", "ipaddresses");
    row.expect("the tables hold IPAddress").encode(&object)
}

/// Who claims a port, and since when.
fn port_claim(owner: &str) -> Bytes {
    Bytes::from(format!("{owner}\n{}", jiff::Timestamp::now().as_second()))
}

/// Whether the claim is now ours. One that belongs to a Service that does not hold it is taken over.
async fn claim(
    app: &App,
    key: &str,
    value: impl FnOnce() -> Bytes,
    owner: &str,
    claimed: &mut Claims,
    dry_run: bool,
) -> Result<bool> {
    if dry_run {
        return Ok(app.get(key).await?.is_none());
    }
    let value = value();
    let mut seen: Option<Record> = None;
    for _ in 0..CLAIM_TRIES {
        let mut ours_already = false;
        if let Some(current) = &seen {
            let holder = holder(app, key, &current.value);
            ours_already = holder == owner;
            if ours_already {
                // Another write of the same Service is ahead, or one that broke off: whichever Service gets stored has it.
                // Not where one is stored: it may be on its way out, and takes its claim along.
                if claimed.creates && stored(app, owner).await?.is_some() {
                    let (_, name) = owner.split_once('/').unwrap_or(("", owner));
                    return Err(Failure::already_exists("", "services", name));
                }
            } else if holds(app, key, &holder).await? || !is_old(app, key, &current.value) {
                // What does not hold it was left behind by a crash. A Service that is being written right now would lose
                // its claim here, so only its own next write or a claim older than any request may take it.
                return Ok(false);
            }
        }
        let expect = seen.map_or(Expect::Absent, |current| Expect::Revision(current.revision));
        match app.store.put(key, value.clone(), expect, Durability::Durable).await {
            Ok(revision) => {
                // What another write of this Service may rely on is not ours to give back.
                if !ours_already {
                    claimed.made.push((key.to_owned(), revision));
                }
                return Ok(true);
            }
            Err(StoreError::Conflict { current, .. }) => seen = current,
            Err(error) => return Err(app.store_failure(error)),
        }
    }
    Ok(false)
}

fn holder(app: &App, key: &str, value: &[u8]) -> String {
    if key.starts_with(PORTS) {
        let text = String::from_utf8_lossy(value);
        return text.split('\n').next().unwrap_or_default().to_owned();
    }
    let row = app.registry.built_in.find("networking.k8s.io", "v1", "ipaddresses");
    let object = row.expect("the tables hold IPAddress").decode(value, 0).unwrap_or_default();
    let parent = &object["spec"]["parentRef"];
    format!(
        "{}/{}",
        parent["namespace"].as_str().unwrap_or_default(),
        parent["name"].as_str().unwrap_or_default()
    )
}

fn is_old(app: &App, key: &str, value: &[u8]) -> bool {
    let now = jiff::Timestamp::now().as_second();
    let made = if key.starts_with(PORTS) {
        let text = String::from_utf8_lossy(value);
        text.split_once('\n').and_then(|(_, made)| made.parse::<i64>().ok())
    } else {
        let row = app.registry.built_in.find("networking.k8s.io", "v1", "ipaddresses");
        let object = row.expect("the tables hold IPAddress").decode(value, 0).unwrap_or_default();
        write::text(&object, "/metadata/creationTimestamp")
            .parse::<jiff::Timestamp>()
            .ok()
            .map(|t| t.as_second())
    };
    made.is_some_and(|made| made + CLAIM_SECONDS < now)
}

/// The Service as it is now.
async fn stored(app: &App, owner: &str) -> Result<Option<Value>> {
    let Some((namespace, name)) = owner.split_once('/') else { return Ok(None) };
    app.object("", "v1", "services", namespace, name).await
}

async fn holds(app: &App, key: &str, holder: &str) -> Result<bool> {
    let Some(service) = stored(app, holder).await? else { return Ok(false) };
    let holdings = Holdings::of(&service);
    let last = key.rsplit('/').next().unwrap_or_default();
    Ok(holdings.addresses.contains(last) || last.parse().is_ok_and(|p| holdings.ports.contains(&p)))
}

/// Gives claims back that nobody has written since.
pub async fn release(app: &App, claims: Vec<Claim>) {
    for (key, revision) in claims {
        if let Err(error) = app.store.delete(&key, Expect::Revision(revision), Durability::Durable).await
            && !matches!(error, StoreError::Conflict { .. })
        {
            tracing::warn!(key, %error, "cannot give back a service address or port");
        }
    }
}

/// Gives back what a Service no longer holds since it was written or deleted at `revision`. Who wants it since then has written the
/// claim again.
pub async fn freed(app: &App, old: &Value, new: Option<&Value>, revision: u64) {
    let (before, after) = (Holdings::of(old), new.map(Holdings::of).unwrap_or_default());
    let mut keys: Vec<String> =
        before.addresses.difference(&after.addresses).map(|a| address_key(app, a)).collect();
    keys.extend(before.ports.difference(&after.ports).map(|p| format!("{PORTS}{p}")));
    let owner = owner(old);
    for key in keys {
        match lapsed(app, &key, &owner, revision).await {
            Ok(Some(claim)) => release(app, vec![(key, claim)]).await,
            Ok(None) => {}
            Err(error) => tracing::warn!(key, %error, "cannot give back a service address or port"),
        }
    }
}

/// The revision of a claim of this Service from before it let go.
async fn lapsed(app: &App, key: &str, owner: &str, let_go: u64) -> Result<Option<u64>> {
    let Some(claim) = app.get(key).await? else { return Ok(None) };
    let its = claim.revision < let_go && holder(app, key, &claim.value) == owner;
    Ok((its && !holds(app, key, owner).await?).then_some(claim.revision))
}
