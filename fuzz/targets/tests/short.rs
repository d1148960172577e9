//! Some thousand inputs for every target, made from the seeds by random changes: some are the same every time, others are new
//! each time. Which ones, a failure says.

#![allow(clippy::unwrap_used, reason = "helpers of tests outside of test functions")]

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use tombolo_fuzz_targets::TARGETS;

/// More for a longer search without coverage: `FUZZ_INPUTS=1000000 cargo test -p tombolo-fuzz-targets`.
fn inputs() -> u64 {
    std::env::var("FUZZ_INPUTS").ok().and_then(|n| n.parse().ok()).unwrap_or(6000)
}

/// Where the new inputs of this run begin; `FUZZ_SEED` repeats those of another one.
fn seed() -> u64 {
    let given = std::env::var("FUZZ_SEED").ok().and_then(|n| n.parse().ok());
    given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(2, |now| now.as_nanos() as u64)
    })
}

/// Pieces that decoders care about.
const PIECES: &[&[u8]] = &[
    b"null",
    b"{}",
    b"[]",
    b"\"\"",
    b"0",
    b"-1",
    b"1e999",
    b"18446744073709551616",
    b"true",
    b"\n",
    b"\0",
    b"..",
    b"$patch",
    b"\"$patch\":\"delete\",",
    b"\"$retainKeys\":[\"a\"],",
    b"\"$setElementOrder/a\":[],",
    b"~1",
    b"/-",
    b"/",
    b"&a ",
    b"*a",
    b"<<: ",
    b"- ",
    b"? ",
    b"!!binary ",
    b"\\ud800",
    b"\xff",
    b"\xc3\xa9",
    b"k8s\0",
    b"k:{\"name\":\"c\"}",
    b"v:1",
    b"i:0",
    b"f:spec",
    b"metadata",
    b"managedFields",
    b"name",
    b" in (",
    b"!",
    b"==",
    b",",
];

/// SplitMix64: enough to choose changes, and the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn part(&mut self, of: &[u8]) -> std::ops::Range<usize> {
        let start = self.below(of.len() + 1);
        let most = (of.len() - start).min(1 << self.below(9));
        start..start + self.below(most + 1)
    }
}

fn change(input: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    let at = random.below(input.len() + 1);
    match random.below(8) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 if at < input.len() => input[at] = random.next() as u8,
        2 => drop(input.drain(random.part(input))),
        3 => {
            let copied = input[random.part(input)].to_vec();
            input.splice(at..at, copied);
        }
        4 => {
            let other = &others[random.below(others.len())];
            let taken = other[random.part(other)].to_vec();
            input.splice(at..at, taken);
        }
        5 => drop(input.splice(random.part(input), PIECES[random.below(PIECES.len())].to_vec())),
        6 => {
            // One value in place of another keeps a document well formed more often than bytes do.
            let ends: Vec<usize> =
                (0..input.len()).filter(|i| matches!(input[*i], b',' | b'}' | b']')).collect();
            let Some(&end) = ends.get(random.below(ends.len())) else { return };
            let start =
                input[..end].iter().rposition(|b| matches!(b, b':' | b'[' | b',')).map_or(0, |i| i + 1);
            input.splice(start..end, PIECES[random.below(9)].to_vec());
        }
        _ => drop(input.splice(at..at, PIECES[random.below(PIECES.len())].to_vec())),
    }
    input.truncate(16 * 1024);
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../seeds").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("no seeds in {}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn try_one(name: &str, seed: u64, input: &[u8]) {
    if catch_unwind(|| tombolo_fuzz_targets::run(name, input)).is_err() {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}"));
        fs::write(&path, input).unwrap();
        panic!(
            "the input in {} (FUZZ_SEED={seed}) breaks a promise of target {name}: {:?}",
            path.display(),
            input.escape_ascii().to_string()
        );
    }
}

#[test]
fn no_input_breaks_a_promise() {
    for (name, _) in TARGETS {
        let seeds = seeds(name);
        assert!(!seeds.is_empty(), "target {name} has no seeds");
        for input in &seeds {
            try_one(name, 0, input);
        }
        for seed in [1, seed()] {
            let mut random = Random(seed);
            for _ in 0..inputs() / 2 {
                let mut input = seeds[random.below(seeds.len())].clone();
                for _ in 0..=random.below(6) {
                    change(&mut input, &seeds, &mut random);
                }
                try_one(name, seed, &input);
            }
        }
    }
}

#[test]
fn every_target_has_its_program() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz_targets");
    let mut programs: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    programs.sort();
    let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(programs, names);
}
