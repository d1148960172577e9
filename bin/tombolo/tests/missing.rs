//! Who cannot build the program is told what to install.

#[path = "../hello/missing.rs"]
mod missing;

#[test]
fn a_machine_without_a_static_c_library_is_told_its_package() {
    let said = "error: linking with `cc` failed: exit status: 1\n  = note: /usr/bin/ld: cannot find -lc: No such file or directory\n          collect2: error: ld returned 1 exit status\n";
    let why = missing::why(said);
    for part in ["libc.a", "glibc-static", "libc6-dev"] {
        assert!(why.contains(part), "no {part:?} in {why}");
    }
    assert_eq!(why.lines().count(), 1, "cargo shows one line");
}

#[test]
fn a_machine_without_a_compiler_is_told_so() {
    let why =
        missing::why("error: linker `cc` not found\n  |\n  = note: No such file or directory (os error 2)\n");
    assert!(why.contains("Install gcc"), "{why}");
}

#[test]
fn anything_else_is_left_to_the_compilers_own_words() {
    let why = missing::why("error[E0425]: cannot find value `x` in this scope\n");
    assert!(why.contains("above") && !why.contains("Install"), "{why}");
}
