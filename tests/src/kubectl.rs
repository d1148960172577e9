//! What kubectl is asked to do, one list for every server and every release of kubectl.
//!
//! A step that upstream fails is a wrong step. The benchmark runs the same list before it measures memory.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use tombolo_testkit::{Fixture, Kubectl};

/// Runs every step with both releases of kubectl.
pub fn both_releases(kubeconfig: &Path) -> Result<()> {
    for (program, namespace) in [(Fixture::Kubectl, "with-new"), (Fixture::KubectlOld, "with-old")] {
        let suite = Suite { kubectl: Kubectl::with(program, kubeconfig), namespace };
        suite.kubectl.run(&["create", "namespace", namespace])?;
        for (name, step) in STEPS {
            step(&suite).map_err(|error| error.context(format!("{program:?}: {name}")))?;
        }
    }
    Ok(())
}

struct Suite {
    kubectl: Kubectl,
    namespace: &'static str,
}

impl Suite {
    fn run(&self, args: &[&str]) -> Result<String> {
        self.kubectl.run(&[&["-n", self.namespace], args].concat())
    }

    fn input(&self, args: &[&str], input: &str) -> Result<String> {
        self.kubectl.run_with_input(&[&["-n", self.namespace], args].concat(), input)
    }

    fn expect(&self, args: &[&str], wanted: &[&str]) -> Result<()> {
        let out = self.run(args)?;
        for part in wanted {
            ensure!(out.contains(part), "kubectl {}: no {part:?} in:\n{out}", args.join(" "));
        }
        Ok(())
    }

    fn refuse(&self, args: &[&str], input: &str, wanted: &str) -> Result<()> {
        match self.input(args, input) {
            Ok(out) => anyhow::bail!("kubectl {} should fail, but printed {out}", args.join(" ")),
            Err(error) => {
                let text = format!("{error:#}");
                ensure!(text.contains(wanted), "kubectl {}: no {wanted:?} in: {text}", args.join(" "));
                Ok(())
            }
        }
    }
}

type Step = fn(&Suite) -> Result<()>;

const STEPS: &[(&str, Step)] = &[
    ("apply, client side", apply_client_side),
    ("apply, server side, with a conflict", apply_server_side),
    ("strict validation", strict_validation),
    ("create", create),
    ("get", get),
    ("watch", watch),
    ("describe", describe),
    ("edit", edit),
    ("patch, three types", patch),
    ("label and annotate", label_and_annotate),
    ("scale", scale),
    ("diff", diff),
    ("explain", explain),
    ("api-resources", api_resources),
    ("auth", auth),
    ("wait", wait),
    ("create token", create_token),
    ("custom resources", custom_resources),
    ("dry run", dry_run),
    ("delete", delete),
];

const DEPLOYMENT: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  labels: {app: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: example.com/web:1
        ports: [{containerPort: 80}]
"#;

fn apply_client_side(s: &Suite) -> Result<()> {
    ensure!(s.input(&["apply", "-f", "-"], DEPLOYMENT)?.contains("created"));
    ensure!(s.input(&["apply", "-f", "-"], DEPLOYMENT)?.contains("unchanged"));
    let changed = DEPLOYMENT.replace("web:1", "web:2");
    ensure!(s.input(&["apply", "-f", "-"], &changed)?.contains("configured"));
    s.expect(
        &["get", "deploy", "web", "-o", "jsonpath={.spec.template.spec.containers[*].image}"],
        &["web:2"],
    )
}

fn apply_server_side(s: &Suite) -> Result<()> {
    let settings =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {colour: green, size: small}\n";
    s.input(&["apply", "--server-side", "--field-manager=alice", "-f", "-"], settings)?;
    let other = settings.replace("green", "red");
    s.refuse(
        &["apply", "--server-side", "--field-manager=bob", "-f", "-"],
        &other,
        "conflict with \"alice\"",
    )?;
    s.input(&["apply", "--server-side", "--field-manager=bob", "--force-conflicts", "-f", "-"], &other)?;
    s.expect(&["get", "cm", "settings", "-o", "jsonpath={.data.colour}"], &["red"])?;
    // What alice no longer applies and nobody else owns goes away.
    let less = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {shape: round}\n";
    s.input(&["apply", "--server-side", "--field-manager=bob", "-f", "-"], less)?;
    s.expect(
        &["get", "cm", "settings", "-o", "yaml", "--show-managed-fields"],
        &["manager: alice", "f:shape", "size: small"],
    )
}

fn strict_validation(s: &Suite) -> Result<()> {
    let wrong = DEPLOYMENT
        .replace("replicas: 2", "replicaz: 2")
        .replace("name: web\n  labels", "name: wrong\n  labels");
    s.refuse(&["apply", "-f", "-"], &wrong, "unknown field \"spec.replicaz\"")?;
    let invalid = DEPLOYMENT
        .replace("matchLabels: {app: web}", "matchLabels: {app: other}")
        .replace("name: web\n  labels", "name: wrong\n  labels");
    s.refuse(&["apply", "-f", "-"], &invalid, "`selector` does not match template `labels`")
}

fn create(s: &Suite) -> Result<()> {
    s.run(&["create", "configmap", "plain", "--from-literal=a=1"])?;
    s.run(&["create", "secret", "generic", "hidden", "--from-literal=password=hunter2"])?;
    s.run(&["create", "serviceaccount", "robot"])?;
    s.run(&["create", "role", "reader", "--verb=get,list", "--resource=pods"])?;
    s.run(&[
        "create",
        "rolebinding",
        "robot-reads",
        "--role=reader",
        &format!("--serviceaccount={}:robot", s.namespace),
    ])?;
    s.run(&["create", "deployment", "second", "--image=example.com/second:1", "--replicas=3"])?;
    s.run(&["create", "job", "once", "--image=example.com/once:1"])?;
    s.run(&["create", "cronjob", "often", "--image=example.com/often:1", "--schedule=*/5 * * * *"])?;
    s.run(&["create", "service", "clusterip", "front", "--tcp=80:8080"])?;
    s.run(&["create", "ingress", "door", "--rule=example.com/*=front:80"])?;
    s.run(&["create", "quota", "cap", "--hard=pods=10"])?;
    s.run(&["create", "poddisruptionbudget", "keep", "--selector=app=web", "--min-available=1"])?;
    s.refuse(&["create", "configmap", "plain"], "", "already exists")?;
    s.expect(&["get", "svc", "front", "-o", "jsonpath={.spec.clusterIP}"], &["10."])
}

fn get(s: &Suite) -> Result<()> {
    s.expect(&["get", "deploy"], &["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE", "web", "0/2"])?;
    s.expect(&["get", "deploy", "-o", "wide"], &["CONTAINERS", "IMAGES", "SELECTOR", "app=web"])?;
    s.expect(
        &["get", "deploy", "web", "-o", "yaml"],
        &["kind: Deployment", "progressDeadlineSeconds: 600", "maxSurge: 25%"],
    )?;
    s.expect(&["get", "deploy", "web", "-o", "name"], &["deployment.apps/web"])?;
    let selected = s.run(&["get", "deploy", "-l", "app in (web)", "-o", "name"])?;
    ensure!(selected.trim() == "deployment.apps/web", "{selected}");
    let field = s.run(&["get", "secret", "--field-selector", "metadata.name=hidden", "-o", "name"])?;
    ensure!(field.trim() == "secret/hidden", "{field}");
    let sorted = s.run(&["get", "deploy", "--sort-by=.spec.replicas", "-o", "name"])?;
    ensure!(sorted.lines().next() == Some("deployment.apps/web"), "{sorted}");
    s.expect(
        &["get", "svc,cm,secret,sa,role,rolebinding,job,cronjob,ing,quota,pdb"],
        &["front", "plain", "hidden", "robot", "reader", "once", "often", "door", "cap", "keep"],
    )?;
    s.expect(&["get", "all"], &["deployment.apps/web", "service/front", "job.batch/once"])?;
    s.refuse(&["get", "deploy", "nothing"], "", "deployments.apps \"nothing\" not found")
}

fn watch(s: &Suite) -> Result<()> {
    let mut child = s
        .kubectl
        .command(&["-n", s.namespace, "get", "cm", "-w", "-o", "name", "--request-timeout=20s"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()?;
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().expect("piped")));
    // The listing first; then what happens while it watches.
    let mut made = false;
    let mut seen = false;
    for line in lines.by_ref() {
        let line = line?;
        if !made {
            s.run(&["create", "configmap", "watched"])?;
            made = true;
        }
        if line.contains("configmap/watched") {
            seen = true;
            break;
        }
    }
    child.kill()?;
    child.wait()?;
    ensure!(seen, "the new ConfigMap never showed in the watch");
    Ok(())
}

fn describe(s: &Suite) -> Result<()> {
    s.expect(
        &["describe", "deploy", "web"],
        &["Name:", "Replicas:", "StrategyType:", "RollingUpdate", "web:2"],
    )?;
    s.expect(&["describe", "svc", "front"], &["Type:", "ClusterIP", "TargetPort:"])?;
    s.expect(&["describe", "secret", "hidden"], &["password:", "7 bytes"])
}

fn edit(s: &Suite) -> Result<()> {
    let script = tempfile::NamedTempFile::new()?;
    std::fs::write(script.path(), "#!/bin/sh\nsed -i 's/a: \"1\"/a: \"9\"/' \"$1\"\n")?;
    let mut command = s.kubectl.command(&["-n", s.namespace, "edit", "cm", "plain"]);
    let output = command.env("KUBE_EDITOR", format!("sh {}", script.path().display())).output()?;
    ensure!(output.status.success(), "edit failed: {}", String::from_utf8_lossy(&output.stderr));
    s.expect(&["get", "cm", "plain", "-o", "jsonpath={.data.a}"], &["9"])
}

fn patch(s: &Suite) -> Result<()> {
    s.run(&[
        "patch",
        "deploy",
        "web",
        "-p",
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"example.com/side:1"}]}}}}"#,
    ])?;
    s.expect(
        &["get", "deploy", "web", "-o", "jsonpath={.spec.template.spec.containers[*].name}"],
        &["web", "side"],
    )?;
    s.run(&["patch", "cm", "plain", "--type=merge", "-p", r#"{"data":{"b":"2","a":null}}"#])?;
    s.run(&[
        "patch",
        "cm",
        "plain",
        "--type=json",
        "-p",
        r#"[{"op":"add","path":"/data/c","value":"3"},{"op":"test","path":"/data/b","value":"2"}]"#,
    ])?;
    let data = s.run(&["get", "cm", "plain", "-o", "jsonpath={.data}"])?;
    ensure!(data.contains(r#""b":"2""#) && data.contains(r#""c":"3""#) && !data.contains(r#""a""#), "{data}");
    s.run(&["set", "image", "deploy/web", "web=example.com/web:3"])?;
    s.expect(
        &["get", "deploy", "web", "-o", "jsonpath={.spec.template.spec.containers[*].image}"],
        &["web:3", "side:1"],
    )
}

fn label_and_annotate(s: &Suite) -> Result<()> {
    s.run(&["label", "deploy", "web", "tier=front"])?;
    s.refuse(&["label", "deploy", "web", "tier=back"], "", "already has a value")?;
    s.run(&["label", "deploy", "web", "tier=back", "--overwrite"])?;
    s.run(&["annotate", "deploy", "web", "note=hello"])?;
    s.expect(&["get", "deploy", "-L", "tier", "-l", "tier=back"], &["TIER", "back", "web"])?;
    s.run(&["label", "deploy", "web", "tier-"])?;
    s.expect(&["get", "deploy", "web", "-o", "jsonpath={.metadata.annotations.note}"], &["hello"])
}

fn scale(s: &Suite) -> Result<()> {
    s.run(&["scale", "deploy", "web", "--replicas=5"])?;
    s.expect(&["get", "deploy", "web", "-o", "jsonpath={.spec.replicas}/{.metadata.generation}"], &["5/"])?;
    s.refuse(
        &["scale", "deploy", "web", "--current-replicas=2", "--replicas=6"],
        "",
        "Expected replicas to be 2, was 5",
    )
}

fn diff(s: &Suite) -> Result<()> {
    let changed = DEPLOYMENT.replace("web:1", "web:9");
    // kubectl diff exits with 1 when there is a difference, and prints it.
    s.refuse(&["diff", "-f", "-"], &changed, "web:9")
}

fn explain(s: &Suite) -> Result<()> {
    s.expect(&["explain", "deployment.spec.strategy"], &["rollingUpdate", "type"])?;
    s.expect(&["explain", "pod.spec.containers"], &["image", "livenessProbe"])
}

fn api_resources(s: &Suite) -> Result<()> {
    s.expect(
        &["api-resources"],
        &["deployments", "deploy", "apps/v1", "configmaps", "cm", "customresourcedefinitions"],
    )?;
    s.expect(&["api-versions"], &["apps/v1", "batch/v1", "rbac.authorization.k8s.io/v1"])
}

fn auth(s: &Suite) -> Result<()> {
    s.expect(&["auth", "can-i", "create", "deployments"], &["yes"])?;
    s.expect(&["auth", "whoami"], &["system:masters"])?;
    let robot = format!("--as=system:serviceaccount:{}:robot", s.namespace);
    s.expect(&["auth", "can-i", "list", "pods", &robot], &["yes"])?;
    s.refuse(&["auth", "can-i", "delete", "pods", &robot], "", "no")?;
    s.refuse(&["get", "secrets", &robot], "", "cannot list resource \"secrets\"")
}

fn wait(s: &Suite) -> Result<()> {
    s.run(&["wait", "deploy/web", "--for=jsonpath={.spec.replicas}=5", "--timeout=10s"])?;
    s.refuse(&["wait", "deploy/web", "--for=condition=Available", "--timeout=1s"], "", "timed out")
}

fn create_token(s: &Suite) -> Result<()> {
    let token = s.run(&["create", "token", "robot"])?;
    ensure!(token.trim().split('.').count() == 3, "not a JWT: {token}");
    // Beside a client certificate, a server never looks at the token: this kubeconfig has no user.
    let folder = tempfile::tempdir()?;
    let bare = folder.path().join("kubeconfig");
    let bare = bare.to_str().expect("a temporary folder's path is text");
    std::fs::write(bare, s.run(&["config", "view", "--raw", "--flatten"])?)?;
    s.run(&["--kubeconfig", bare, "config", "unset", "users"])?;
    let robot = format!("system:serviceaccount:{}:robot", s.namespace);
    s.expect(&["--kubeconfig", bare, "--token", token.trim(), "auth", "whoami"], &[&robot])?;
    let damaged = format!("{}x", token.trim());
    s.refuse(&["--kubeconfig", bare, "--token", &damaged, "auth", "whoami"], "", "Unauthorized")
}

const CRD: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ships.GROUP}
spec:
  group: GROUP
  scope: Namespaced
  names: {plural: ships, singular: ship, kind: Ship, shortNames: [sh]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.masts, statusReplicasPath: .status.masts}}
    additionalPrinterColumns:
    - {name: Masts, type: integer, jsonPath: .spec.masts}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            required: [name]
            properties:
              name: {type: string, maxLength: 20}
              masts: {type: integer, default: 1, minimum: 1}
              cargo: {type: array, items: {type: string}, x-kubernetes-list-type: set}
            x-kubernetes-validations:
            - {rule: "self.masts <= 5", message: "too many masts"}
          status:
            type: object
            properties: {masts: {type: integer}}
"#;

fn custom_resources(s: &Suite) -> Result<()> {
    let group = format!("{}.example.com", s.namespace);
    let crd = format!("ships.{group}");
    s.input(&["apply", "-f", "-"], &CRD.replace("GROUP", &group))?;
    s.run(&["wait", "--for=condition=Established", "crd", &crd, "--timeout=20s"])?;
    let ship = |name: &str, spec: &str| {
        format!("apiVersion: {group}/v1\nkind: Ship\nmetadata: {{name: {name}}}\nspec: {spec}\n")
    };
    tombolo_testkit::wait_for("the new kind to be served", Duration::from_secs(20), || {
        s.input(&["apply", "-f", "-"], &ship("argo", "{name: Argo}"))
    })?;
    s.expect(&["get", "ships"], &["MASTS", "argo"])?;
    s.expect(&["get", "sh", "argo", "-o", "jsonpath={.spec.masts}"], &["1"])?;
    s.refuse(&["apply", "-f", "-"], &ship("big", "{name: Big, masts: 9}"), "too many masts")?;
    s.refuse(&["apply", "-f", "-"], &ship("nameless", "{masts: 1}"), "Required value")?;
    s.refuse(&["apply", "-f", "-"], &ship("odd", "{name: Odd, wings: 2}"), "unknown field \"spec.wings\"")?;
    s.run(&["scale", "ship/argo", "--replicas=3"])?;
    s.expect(&["get", "ship", "argo", "-o", "jsonpath={.spec.masts}"], &["3"])?;
    s.expect(&["explain", &format!("ships.{group}.spec")], &["masts"])?;
    s.run(&["delete", "crd", &crd])?;
    Ok(())
}

fn dry_run(s: &Suite) -> Result<()> {
    s.run(&["create", "configmap", "ghost", "--dry-run=server"])?;
    s.refuse(&["get", "cm", "ghost"], "", "not found")
}

fn delete(s: &Suite) -> Result<()> {
    s.run(&["delete", "deploy", "second"])?;
    s.refuse(&["get", "deploy", "second"], "", "not found")?;
    s.run(&["get", "cm", "settings", "plain", "watched"])?;
    s.run(&["delete", "cm", "--all"])?;
    for name in ["settings", "plain", "watched"] {
        s.refuse(&["get", "cm", name], "", "not found")?;
    }
    // No controller runs here that would carry out the orphaning: the object waits for it, marked.
    s.run(&["delete", "deploy", "web", "--cascade=orphan", "--wait=false"])?;
    let marks = "jsonpath={.metadata.deletionTimestamp} {.metadata.finalizers}";
    s.expect(&["get", "deploy", "web", "-o", marks], &["Z [\"orphan\"]"])?;
    s.run(&["patch", "deploy", "web", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])?;
    s.refuse(&["get", "deploy", "web"], "", "not found")?;
    s.expect(&["delete", "ingress", "door", "--ignore-not-found"], &["\"door\" deleted"])?;
    s.refuse(&["get", "ingress", "door"], "", "not found")?;
    let again = s.run(&["delete", "ingress", "door", "--ignore-not-found"])?;
    ensure!(again.is_empty(), "what is gone was deleted again: {again}");
    Ok(())
}
