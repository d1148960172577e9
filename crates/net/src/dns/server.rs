//! The name server: questions about the site are answered from the zone, all others passed to the machine's own servers.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, CNAME, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};

use super::zone::{Found, Zone};

const TTL: u32 = 5;
/// Questions under way at once; more are dropped, and clients ask again.
const AT_ONCE: usize = 512;
const UPSTREAM_PATIENCE: Duration = Duration::from_secs(2);
const PLAIN_UDP: usize = 512;

#[derive(Debug, Error)]
#[error("name server on {address}: {source}")]
pub struct DnsError {
    address: SocketAddr,
    source: std::io::Error,
}

/// A running name server; ends when dropped.
pub struct DnsServer {
    tasks: tokio::task::JoinSet<()>,
}

impl DnsServer {
    /// Answers on `address` from the newest zone. `upstream` is asked for everything else.
    pub async fn start(
        address: SocketAddr,
        zone: watch::Receiver<Arc<Zone>>,
        upstream: Vec<IpAddr>,
    ) -> Result<DnsServer, DnsError> {
        let failed = |source| DnsError { address, source };
        let udp = Arc::new(UdpSocket::bind(address).await.map_err(failed)?);
        let tcp = TcpListener::bind(address).await.map_err(failed)?;
        // Asking ourselves would never end.
        let upstream: Arc<Vec<IpAddr>> =
            Arc::new(upstream.into_iter().filter(|ip| *ip != address.ip()).collect());
        let limit = Arc::new(Semaphore::new(AT_ONCE));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(serve_udp(udp, zone.clone(), upstream.clone(), limit.clone()));
        tasks.spawn(serve_tcp(tcp, zone, upstream, limit));
        Ok(DnsServer { tasks })
    }

    /// Waits for ever, or until the sockets fail.
    pub async fn run(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

async fn serve_udp(
    socket: Arc<UdpSocket>,
    zone: watch::Receiver<Arc<Zone>>,
    upstream: Arc<Vec<IpAddr>>,
    limit: Arc<Semaphore>,
) {
    let mut buffer = vec![0u8; 4096];
    loop {
        let Ok((count, from)) = socket.recv_from(&mut buffer).await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let Ok(permit) = limit.clone().try_acquire_owned() else { continue };
        let (question, socket, upstream) = (buffer[..count].to_vec(), socket.clone(), upstream.clone());
        let zone = zone.borrow().clone();
        tokio::spawn(async move {
            if let Some(answer) = answer(&question, &zone, &upstream, false).await {
                let _ = socket.send_to(&answer, from).await;
            }
            drop(permit);
        });
    }
}

async fn serve_tcp(
    listener: TcpListener,
    zone: watch::Receiver<Arc<Zone>>,
    upstream: Arc<Vec<IpAddr>>,
    limit: Arc<Semaphore>,
) {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let Ok(permit) = limit.clone().try_acquire_owned() else { continue };
        let (zone, upstream) = (zone.clone(), upstream.clone());
        tokio::spawn(async move {
            let talk = async {
                while let Ok(length) = stream.read_u16().await {
                    let mut question = vec![0u8; usize::from(length)];
                    if stream.read_exact(&mut question).await.is_err() {
                        return;
                    }
                    let zone = zone.borrow().clone();
                    let Some(answer) = answer(&question, &zone, &upstream, true).await else { return };
                    let mut framed = (answer.len() as u16).to_be_bytes().to_vec();
                    framed.extend_from_slice(&answer);
                    if stream.write_all(&framed).await.is_err() {
                        return;
                    }
                }
            };
            let _ = tokio::time::timeout(Duration::from_secs(30), talk).await;
            drop(permit);
        });
    }
}

async fn answer(question: &[u8], zone: &Zone, upstream: &[IpAddr], tcp: bool) -> Option<Vec<u8>> {
    let query = Message::from_vec(question).ok()?;
    if query.metadata.message_type != MessageType::Query {
        return None;
    }
    if let Some(reply) = local_answer(&query, zone) {
        let bytes = reply.to_vec().ok()?;
        let room = if tcp { usize::from(u16::MAX) } else { usize::from(query.max_payload()).max(PLAIN_UDP) };
        return if bytes.len() <= room { Some(bytes) } else { reply.truncate().to_vec().ok() };
    }
    for server in upstream {
        let asked =
            async { if tcp { ask_tcp(*server, question).await } else { ask_udp(*server, question).await } };
        if let Ok(Ok(answer)) = tokio::time::timeout(UPSTREAM_PATIENCE, asked).await {
            return Some(answer);
        }
    }
    failure(&query, ResponseCode::ServFail).to_vec().ok()
}

fn failure(query: &Message, code: ResponseCode) -> Message {
    let mut reply = Message::error_msg(query.metadata.id, query.metadata.op_code, code);
    reply.metadata.recursion_desired = query.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    reply.queries = query.queries.clone();
    reply
}

/// The answer from the zone, or nothing if the question is about the world. Pure.
fn local_answer(query: &Message, zone: &Zone) -> Option<Message> {
    if query.metadata.op_code != OpCode::Query {
        return Some(failure(query, ResponseCode::NotImp));
    }
    let [question] = query.queries.as_slice() else { return Some(failure(query, ResponseCode::FormErr)) };
    let name = question.name().clone();
    let text = name.to_ascii();
    let mut reply = failure(query, ResponseCode::NoError);
    reply.metadata.authoritative = true;
    let found = match zone.find(text.trim_end_matches('.')) {
        Found::Elsewhere => return None,
        Found::Missing => {
            reply.metadata.response_code = ResponseCode::NXDomain;
            reply.authorities.extend(start_of_authority(zone));
            return Some(reply);
        }
        Found::Empty => {
            reply.authorities.extend(start_of_authority(zone));
            return Some(reply);
        }
        Found::Entry(entry) => entry,
    };
    let mut put =
        |owner: &Name, data: RData| reply.answers.push(Record::from_rdata(owner.clone(), TTL, data));
    let kind = question.query_type();
    let any = kind == RecordType::ANY;
    if let Some(alias) = found.alias.as_ref().and_then(|alias| Name::from_utf8(format!("{alias}.")).ok()) {
        put(&name, RData::CNAME(CNAME(alias)));
    }
    if kind == RecordType::A || any {
        found.addresses.iter().for_each(|address| put(&name, RData::A(A(*address))));
    }
    if kind == RecordType::TXT || any {
        found.text.iter().for_each(|text| put(&name, RData::TXT(TXT::new(vec![text.clone()]))));
    }
    if kind == RecordType::PTR || any {
        for target in found.pointer.iter().filter_map(|t| Name::from_utf8(format!("{t}.")).ok()) {
            put(&name, RData::PTR(PTR(target)));
        }
    }
    if kind == RecordType::SRV || any {
        let share = (100 / found.services.len().max(1)) as u16;
        for (port, target) in &found.services {
            let Ok(target_name) = Name::from_utf8(format!("{target}.")) else { continue };
            put(&name, RData::SRV(SRV::new(0, share, *port, target_name.clone())));
        }
        for (_, target) in &found.services {
            if let (Ok(owner), Found::Entry(entry)) =
                (Name::from_utf8(format!("{target}.")), zone.find(target))
            {
                let extra =
                    entry.addresses.iter().map(|a| Record::from_rdata(owner.clone(), TTL, RData::A(A(*a))));
                reply.additionals.extend(extra);
            }
        }
    }
    if reply.answers.is_empty() {
        reply.authorities.extend(start_of_authority(zone));
    }
    // Clients that take the first address spread over all of them.
    let spread = usize::from(query.metadata.id) % reply.answers.len().max(1);
    if found.alias.is_none() {
        reply.answers.rotate_left(spread);
    }
    Some(reply)
}

fn start_of_authority(zone: &Zone) -> Option<Record> {
    let name = Name::from_utf8(format!("{}.", zone.domain())).ok()?;
    let (server, mailbox) =
        (name.prepend_label("ns.dns".split('.').next()?).ok()?, name.prepend_label("hostmaster").ok()?);
    Some(Record::from_rdata(name, TTL, RData::SOA(SOA::new(server, mailbox, 1, 7200, 1800, 86400, TTL))))
}

async fn ask_udp(server: IpAddr, question: &[u8]) -> std::io::Result<Vec<u8>> {
    let any: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect((server, 53)).await?;
    socket.send(question).await?;
    let mut buffer = vec![0u8; 4096];
    loop {
        let count = socket.recv(&mut buffer).await?;
        // Only an answer to this very question counts.
        if count >= 2 && buffer[..2] == question[..2] {
            buffer.truncate(count);
            return Ok(buffer);
        }
    }
}

async fn ask_tcp(server: IpAddr, question: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect((server, 53)).await?;
    let mut framed = (question.len() as u16).to_be_bytes().to_vec();
    framed.extend_from_slice(question);
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0u8; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}
