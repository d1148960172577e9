//! The node with real containers and a real kube-apiserver. Needs root; says so loudly where it cannot run.
//!
//! Not the usual test harness, for two reasons: this program is what the node starts again to make containers
//! (so `maybe_run` must be first), and it enters a network namespace of its own while it has a single thread.

mod churn;
mod containerd;
mod fencing;
mod harness;
mod images;
mod lifecycle;
mod machine;
mod plugins;
mod pods;
mod runtime;
mod services;
mod streams;
mod stubborn;
mod trouble;
mod upkeep;

fn main() {
    tombolo_node::reexec::maybe_run();
    let args: Vec<String> = std::env::args().collect();
    if let [_, mode, kubeconfig, dir, subnet] = args.as_slice()
        && mode == "run-node"
    {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("tokio");
        return runtime.block_on(churn::run_node(kubeconfig, dir, subnet));
    }
    let tests = [
        runtime::tests(),
        images::tests(),
        pods::tests(),
        lifecycle::tests(),
        streams::tests(),
        services::tests(),
        plugins::tests(),
        stubborn::tests(),
        trouble::tests(),
        upkeep::tests(),
        fencing::tests(),
        containerd::tests(),
        churn::tests(),
    ];
    harness::run(&tests.concat());
}
