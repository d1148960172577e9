//! Writes what the tables give, to compare with a real kube-apiserver by eye or by script:
//! `documents discovery <api|apis>`, `documents openapi-v3 <group> <version>`, `documents openapi-v2`.

use tombolo_k8s::discovery;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let rows: Vec<_> = discovery::built_in().collect();
    let document = match args.as_slice() {
        ["discovery", which] => discovery::aggregated(&rows, *which == "api"),
        _ => {
            eprintln!("usage: documents discovery <api|apis>");
            std::process::exit(2);
        }
    };
    println!("{document}");
}
