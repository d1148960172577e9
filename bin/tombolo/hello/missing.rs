//! What a machine lacks that cannot build the sample application, in words of its package manager.

/// One line from what the compiler said.
pub fn why(said: &str) -> String {
    let what = "could not build the sample application (hello/main.rs) as a static program: ";
    let library = said.split("cannot find -l").nth(1).and_then(|rest| rest.split([':', ' ', '\n']).next());
    match library {
        _ if said.contains("error: linker `") && said.contains("` not found") => {
            format!("{what}there is no C compiler. Install gcc, and try again")
        }
        Some(name) => format!(
            "{what}there is no static library lib{name}.a. Install the static C library (Fedora, RHEL: glibc-static; \
             openSUSE: glibc-devel-static; Debian, Ubuntu: libc6-dev; Alpine: musl-dev), and try again"
        ),
        None => format!("{what}the compiler says why, above"),
    }
}
