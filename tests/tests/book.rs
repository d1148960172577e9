//! The book cannot rot: its reference is made from the program, it renders, and its links lead somewhere.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tombolo_testkit::{Fixture, Tombolo, cargo_binary, require};
use tombolo_tests::book::{pages, root};

#[test]
fn the_reference_is_current() -> Result<()> {
    for page in ["commands", "resources"] {
        let made = Command::new(cargo_binary("tombolo")).args(["reference", page]).output()?;
        let kept = std::fs::read(root().join(format!("docs/reference/{page}.md")))?;
        ensure!(
            made.stdout == kept,
            "docs/reference/{page}.md is not current; run `cargo xtask docs` and commit it"
        );
    }
    Ok(())
}

#[test]
fn every_metric_is_on_the_page_about_observing() -> Result<()> {
    if !require(&[Fixture::Kubectl]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let hub = Tombolo::start("hub", dir.path(), &["--listen", "127.0.0.1:0"])?;
    let metrics = hub.kubectl().run(&["get", "--raw", "/metrics"])?;
    let names: Vec<_> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_whitespace().next().map(str::to_owned))
        .collect();
    ensure!(names.len() >= 6, "{metrics}");
    let page = std::fs::read_to_string(root().join("docs/howto/observe.md"))?;
    let missing: Vec<_> = names.iter().filter(|name| !page.contains(&format!("| `{name}"))).collect();
    ensure!(missing.is_empty(), "docs/howto/observe.md does not name {missing:?}");
    Ok(())
}

/// As GitHub and mdBook make them.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn every_page_is_in_the_summary_and_every_link_leads_somewhere() -> Result<()> {
    let summary = std::fs::read_to_string(root().join("docs/SUMMARY.md"))?;
    let mut faults = Vec::new();
    let mut pages = pages();
    pages.push(root().join("README.md"));
    pages.push(root().join("CONTRIBUTING.md"));
    for page in &pages {
        let shown = page.strip_prefix(root())?.display().to_string();
        let in_book = shown.strip_prefix("docs/");
        if let Some(name) = in_book
            && name != "SUMMARY.md"
            && !summary.contains(&format!("({name})"))
        {
            faults.push(format!("{shown} is not in SUMMARY.md"));
        }
        let text = std::fs::read_to_string(page)?;
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") || link.contains(' ') {
                continue;
            }
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                page.clone()
            } else {
                page.parent().context("a page has a folder")?.join(file)
            };
            if !target.exists() {
                faults.push(format!("{shown}: {link} leads nowhere"));
            } else if !place.is_empty() {
                let there = std::fs::read_to_string(&target).unwrap_or_default();
                if !there.lines().any(|line| line.starts_with('#') && anchor(line) == place) {
                    faults.push(format!("{shown}: {link} has no such heading"));
                }
            }
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// What an attribute of a rendered page has as values.
fn values<'a>(html: &'a str, attribute: &str) -> Vec<&'a str> {
    let start = format!(" {attribute}=\"");
    html.split(start.as_str()).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

fn rendered(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(rendered(&path)?);
        } else if path.extension().is_some_and(|e| e == "html") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Links of a rendered page that lead nowhere within the book.
fn dead_links(page: &Path, html: &str) -> Vec<String> {
    let mut dead = Vec::new();
    for link in values(html, "href").into_iter().chain(values(html, "src")) {
        if link.contains("://") || ["mailto:", "data:", "javascript:"].iter().any(|s| link.starts_with(s)) {
            continue;
        }
        let (file, place) = link.split_once('#').unwrap_or((link, ""));
        let target = if file.is_empty() { page.to_owned() } else { page.with_file_name(file) };
        let there = std::fs::read(&target).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let there = match there {
            Ok(there) => there,
            Err(_) => {
                dead.push(format!("{link} leads nowhere"));
                continue;
            }
        };
        if !place.is_empty() && !values(&there, "id").contains(&place) {
            dead.push(format!("{link} has no such place"));
        }
    }
    dead
}

#[test]
fn the_book_renders_without_a_warning_and_all_its_links_work() -> Result<()> {
    if !require(&[Fixture::Mdbook]) {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let output = Command::new(Fixture::Mdbook.must())
        .arg("build")
        .arg(root().join("docs"))
        .arg("-d")
        .arg(dir.path())
        .output()?;
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success() && !said.contains("WARN") && !said.contains("ERROR"), "{said}");
    let mut faults = Vec::new();
    for page in pages() {
        let name = page.strip_prefix(root().join("docs"))?;
        let html = dir.path().join(name).with_extension("html");
        if !name.ends_with("SUMMARY.md") && !html.exists() {
            faults.push(format!("{} was not rendered", name.display()));
        }
    }
    // That one is for any place of a server, and speaks of the root.
    for page in rendered(dir.path())?.into_iter().filter(|page| !page.ends_with("404.html")) {
        let shown = page.strip_prefix(dir.path())?.display().to_string();
        let html = std::fs::read_to_string(&page)?;
        faults.extend(dead_links(&page, &html).into_iter().map(|dead| format!("{shown}: {dead}")));
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

#[test]
fn dead_links_of_a_rendered_page_are_found() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let page = dir.path().join("a.html");
    std::fs::write(dir.path().join("b.html"), "<h2 id=\"there\">There</h2>")?;
    let html =
        "<h1 id=\"top\">A</h1> <a href=\"#top\"> <a href=\"b.html#there\"> <a href=\"https://example.com/\">";
    std::fs::write(&page, html)?;
    ensure!(dead_links(&page, html).is_empty());
    for (link, why) in [("#gone", "no such place"), ("b.html#gone", "no such place"), ("c.html", "nowhere")] {
        let dead = dead_links(&page, &format!("<a href=\"{link}\">"));
        ensure!(dead.len() == 1 && dead[0].contains(why), "{link}: {dead:?}");
    }
    Ok(())
}
