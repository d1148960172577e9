//! Pod security: what each level refuses or warns of, word for word.

use anyhow::{Context, Result};
use futures::{StreamExt, stream};
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};

use crate::answers::{JSON, Servers, send};
use crate::patches::MERGE;
use crate::pods::{bare, hardened, pods, put};

/// Modes of namespaces, with a level and the release whose meaning of it is asked for.
const NAMESPACES: [(&str, &str, &str); 13] = [
    ("enforce", "baseline", ""),
    ("enforce", "restricted", ""),
    ("warn", "restricted", ""),
    ("enforce", "baseline", "v1.18"),
    ("enforce", "baseline", "v1.28"),
    ("enforce", "baseline", "v1.30"),
    ("enforce", "baseline", "v1.33"),
    ("enforce", "restricted", "v1.7"),
    ("enforce", "restricted", "v1.18"),
    ("enforce", "restricted", "v1.22"),
    ("enforce", "restricted", "v1.24"),
    ("enforce", "restricted", "v1.34"),
    ("warn", "baseline", "v1.99"),
];

fn name_of((mode, level, version): &(&str, &str, &str)) -> String {
    format!("{mode}-{level}{}", version.replace("v1.", "-"))
}

/// Requests at once to each server.
const IN_FLIGHT: usize = 16;

struct Question {
    what: String,
    method: Method,
    path: String,
    content: &'static str,
    body: Value,
}

impl Question {
    fn create(what: &str, path: String, body: &Value) -> Self {
        Self::new(format!("{what} in {path}"), Method::POST, &path, JSON, body)
    }

    fn patch(what: &str, path: &str, body: &Value) -> Self {
        Self::new(format!("{what} of {path}"), Method::PATCH, path, MERGE, body)
    }

    /// A try: nothing is kept.
    fn new(what: String, method: Method, path: &str, content: &'static str, body: &Value) -> Self {
        Self { what, method, path: format!("{path}?dryRun=All"), content, body: body.clone() }
    }
}

/// Status code, reason and message, or spec and annotations, and the warnings about pod security.
type Answer = (u16, Value, Value, Vec<String>);

async fn ask(server: &kube::Client, question: &Question) -> Result<Answer> {
    let request = Request::builder().method(&question.method).uri(&question.path);
    let request = request.header("content-type", question.content);
    let response = server.send(request.body(Body::from(serde_json::to_vec(&question.body)?))?).await?;
    let code = response.status().as_u16();
    let warnings = response.headers().get_all("warning").iter();
    // Upstream warns of much else in a pod.
    let is_namespace = question.path.matches('/').count() == 4;
    let warnings = warnings
        .filter_map(|warning| warning.to_str().ok())
        .filter(|warning| is_namespace || warning.contains("PodSecurity"))
        .map(str::to_owned)
        .collect();
    let mut answer: Value = serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?;
    if code == 422 {
        // What is said of wrong fields is not about security.
        answer["message"].take();
    }
    let (what, more) = if code < 400 {
        // Jobs repeat their uid in labels.
        let spec = if answer["kind"] == "Pod" { answer["spec"].take() } else { Value::Null };
        (spec, answer["metadata"]["annotations"].take())
    } else {
        (answer["reason"].take(), answer["message"].take())
    };
    Ok((code, what, more, warnings))
}

/// Makes the namespaces, with pods in each that most would not accept today.
async fn prepare(servers: &Servers) -> Result<()> {
    for server in servers {
        for namespace in &NAMESPACES {
            let (mode, level, version) = namespace;
            let name = name_of(namespace);
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            let account =
                json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
            let mut pod = hardened();
            pod["metadata"]["name"] = json!("old");
            put(&mut pod, "spec/hostNetwork", &json!(true));
            let mut good = hardened();
            good["metadata"]["name"] = json!("good");
            let (mut older, mut bare) = (pod.clone(), bare());
            older["metadata"]["name"] = json!("older");
            bare["metadata"]["name"] = json!("bare");
            let mut deployments = [deployment(&pod), deployment(&hardened())];
            deployments[0]["metadata"]["name"] = json!("old");
            deployments[1]["metadata"]["name"] = json!("good");
            let [old_deployment, good_deployment] = deployments;
            for (path, object) in [
                ("/api/v1/namespaces".to_owned(), namespace),
                (format!("/api/v1/namespaces/{name}/serviceaccounts"), account),
                (format!("/api/v1/namespaces/{name}/pods"), pod),
                (format!("/api/v1/namespaces/{name}/pods"), good),
                (format!("/api/v1/namespaces/{name}/pods"), older),
                (format!("/api/v1/namespaces/{name}/pods"), bare),
                (format!("/apis/apps/v1/namespaces/{name}/deployments"), old_deployment),
                (format!("/apis/apps/v1/namespaces/{name}/deployments"), good_deployment),
            ] {
                let (code, answer) = send(server, Method::POST, &path, &object).await?;
                anyhow::ensure!(code == 201, "{path}: {answer}");
            }
            let path = format!("/api/v1/namespaces/{name}");
            let (_, mut namespace) = send(server, Method::GET, &path, &Value::Null).await?;
            let label = format!("pod-security.kubernetes.io/{mode}");
            if !version.is_empty() {
                namespace["metadata"]["labels"][format!("{label}-version")] = json!(version);
            }
            namespace["metadata"]["labels"][label] = json!(level);
            let (code, answer) = send(server, Method::PUT, &path, &namespace).await?;
            anyhow::ensure!(code == 200, "{path}: {answer}");
        }
    }
    Ok(())
}

fn template(pod: &Value) -> Value {
    json!({"metadata": {"labels": {"a": "b"}, "annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]})
}

fn deployment(pod: &Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template(pod)}})
}

/// What is asked in one namespace.
fn questions(namespace: &str, pods: &[(String, Value)]) -> Vec<Question> {
    let place = format!("/api/v1/namespaces/{namespace}/pods");
    let apps = format!("/apis/apps/v1/namespaces/{namespace}");
    let batch = format!("/apis/batch/v1/namespaces/{namespace}");
    let mut all: Vec<Question> =
        pods.iter().map(|(what, pod)| Question::create(what, place.clone(), pod)).collect();
    let templates = ["hardened", "bare", "all violations", "spec/hostNetwork true"];
    let is_template = |what: &str| templates.contains(&what) || what.contains("apparmor");
    for (what, pod) in pods.iter().filter(|(what, _)| is_template(what)) {
        all.push(Question::create(what, format!("{apps}/deployments"), &deployment(pod)));
        let mut set = deployment(pod);
        set["kind"] = json!("DaemonSet");
        all.push(Question::create(what, format!("{apps}/daemonsets"), &set));
        let mut template = template(pod);
        template["spec"]["restartPolicy"] = json!("Never");
        let job = json!({"template": template});
        let one = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": job});
        all.push(Question::create(what, format!("{batch}/jobs"), &one));
        let cron = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "j"},
            "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": job}}});
        all.push(Question::create(what, format!("{batch}/cronjobs"), &cron));
    }
    let images = |image: &str| {
        let mut pod = hardened();
        pod["spec"]["containers"][0]["image"] = json!(image);
        json!({"spec": {"containers": pod["spec"]["containers"]}})
    };
    let debugger = |context: Value| json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "pause", "securityContext": context}]}});
    let strict = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let mut probe = debugger(strict.clone());
    probe["spec"]["ephemeralContainers"][0]["livenessProbe"] = json!({"httpGet": {"port": 80, "host": "a"}});
    let app_armor = "container.apparmor.security.beta.kubernetes.io/c";
    for pod in ["old", "good"].map(|name| format!("{place}/{name}")) {
        all.extend([
            Question::patch("a label", &pod, &json!({"metadata": {"labels": {"a": "b"}}})),
            Question::patch("an annotation", &pod, &json!({"metadata": {"annotations": {"a": "b"}}})),
            Question::patch(
                "a seccomp annotation",
                &pod,
                &json!({"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}}}),
            ),
            Question::patch(
                "an AppArmor annotation",
                &pod,
                &json!({"metadata": {"annotations": {app_armor: "unconfined"}}}),
            ),
            Question::patch("an image", &pod, &images("other")),
            Question::patch("the same images", &pod, &images("pause")),
            Question::patch("a deadline", &pod, &json!({"spec": {"activeDeadlineSeconds": 7}})),
            Question::patch("a toleration", &pod, &json!({"spec": {"tolerations": [{"operator": "Exists"}]}})),
            Question::patch("a debugger", &format!("{pod}/ephemeralcontainers"), &debugger(strict.clone())),
            Question::patch("a loose debugger", &format!("{pod}/ephemeralcontainers"), &debugger(json!(null))),
            Question::patch(
                "a privileged debugger",
                &format!("{pod}/ephemeralcontainers"),
                &debugger(json!({"privileged": true})),
            ),
            Question::patch("a probed debugger", &format!("{pod}/ephemeralcontainers"), &probe),
            Question::patch("a status", &format!("{pod}/status"), &json!({"status": {"phase": "Running"}})),
        ]);
    }
    for deployment in ["old", "good"].map(|name| format!("{apps}/deployments/{name}")) {
        let host = json!({"spec": {"template": {"spec": {"hostNetwork": true, "hostPID": true}}}});
        all.extend([
            Question::patch("host namespaces", &deployment, &host),
            Question::patch("a label", &deployment, &json!({"metadata": {"labels": {"a": "b"}}})),
            Question::patch("replicas", &deployment, &json!({"spec": {"replicas": 2}})),
            Question::patch("replicas", &format!("{deployment}/scale"), &json!({"spec": {"replicas": 2}})),
            Question::patch("a status", &format!("{deployment}/status"), &json!({"status": {"replicas": 2}})),
        ]);
    }
    all
}

/// A namespace in which a pod of old does not fit every level gets other levels.
fn raises(namespace: &str) -> Vec<Question> {
    let mut all = Vec::new();
    for level in ["privileged", "baseline", "restricted", "odd", ""] {
        for version in
            [json!(null), json!("latest"), json!("v1.20"), json!("v1.34"), json!("1.20"), json!("v1.99")]
        {
            for mode in ["enforce", "warn", "audit"] {
                let label = format!("pod-security.kubernetes.io/{mode}");
                let labels = json!({format!("{label}-version"): version, label: level});
                let what = format!("{mode} {level} {version}");
                let body = json!({"metadata": {"labels": labels}});
                all.push(Question::patch(&what, &format!("/api/v1/namespaces/{namespace}"), &body));
            }
        }
    }
    all
}

/// How many answers differ.
pub async fn compare(servers: &Servers) -> Result<usize> {
    prepare(servers).await?;
    let pods = pods();
    let mut all = Vec::new();
    let single: Vec<_> = pods.iter().filter(|(what, _)| !what.contains(" and ")).cloned().collect();
    for namespace in &NAMESPACES {
        // What a release changed shows in one setting at a time.
        let pods = if namespace.2.is_empty() { &pods } else { &single };
        all.extend(questions(&name_of(namespace), pods));
        all.extend(raises(&name_of(namespace)));
    }
    assert!(all.len() > 2_000, "only {} cases", all.len());
    let both =
        |question| async move { futures::try_join!(ask(&servers[0], question), ask(&servers[1], question)) };
    let mut answers = stream::iter(all.iter().map(both)).buffered(IN_FLIGHT);
    let (mut differ, mut refused, mut warned) = (0, 0, 0);
    for question in &all {
        let (upstream, tombolo) = answers.next().await.context("every question is answered")??;
        refused += usize::from(upstream.0 == 403);
        warned += usize::from(!upstream.3.is_empty());
        if upstream != tombolo {
            differ += 1;
            println!("DIFFERS {}\n  upstream {upstream:?}\n  tombolo  {tombolo:?}", question.what);
        }
    }
    println!(
        "pod security: {} of {} answers agree; {refused} refused, {warned} warned",
        all.len() - differ,
        all.len()
    );
    Ok(differ)
}
