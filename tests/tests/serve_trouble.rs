//! What clients of `tombolo serve` see when the disk is full, and when one of them stops reading.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tombolo_testkit::Tombolo;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn client(server: &Tombolo) -> Result<kube::Client> {
    let kubeconfig = Kubeconfig::read_from(&server.kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

async fn call(
    client: &kube::Client,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<(u16, Value)> {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let bytes = body.map(|body| body.to_string()).unwrap_or_default().into_bytes();
    let response = client.send(request.body(Body::from(bytes))?).await?;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await?.to_bytes();
    Ok((code, serde_json::from_slice(&bytes).with_context(|| format!("{path}: not JSON: {bytes:?}"))?))
}

fn map(name: &str, bytes: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"text": "x".repeat(bytes)}})
}

/// A file system of a few megabytes that goes away with the test. `None` where the test may not mount.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> Result<Option<Self>> {
        std::fs::create_dir_all(at)?;
        let output =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"]).arg(at).output()?;
        if output.status.success() {
            return Ok(Some(Self(at.to_owned())));
        }
        ensure!(std::env::var_os("CI").is_none(), "no disk can be mounted: {output:?}");
        eprintln!("SKIPPED, no full disk was tested: mounting needs root: {output:?}");
        Ok(None)
    }

    /// Takes all the room that is left, to the last byte.
    fn fill(&self, name: &str) -> Result<PathBuf> {
        use std::io::Write;
        let path = self.0.join(name);
        let mut file = std::fs::File::create(&path)?;
        for piece in [64 << 10, 4 << 10, 1] {
            while file.write_all(&vec![0; piece]).is_ok() {}
        }
        Ok(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

async fn names(client: &kube::Client) -> Result<Vec<String>> {
    let (code, list) = call(client, Method::GET, MAPS, None).await?;
    ensure!(code == 200, "reading ended too: {list}");
    let items = list["items"].as_array().context("no list")?;
    let names = items.iter().filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned));
    Ok(names.filter(|name| name.starts_with("map-")).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_disk_writes_are_refused_reads_go_on_and_nothing_acknowledged_is_lost() -> Result<()> {
    let dir = tempfile::tempdir()?;
    // Dropped after the server, which is declared later.
    let Some(disk) = SmallDisk::mount(&dir.path().join("serve"))? else { return Ok(()) };
    let ballast = disk.0.join("ballast");
    std::fs::write(&ballast, vec![0; 3 << 20])?;
    let server = Tombolo::serve(dir.path())?;
    let api = client(&server).await?;

    let (mut acknowledged, mut refusal) = (Vec::new(), None);
    for i in 0..100 {
        let name = format!("map-{i:03}");
        let (code, answer) = call(&api, Method::POST, MAPS, Some(map(&name, 300 << 10))).await?;
        match code {
            201 => acknowledged.push(name),
            _ => {
                refusal = Some((code, answer));
                break;
            }
        }
    }
    let (code, answer) = refusal.context("8 MB held 30 MB")?;
    assert!(acknowledged.len() > 3, "only {acknowledged:?} fit");
    assert_eq!(code, 507, "{answer}");
    assert_eq!((&answer["kind"], &answer["status"]), (&json!("Status"), &json!("Failure")));
    assert_eq!((&answer["code"], &answer["reason"]), (&json!(507), &json!("InternalError")));
    let message = answer["message"].as_str().unwrap_or_default();
    assert!(message.contains("no space left") && message.contains("free some space"), "{message}");
    assert_eq!(names(&api).await?, acknowledged);

    // Not a page is left: an update is refused as well, and changes nothing.
    let rest = disk.fill("rest")?;
    let first = format!("{MAPS}/{}", acknowledged[0]);
    let (code, answer) = call(&api, Method::PUT, &first, Some(map(&acknowledged[0], 20 << 10))).await?;
    assert_eq!(code, 507, "{answer}");
    let (_, kept) = call(&api, Method::GET, &first, None).await?;
    assert_eq!(kept["data"]["text"].as_str().map(str::len), Some(300 << 10));

    // Room again: the same server goes on.
    std::fs::remove_file(&ballast)?;
    let (code, answer) = call(&api, Method::POST, MAPS, Some(map("map-after", 300 << 10))).await?;
    assert_eq!(code, 201, "{answer}");
    acknowledged.push("map-after".to_owned());
    drop(server);

    let server = Tombolo::serve(dir.path())?;
    let api = client(&server).await?;
    assert_eq!(names(&api).await?, acknowledged);
    std::fs::remove_file(&rest)?;
    let (code, answer) = call(&api, Method::DELETE, &first, None).await?;
    assert_eq!(code, 200, "{answer}");
    Ok(())
}

/// The events of a watch, read until it ends.
async fn events(body: Body) -> Result<Vec<Value>> {
    let bytes = body.collect().await?.to_bytes();
    bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty()).map(|l| Ok(serde_json::from_slice(l)?)).collect()
}

fn resident_mb(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).context("no number")?.parse::<u64>()? / 1024)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stops_reading_its_watch_is_told_to_list_again_and_nobody_waits_for_it() -> Result<()> {
    /// Each about half a megabyte; the history holds 32.
    const WRITES: usize = 120;
    const BYTES: usize = 500 << 10;
    let dir = tempfile::tempdir()?;
    let server = Tombolo::start("serve", dir.path(), &["--listen", "127.0.0.1:0", "--store", "memory"])?;
    let (api, slow) = (client(&server).await?, client(&server).await?);
    let (code, made) = call(&api, Method::POST, MAPS, Some(map("busy", BYTES))).await?;
    assert_eq!(code, 201, "{made}");
    let start = made["metadata"]["resourceVersion"].as_str().context("no version")?.to_owned();

    let watch = format!("{MAPS}?watch=1&resourceVersion={start}");
    let unread = slow.send(Request::get(&watch).body(Body::empty())?).await?;
    assert_eq!(unread.status(), 200);

    let write = async |numbers: std::ops::Range<usize>| -> Result<()> {
        for number in numbers {
            let mut map = map("busy", BYTES);
            map["data"]["number"] = number.to_string().into();
            let path = format!("{MAPS}/busy");
            let written = call(&api, Method::PUT, &path, Some(map));
            let (code, answer) = tokio::time::timeout(Duration::from_secs(30), written)
                .await
                .context("a writer waits for a client that does not read")??;
            assert_eq!(code, 200, "{answer}");
        }
        Ok(())
    };
    write(0..WRITES).await?;
    let full = resident_mb(server.process.pid())?;
    write(WRITES..2 * WRITES).await?;
    let later = resident_mb(server.process.pid())?;
    // 60 MB more were written; what is kept for watchers does not grow with it.
    assert!(later < full + 30, "{full} MB after {WRITES} writes, {later} MB after twice as many");

    let told = tokio::time::timeout(Duration::from_secs(60), events(unread.into_body())).await??;
    let (last, before) = told.split_last().context("the watch ended without a word")?;
    assert_eq!(last["type"], "ERROR", "{}", last["type"]);
    assert_eq!((&last["object"]["code"], &last["object"]["reason"]), (&json!(410), &json!("Expired")));
    for (number, event) in before.iter().enumerate() {
        assert_eq!(event["type"], "MODIFIED");
        let told = &event["object"]["data"]["number"];
        assert_eq!(told, &json!(number.to_string()), "a change was left out without a word");
    }
    assert!(before.len() < 2 * WRITES, "the client was not slow");

    // What a client does next: list, and watch from there.
    let (_, list) = call(&slow, Method::GET, MAPS, None).await?;
    let version = list["metadata"]["resourceVersion"].as_str().context("no version")?.to_owned();
    let resumed = format!("{MAPS}?watch=1&timeoutSeconds=2&resourceVersion={version}");
    let resumed = slow.send(Request::get(&resumed).body(Body::empty())?).await?;
    write(0..1).await?;
    assert_eq!(events(resumed.into_body()).await?.len(), 1);
    Ok(())
}
