//! The sample application of `tombolo up`: a page that says which site and pod served it.
//!
//! Built static by `build.rs` from the standard library alone, so that it is a whole container image by itself.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

fn main() {
    let address = format!("0.0.0.0:{}", env::var("PORT").unwrap_or_else(|_| "8080".into()));
    let listener = match TcpListener::bind(&address) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("hello: cannot listen on {address}: {error}");
            std::process::exit(1);
        }
    };
    println!("hello: {} serves on {address}", value("POD_NAME"));
    for stream in listener.incoming().flatten() {
        thread::spawn(move || {
            // A client that hangs up early is its own business.
            let _ = answer(stream);
        });
    }
}

fn value(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| "unknown".into())
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut request = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    request.read_line(&mut first)?;
    let mut line = String::new();
    while request.read_line(&mut line)? > 2 {
        line.clear();
    }
    let path = first.split_whitespace().nth(1).unwrap_or("/");
    let (site, pod) = (value("SITE_NAME"), value("POD_NAME"));
    println!("hello: GET {path}");
    let (kind, body) = match path {
        "/healthz" => ("text/plain", "ok\n".to_owned()),
        "/text" => ("text/plain", format!("hello from {pod} at {site}\n")),
        _ => ("text/html; charset=utf-8", page(&site, &pod)),
    };
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn page(site: &str, pod: &str) -> String {
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>{site}</title>\
         <style>body{{font:18px/1.6 system-ui;margin:12vh auto;max-width:34rem;color:#223}}\
         h1{{font-size:3rem;margin:0;color:#0a6c74}}code{{background:#eef3f3;padding:.1em .4em;border-radius:.3em}}</style>\
         <h1>{site}</h1><p>This page was served by pod <code>{pod}</code>.</p>\
         <p>The same Deployment runs at every site that its Placement chose. \
         Cut a link or stop a site, and load this page again.</p></html>\n"
    )
}
