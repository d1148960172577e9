//! nftables by netlink: tables, chains, sets and rules as one transaction.
//!
//! Registers: 1 is the first 16-byte register, also used as the verdict's source; 8 and up are the 4-byte ones.

use std::io;
use std::net::Ipv4Addr;

use crate::netlink::{ACK, APPEND, CREATE, Message, Socket};

const SUBSYSTEM: u16 = 10 << 8;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEWTABLE: u16 = SUBSYSTEM;
const DELTABLE: u16 = SUBSYSTEM + 2;
const NEWCHAIN: u16 = SUBSYSTEM + 3;
const NEWRULE: u16 = SUBSYSTEM + 6;
const NEWSET: u16 = SUBSYSTEM + 9;
const IPV4: u8 = 2;

/// Where a chain hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    Prerouting,
    Output,
    Postrouting,
    Forward,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub name: String,
    /// None: reached only by a jump.
    pub hook: Option<(Hook, i32)>,
    pub nat: bool,
}

/// A set of source addresses that forgets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AffinitySet {
    pub name: String,
    pub number: u32,
    pub seconds: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }
}

/// One piece of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expr {
    SourceIn {
        network: Ipv4Addr,
        prefix: u8,
        negate: bool,
    },
    DestinationIn {
        network: Ipv4Addr,
        prefix: u8,
        negate: bool,
    },
    Protocol(Protocol),
    DestinationPort(u16),
    /// The destination is an address of this machine.
    DestinationIsLocal,
    /// True once in `of` times, for the number given.
    Random {
        of: u32,
        less_than: u32,
    },
    /// The mark has (or, set, gets) this bit.
    HasMark(u32),
    SetMark(u32),
    /// The source address is in the set.
    SourceKnown(AffinitySet),
    /// Puts the source address into the set, or refreshes it.
    RememberSource(AffinitySet),
    Dnat {
        address: Ipv4Addr,
        port: u16,
    },
    Masquerade,
    Jump(String),
    Goto(String),
    /// Answers with a reset or an ICMP message.
    Reject {
        tcp: bool,
    },
}

fn nf_head() -> [u8; 4] {
    [IPV4, 0, 0, 0]
}

fn batch_head() -> [u8; 4] {
    // Version 0; the subsystem, in network byte order.
    [0, 0, 0, 10]
}

/// The messages of one transaction.
pub(crate) struct Transaction {
    table: String,
    messages: Vec<Message>,
}

impl Transaction {
    /// Replaces the whole table: what is not said again is gone.
    pub fn replace(table: &str) -> Transaction {
        let mut transaction = Transaction { table: table.to_owned(), messages: Vec::new() };
        // Adding first makes the deletion succeed whether or not it was there.
        transaction.table(NEWTABLE, CREATE);
        transaction.table(DELTABLE, 0);
        transaction.table(NEWTABLE, CREATE);
        transaction
    }

    /// Removes the table.
    pub fn remove(table: &str) -> Transaction {
        let mut transaction = Transaction { table: table.to_owned(), messages: Vec::new() };
        transaction.table(NEWTABLE, CREATE);
        transaction.table(DELTABLE, 0);
        transaction
    }

    fn table(&mut self, kind: u16, flags: u16) {
        let message = Message::new(kind, flags | ACK, &nf_head()).text(1, &self.table);
        self.messages.push(message);
    }

    pub fn chain(&mut self, chain: &Chain) {
        let mut message =
            Message::new(NEWCHAIN, CREATE | ACK, &nf_head()).text(1, &self.table).text(3, &chain.name);
        if let Some((hook, priority)) = chain.hook {
            let number = match hook {
                Hook::Prerouting => 0,
                Hook::Forward => 2,
                Hook::Output => 3,
                Hook::Postrouting => 4,
            };
            message = message
                .nest(4, |m| m.be32(1, number).bytes(2, &priority.to_be_bytes()))
                .text(7, if chain.nat { "nat" } else { "filter" })
                .be32(5, 1);
        }
        self.messages.push(message);
    }

    pub fn affinity_set(&mut self, set: &AffinitySet) {
        const TIMEOUT: u32 = 0x10;
        const EVAL: u32 = 0x20;
        let message = Message::new(NEWSET, CREATE | ACK, &nf_head())
            .text(1, &self.table)
            .text(2, &set.name)
            .be32(3, TIMEOUT | EVAL)
            .be32(4, 7) // ipv4_addr, as `nft` shows it
            .be32(5, 4)
            .be32(10, set.number)
            .be64(11, u64::from(set.seconds) * 1000);
        self.messages.push(message);
    }

    pub fn rule(&mut self, chain: &str, expressions: &[Expr]) {
        let message = Message::new(NEWRULE, CREATE | APPEND | ACK, &nf_head())
            .text(1, &self.table)
            .text(2, chain)
            .nest(4, |mut m| {
                for expression in expressions {
                    m = encode(m, expression);
                }
                m
            });
        self.messages.push(message);
    }

    /// Makes it so, entirely or not at all.
    pub fn commit(self) -> io::Result<()> {
        let mut batch = vec![Message { flags: 1, ..Message::new(BATCH_BEGIN, 0, &batch_head()) }];
        batch.extend(self.messages);
        batch.push(Message { flags: 1, ..Message::new(BATCH_END, 0, &batch_head()) });
        Socket::netfilter()?.batch(&batch)
    }
}

/// Whether the kernel takes rules from this process: a table of our own is made and removed in one transaction.
pub fn probe() -> io::Result<()> {
    Transaction::remove("tombolo-probe").commit()
}

fn expression(m: Message, name: &str, data: impl FnOnce(Message) -> Message) -> Message {
    m.nest(1, |m| m.text(1, name).nest(2, data))
}

/// Loads packet bytes into register 1. Base 1 is the network header, 2 the transport header.
fn payload(m: Message, base: u32, offset: u32, length: u32) -> Message {
    expression(m, "payload", |m| m.be32(1, 1).be32(2, base).be32(3, offset).be32(4, length))
}

fn meta_load(m: Message, key: u32) -> Message {
    expression(m, "meta", |m| m.be32(2, key).be32(1, 1))
}

fn compare(m: Message, operation: u32, value: &[u8]) -> Message {
    expression(m, "cmp", |m| m.be32(1, 1).be32(2, operation).nest(3, |m| m.bytes(1, value)))
}

fn mask(m: Message, mask: &[u8]) -> Message {
    let zero = vec![0u8; mask.len()];
    expression(m, "bitwise", |m| {
        m.be32(1, 1)
            .be32(2, 1)
            .be32(3, mask.len() as u32)
            .nest(4, |m| m.bytes(1, mask))
            .nest(5, |m| m.bytes(1, &zero))
    })
}

fn verdict(m: Message, code: i32, chain: Option<&str>) -> Message {
    expression(m, "immediate", |m| {
        m.be32(1, 0).nest(2, |m| {
            m.nest(2, |m| {
                let m = m.bytes(1, &code.to_be_bytes());
                match chain {
                    Some(chain) => m.text(2, chain),
                    None => m,
                }
            })
        })
    })
}

fn load(m: Message, register: u32, value: &[u8]) -> Message {
    expression(m, "immediate", |m| m.be32(1, register).nest(2, |m| m.bytes(1, value)))
}

fn network(m: Message, offset: u32, address: Ipv4Addr, prefix: u8, negate: bool) -> Message {
    let bits = if prefix == 0 { 0 } else { u32::MAX << (32 - u32::from(prefix)) };
    let m = payload(m, 1, offset, 4);
    let m = if prefix < 32 { mask(m, &bits.to_be_bytes()) } else { m };
    compare(m, u32::from(negate), &(u32::from(address) & bits).to_be_bytes())
}

fn encode(m: Message, expr: &Expr) -> Message {
    const EQUAL: u32 = 0;
    const LESS: u32 = 2;
    match expr {
        Expr::SourceIn { network: n, prefix, negate } => network(m, 12, *n, *prefix, *negate),
        Expr::DestinationIn { network: n, prefix, negate } => network(m, 16, *n, *prefix, *negate),
        Expr::Protocol(protocol) => compare(meta_load(m, 16), EQUAL, &[protocol.number()]),
        Expr::DestinationPort(port) => compare(payload(m, 2, 2, 2), EQUAL, &port.to_be_bytes()),
        Expr::DestinationIsLocal => {
            // Result 3 is the type of the address; 2 is "local". Flag 2 asks about the destination.
            let m = expression(m, "fib", |m| m.be32(1, 1).be32(2, 3).be32(3, 2));
            compare(m, EQUAL, &2u32.to_ne_bytes())
        }
        Expr::Random { of, less_than } => {
            let m = expression(m, "numgen", |m| m.be32(1, 1).be32(2, *of).be32(3, 1).be32(4, 0));
            // The number comes in host order, and the kernel compares bytes.
            let m = expression(m, "byteorder", |m| m.be32(1, 1).be32(2, 1).be32(3, 1).be32(4, 4).be32(5, 4));
            compare(m, LESS, &less_than.to_be_bytes())
        }
        Expr::HasMark(bit) => compare(mask(meta_load(m, 3), &bit.to_ne_bytes()), 1, &0u32.to_ne_bytes()),
        Expr::SetMark(bit) => {
            let m = meta_load(m, 3);
            let m = expression(m, "bitwise", |m| {
                m.be32(1, 1)
                    .be32(2, 1)
                    .be32(3, 4)
                    .nest(4, |m| m.bytes(1, &(!bit).to_ne_bytes()))
                    .nest(5, |m| m.bytes(1, &bit.to_ne_bytes()))
            });
            expression(m, "meta", |m| m.be32(2, 3).be32(3, 1))
        }
        Expr::SourceKnown(set) => {
            let m = payload(m, 1, 12, 4);
            expression(m, "lookup", |m| m.text(1, &set.name).be32(2, 1).be32(4, set.number))
        }
        Expr::RememberSource(set) => {
            let m = payload(m, 1, 12, 4);
            // Operation 1 is "update": add, or start its time anew.
            expression(m, "dynset", |m| {
                m.text(1, &set.name)
                    .be32(2, set.number)
                    .be32(3, 1)
                    .be32(4, 1)
                    .be64(6, u64::from(set.seconds) * 1000)
            })
        }
        Expr::Dnat { address, port } => {
            let m = load(m, 1, &address.octets());
            let m = load(m, 2, &port.to_be_bytes());
            expression(m, "nat", |m| m.be32(1, 1).be32(2, 2).be32(3, 1).be32(5, 2))
        }
        Expr::Masquerade => expression(m, "masq", |m| m),
        Expr::Jump(chain) => verdict(m, -3, Some(chain)),
        Expr::Goto(chain) => verdict(m, -4, Some(chain)),
        Expr::Reject { tcp } => expression(m, "reject", |m| {
            // Type 1 is a TCP reset; type 0 is ICMP, code 3 "port unreachable".
            if *tcp { m.be32(1, 1).bytes(2, &[0]) } else { m.be32(1, 0).bytes(2, &[3]) }
        }),
    }
}
