//! Links, addresses and routes of one network namespace.

use std::io;
use std::net::Ipv4Addr;

use crate::netlink::{CREATE, EXCL, Message, Socket, attributes};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_NEWNEIGH: u16 = 28;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_PID: u16 = 19;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_LOCAL: u16 = 4;
const IFLA_VXLAN_LEARNING: u16 = 7;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_BRPORT_MODE: u16 = 4;
const IFLA_PROTINFO: u16 = 12;
const IFA_LOCAL: u16 = 2;
const IFA_ADDRESS: u16 = 1;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const IFF_UP: u32 = 1;
const AF_INET: u8 = 2;
const AF_BRIDGE: u8 = 7;

/// The links of the namespace the opening thread is in.
pub(crate) struct Links(Socket);

fn link_head(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut head = [0; 16];
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head[8..12].copy_from_slice(&flags.to_ne_bytes());
    head[12..16].copy_from_slice(&change.to_ne_bytes());
    head
}

/// "It is there already" is what we wanted.
fn already(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

impl Links {
    pub fn open() -> io::Result<Links> {
        Socket::route().map(Links)
    }

    /// Index of a link by name.
    pub fn index(&mut self, name: &str) -> io::Result<Option<u32>> {
        Ok(self.list()?.into_iter().find(|(_, n)| n == name).map(|(index, _)| index))
    }

    /// The hardware address of a link by name, if it is there.
    pub fn hardware_address(&mut self, name: &str) -> io::Result<Option<[u8; 6]>> {
        let bodies = self.0.dump(Message::new(RTM_GETLINK, 0, &link_head(0, 0, 0)))?;
        let link = bodies.iter().find(|body| named(body).is_some_and(|(_, n)| n == name));
        let address =
            |body: &Vec<u8>| attributes(body, 16).find(|(kind, _)| *kind == IFLA_ADDRESS)?.1.try_into().ok();
        Ok(link.and_then(address))
    }

    /// Every link: index and name.
    pub fn list(&mut self) -> io::Result<Vec<(u32, String)>> {
        let bodies = self.0.dump(Message::new(RTM_GETLINK, 0, &link_head(0, 0, 0)))?;
        Ok(bodies.iter().filter_map(|body| named(body)).collect())
    }

    fn required(&mut self, name: &str) -> io::Result<u32> {
        self.index(name)?.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no link {name}")))
    }

    pub fn add_bridge(&mut self, name: &str) -> io::Result<u32> {
        let message = Message::new(RTM_NEWLINK, CREATE | EXCL, &link_head(0, 0, 0))
            .text(IFLA_IFNAME, name)
            .nest(IFLA_LINKINFO, |m| m.text(IFLA_INFO_KIND, "bridge"));
        already(self.0.request(message))?;
        self.required(name)
    }

    /// A pair of links: `name` here, `peer` in the namespace of process `pid`.
    pub fn add_veth(&mut self, name: &str, peer: &str, pid: u32, mtu: u32) -> io::Result<u32> {
        let peer = |m: Message| {
            let mut m = m;
            m.body.extend_from_slice(&link_head(0, 0, 0));
            m.text(IFLA_IFNAME, peer).u32(IFLA_MTU, mtu).u32(IFLA_NET_NS_PID, pid)
        };
        let message = Message::new(RTM_NEWLINK, CREATE | EXCL, &link_head(0, 0, 0))
            .text(IFLA_IFNAME, name)
            .u32(IFLA_MTU, mtu)
            .nest(IFLA_LINKINFO, |m| {
                m.text(IFLA_INFO_KIND, "veth").nest(IFLA_INFO_DATA, |m| m.nest(VETH_INFO_PEER, peer))
            });
        self.0.request(message)?;
        self.required(name)
    }

    /// A VXLAN end without learning: every remote node is told explicitly.
    pub fn add_vxlan(
        &mut self,
        name: &str,
        id: u32,
        local: Ipv4Addr,
        port: u16,
        mac: [u8; 6],
    ) -> io::Result<u32> {
        let message = Message::new(RTM_NEWLINK, CREATE | EXCL, &link_head(0, 0, 0))
            .text(IFLA_IFNAME, name)
            .bytes(IFLA_ADDRESS, &mac)
            .nest(IFLA_LINKINFO, |m| {
                m.text(IFLA_INFO_KIND, "vxlan").nest(IFLA_INFO_DATA, |m| {
                    m.u32(IFLA_VXLAN_ID, id)
                        .bytes(IFLA_VXLAN_LOCAL, &local.octets())
                        .bytes(IFLA_VXLAN_LEARNING, &[0])
                        .bytes(IFLA_VXLAN_PORT, &port.to_be_bytes())
                })
            });
        already(self.0.request(message))?;
        self.required(name)
    }

    pub fn up(&mut self, index: u32) -> io::Result<()> {
        self.0.request(Message::new(RTM_NEWLINK, 0, &link_head(index, IFF_UP, IFF_UP)))
    }

    pub fn set_master(&mut self, index: u32, master: u32) -> io::Result<()> {
        self.0.request(Message::new(RTM_NEWLINK, 0, &link_head(index, 0, 0)).u32(IFLA_MASTER, master))
    }

    /// Lets a pod reach itself through a service: the bridge may send a packet back where it came from.
    pub fn hairpin(&mut self, index: u32) -> io::Result<()> {
        let mut head = link_head(index, 0, 0);
        head[0] = AF_BRIDGE;
        self.0.request(
            Message::new(RTM_SETLINK, 0, &head).nest(IFLA_PROTINFO, |m| m.bytes(IFLA_BRPORT_MODE, &[1])),
        )
    }

    pub fn delete(&mut self, name: &str) -> io::Result<()> {
        match self.index(name)? {
            Some(index) => self.0.request(Message::new(RTM_DELLINK, 0, &link_head(index, 0, 0))),
            None => Ok(()),
        }
    }

    pub fn add_address(&mut self, index: u32, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let mut head = [AF_INET, prefix, 0, 0, 0, 0, 0, 0];
        head[4..8].copy_from_slice(&index.to_ne_bytes());
        let message = Message::new(RTM_NEWADDR, CREATE | EXCL, &head)
            .bytes(IFA_LOCAL, &address.octets())
            .bytes(IFA_ADDRESS, &address.octets());
        already(self.0.request(message))
    }

    /// A route through a gateway; `destination` with prefix 0 is the default route. `onlink`: the gateway needs no route.
    pub fn add_route(
        &mut self,
        destination: Ipv4Addr,
        prefix: u8,
        gateway: Ipv4Addr,
        link: u32,
        onlink: bool,
    ) -> io::Result<()> {
        already(
            self.0.request(
                route(RTM_NEWROUTE, CREATE | EXCL, destination, prefix, onlink)
                    .bytes(RTA_GATEWAY, &gateway.octets())
                    .u32(RTA_OIF, link),
            ),
        )
    }

    /// A route to what hangs directly on a link.
    pub fn add_link_route(&mut self, destination: Ipv4Addr, prefix: u8, link: u32) -> io::Result<()> {
        const SCOPE_LINK: u8 = 253;
        let mut message = route(RTM_NEWROUTE, CREATE | EXCL, destination, prefix, false);
        message.body[6] = SCOPE_LINK;
        already(self.0.request(message.u32(RTA_OIF, link)))
    }

    pub fn delete_route(&mut self, destination: Ipv4Addr, prefix: u8) -> io::Result<()> {
        match self.0.request(route(RTM_DELROUTE, 0, destination, prefix, false)) {
            Err(error) if error.raw_os_error() == Some(nix::errno::Errno::ESRCH as i32) => Ok(()),
            other => other,
        }
    }

    /// Tells the neighbour table, or with `bridge` the forwarding table of a VXLAN link, where an address is.
    pub fn add_neighbour(&mut self, link: u32, bridge: bool, to: Ipv4Addr, mac: [u8; 6]) -> io::Result<()> {
        const PERMANENT: u16 = 0x80;
        const NTF_SELF: u8 = 2;
        let mut head = [0u8; 12];
        head[0] = if bridge { AF_BRIDGE } else { AF_INET };
        head[4..8].copy_from_slice(&link.to_ne_bytes());
        head[8..10].copy_from_slice(&PERMANENT.to_ne_bytes());
        head[10] = if bridge { NTF_SELF } else { 0 };
        const REPLACE: u16 = 0x100;
        let message = Message::new(RTM_NEWNEIGH, CREATE | REPLACE, &head)
            .bytes(NDA_DST, &to.octets())
            .bytes(NDA_LLADDR, &mac);
        self.0.request(message)
    }
}

fn route(kind: u16, flags: u16, destination: Ipv4Addr, prefix: u8, onlink: bool) -> Message {
    const MAIN: u8 = 254;
    const BY_BOOT: u8 = 3;
    const UNICAST: u8 = 1;
    const ONLINK: u32 = 4;
    let mut head = [AF_INET, prefix, 0, 0, MAIN, BY_BOOT, 0, UNICAST, 0, 0, 0, 0];
    head[8..12].copy_from_slice(&(if onlink { ONLINK } else { 0 }).to_ne_bytes());
    let message = Message::new(kind, flags, &head);
    if prefix == 0 { message } else { message.bytes(RTA_DST, &destination.octets()) }
}

fn named(body: &[u8]) -> Option<(u32, String)> {
    let index = u32::from_ne_bytes(body.get(4..8)?.try_into().ok()?);
    let (_, name) = attributes(body, 16).find(|(kind, _)| *kind == IFLA_IFNAME)?;
    Some((index, String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()))
}
