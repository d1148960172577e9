//! Writes what the tables give, to compare with a real kube-apiserver by eye or by script:
//! `documents discovery apis`, `documents openapi-v3 apps v1`, `documents openapi-v2`, `documents openapi-index`.

use tombolo_k8s::{discovery, openapi};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let rows: Vec<_> = discovery::built_in().collect();
    let document = match args.as_slice() {
        ["discovery", which] => discovery::aggregated(&rows, *which == "api"),
        ["openapi-v3", group, version] => openapi::v3(group, version, &[]).unwrap_or_default(),
        ["openapi-v2"] => openapi::v2(&[]),
        ["openapi-index"] => openapi::v3_index(&openapi::v3_hashes(&[])),
        _ => {
            eprintln!(
                "usage: documents <discovery api|apis, openapi-v3 GROUP VERSION, openapi-v2, openapi-index>"
            );
            std::process::exit(2);
        }
    };
    println!("{document}");
}
