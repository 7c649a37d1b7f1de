package probe

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/converter/rfc8803"
	"github.com/detour-collective/dcol/internal/packet"
)

// Limits of fields.
const (
	max8  = 1<<8 - 1
	max16 = 1<<16 - 1
	max32 = 1<<32 - 1
	max63 = 1<<63 - 1
)

// Defaults of the thesis (3.3), and of this program.
const (
	defaultWindow  = 5840
	defaultTCPPort = 80
	defaultUDPPort = 53
	inBandID       = 0xdc01 // of the option that names a server to a waypoint
)

func sorted(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }

// macros maps each name in upper case to the functions that it stands for. Macros pad options with NOPs to a multiple
// of 4 bytes.
var macros = map[string][]string{
	"IP": {"ip"}, "IPv6": {"ipv6"}, "IPV6": {"ipv6"}, "TCP": {"tcp"}, "UDP": {"udp"}, "ICMP": {"icmp"},
	"NOP": {"nop"}, "EOL": {"eol"}, "MSS": {"mss"}, "WSCALE": {"wscale", "nop"}, "SACKP": {"nop", "nop", "sackp"},
	"TS": {"nop", "nop", "timestamp"}, "MPCAPABLE": {"mpcapable"}, "MPJOIN": {"mpjoin"}, "DSS": {"dss"},
	"MD5": {"nop", "nop", "md5"}, "AO": {"ao"}, "TFO": {"nop", "nop", "tfo"},
}

// functions are the names in lower case. It is filled once, because functions refer to it.
var functions = map[string]func(a *arguments) Probe{
	"ip": ip, "ipv6": ipv6, "tcp": tcp, "udp": udp, "icmp": icmp, "raw": raw,
	"nop":   fixed(packet.NOP),
	"eol":   fixed(packet.End),
	"sackp": fixed(packet.SACKPermitted),
	"mss": func(a *arguments) Probe {
		return option(a, packet.MSS(uint16(a.number("mss", max16, 1460))))
	},
	"wscale": func(a *arguments) Probe {
		return option(a, packet.WindowScale(uint8(a.number("shift", max8, 14))))
	},
	"timestamp": func(a *arguments) Probe {
		value, echo := a.number("val", max32, 12345), a.number("ecr", max32, 0)
		return option(a, packet.Timestamps(uint32(value), uint32(echo)))
	},
	"sack": func(a *arguments) Probe {
		edges := a.rest(max32)
		if len(edges) == 0 || len(edges)%2 != 0 || len(edges) > 8 {
			a.fail("give the left and right edges of 1 to 4 blocks")
			return nil
		}
		var blocks []packet.Block
		for ; len(edges) > 0; edges = edges[2:] {
			blocks = append(blocks, packet.Block{Left: uint32(edges[0]), Right: uint32(edges[1])})
		}
		return option(a, packet.SACK(blocks...))
	},
	"md5": func(a *arguments) Probe { return option(a, packet.MD5([16]byte{})) },
	"ao": func(a *arguments) Probe {
		key, next := a.number("key", max8, 0), a.number("next", max8, 0)
		return option(a, packet.AO(uint8(key), uint8(next), make([]byte, 12)))
	},
	"tfo": func(a *arguments) Probe {
		cookie, _ := a.text("cookie")
		if n := len(cookie); n > 0 && (n < 4 || n > 16 || n%2 != 0) {
			a.fail("a cookie has 4 to 16 bytes, an even number, not %d", n)
		}
		return option(a, packet.FastOpen([]byte(cookie)))
	},
	"option": func(a *arguments) Probe {
		const longest = 38
		kind := a.number("kind", max8, packet.KindExperiment2)
		data, _ := a.text("data")
		if len(data) > longest {
			a.fail("an option has room for %d bytes, not %d", longest, len(data))
		}
		return option(a, packet.Option{Kind: uint8(kind), Data: []byte(data)})
	},
	"inband": func(a *arguments) Probe {
		server, given := a.address("server")
		if !given {
			server = netip.AddrFrom4([4]byte{192, 0, 2, 7})
		}
		if !server.Is4() {
			a.fail("the option has room for an IPv4 address, not %v", server)
		}
		return option(a, packet.Experiment(inBandID, server.AsSlice()))
	},
	"mpcapable": mpcapable, "mpjoin": mpjoin, "dss": dss, "addaddr": addaddr,
	"removeaddr": func(a *arguments) Probe {
		return option(a, packet.RemoveAddr{AddressIDs: []byte{byte(a.number("id", max8, 1))}}.Option())
	},
	"mpprio": func(a *arguments) Probe {
		return option(a, packet.Priority{Flags: uint8(a.number("backup", 1, 1))}.Option())
	},
	"mpfail": func(a *arguments) Probe {
		return option(a, packet.Fail{Sequence: uint64(a.number("dsn", max63, 0))}.Option())
	},
	"mpfastclose": func(a *arguments) Probe {
		return option(a, packet.FastClose{Receiver: packet.Key(a.number("key", max63, 1))}.Option())
	},
	"mptcprst": func(a *arguments) Probe {
		flags, reason := a.number("transient", 1, 0), a.number("reason", max8, 0)
		return option(a, packet.Reset{Flags: uint8(flags), Reason: uint8(reason)}.Option())
	},
	"convert": convert,
}

func fixed(o packet.Option) func(a *arguments) Probe {
	return func(a *arguments) Probe { return option(a, o) }
}

func option(a *arguments, o packet.Option) Probe {
	return Probe{{a.function, levelOption, func(b *build) error {
		b.p.TCP.Options = append(b.p.TCP.Options, o)
		return nil
	}}}
}

func ip(a *arguments) Probe {
	dst, hasDst := a.address("dst")
	id, hasID := a.optional("id", max16, 0)
	ecn, dscp := a.number("ecn", 3, 0), a.number("dscp", 63, 0)
	proto, hasProto := a.optional("proto", max8, 0)
	return Probe{{"ip", levelIP, func(b *build) error {
		if !b.env.Source.Is4() {
			return fmt.Errorf("the destination %v has IPv6 only: write IPv6 or ipv6{}", b.env.Destination)
		}
		h := &packet.IPv4{TOS: uint8(dscp<<2 | ecn), ID: uint16(id), TTL: 64, Src: b.env.Source, Dst: b.env.Destination}
		if hasDst {
			h.Dst = dst
		}
		// 0 would be replaced by the kernel, with a number that a comparison cannot know.
		if hasID && id != 0 {
			b.built.FixedID = true
		} else {
			h.ID = uint16(b.env.Random.IntN(0xf000) + 1)
		}
		if hasProto {
			b.protocol = int(proto)
		}
		b.p.V4 = h
		return nil
	}}}
}

func ipv6(a *arguments) Probe {
	dst, hasDst := a.address("dst")
	tc, label := a.number("tc", max8, 0), a.number("flowlabel", 1<<20-1, 0)
	return Probe{{"ipv6", levelIP, func(b *build) error {
		if b.env.Source.Is4() {
			return fmt.Errorf("the destination %v is of IPv4: write IP or ip{}, or ask for IPv6 with -6", b.env.Destination)
		}
		b.p.V6 = &packet.IPv6{Class: uint8(tc), FlowLabel: uint32(label), HopLimit: 64, Src: b.env.Source, Dst: b.env.Destination}
		if hasDst {
			b.p.V6.Dst = dst
		}
		return nil
	}}}
}

// randomPort returns a port that no service has.
func (b *build) randomPort() uint16 { return uint16(33000 + b.env.Random.IntN(27000)) }

func tcp(a *arguments) Probe {
	src, hasSrc := a.optional("src", max16, 0)
	dst := a.number("dst", max16, defaultTCPPort)
	// A script may add 1 to the largest number: it wraps.
	seq, hasSeq := a.optional("seq", max32+1, 0)
	ack, win, urg := a.number("ack", max32+1, 0), a.number("win", max16, defaultWindow), a.number("urg", max16, 0)
	flags := a.number("flags", 0xfff, int64(packet.SYN))
	return Probe{{"tcp", levelTransport, func(b *build) error {
		h := &packet.TCP{
			SrcPort: uint16(src), DstPort: uint16(dst), Seq: uint32(seq), Ack: uint32(ack),
			Flags: packet.Flags(flags), Window: uint16(win), Urgent: uint16(urg),
		}
		if !hasSrc {
			h.SrcPort = b.randomPort()
		}
		if !hasSeq {
			h.Seq = b.env.Random.Uint32()
		}
		b.p.TCP = h
		return nil
	}}}
}

func udp(a *arguments) Probe {
	src, hasSrc := a.optional("src", max16, 0)
	dst := a.number("dst", max16, defaultUDPPort)
	return Probe{{"udp", levelTransport, func(b *build) error {
		b.p.UDP = &packet.UDP{SrcPort: uint16(src), DstPort: uint16(dst)}
		if !hasSrc {
			b.p.UDP.SrcPort = b.randomPort()
		}
		return nil
	}}}
}

func icmp(a *arguments) Probe {
	kind, hasType := a.optional("type", max8, 0)
	code := a.number("code", max8, 0)
	id, hasID := a.optional("id", max16, 0)
	seq := a.number("seq", max16, 1)
	return Probe{{"icmp", levelTransport, func(b *build) error {
		if !hasType {
			kind = 8
			if b.p.V6 != nil {
				kind = 128
			}
		}
		if !hasID {
			id = int64(b.env.Random.IntN(max16))
		}
		h := &packet.ICMP{Type: uint8(kind), Code: uint8(code)}
		binary.BigEndian.PutUint16(h.Data[:], uint16(id))
		binary.BigEndian.PutUint16(h.Data[2:], uint16(seq))
		b.p.ICMP = h
		return nil
	}}}
}

func raw(a *arguments) Probe {
	const most = 8192
	data, given := a.text("payload")
	if !given {
		a.fail("give the payload as a string")
	}
	if len(data) > most {
		a.fail("a payload may have %d bytes, not %d", most, len(data))
	}
	return payload("raw", []byte(data))
}

func payload(name string, data []byte) Probe {
	return Probe{{name, levelPayload, func(b *build) error {
		b.p.Payload = append(b.p.Payload, data...)
		return nil
	}}}
}

// convert is the message by which a client names a server to a converter (RFC 8803).
func convert(a *arguments) Probe {
	server, given := a.address("server")
	if !given {
		server = netip.AddrFrom4([4]byte{192, 0, 2, 7})
	}
	port := a.number("port", max16, defaultTCPPort)
	m := rfc8803.Message{Connect: &rfc8803.Connect{Server: netip.AddrPortFrom(server, uint16(port))}}
	data, err := m.Append(nil)
	if err != nil {
		a.fail("%v", err)
	}
	return payload("convert", data)
}

func mpcapable(a *arguments) Probe {
	version := a.number("version", 1, 1)
	flags := a.number("flags", max8, packet.CapableHMAC)
	sender, hasSender := a.optional("key", max63, 0)
	receiver, hasReceiver := a.optional("peer", max63, 0)
	c := packet.Capable{Version: uint8(version), Flags: uint8(flags), Sender: packet.Key(sender), Receiver: packet.Key(receiver)}
	switch {
	case hasReceiver:
		c.Keys = 2
	case hasSender:
		c.Keys = 1
	case version == 0: // a SYN of version 0 has a key
		return Probe{{a.function, levelOption, func(b *build) error {
			c.Keys, c.Sender = 1, packet.Key(b.env.Random.Uint64())
			b.p.TCP.Options = append(b.p.TCP.Options, c.Option())
			return nil
		}}}
	}
	return option(a, c.Option())
}

func mpjoin(a *arguments) Probe {
	token, nonce := a.number("token", max32, 0x12345678), a.number("nonce", max32, 0x9abcdef0)
	id, backup := a.number("id", max8, 1), a.number("backup", 1, 0)
	return option(a, packet.JoinSYN{Flags: uint8(backup), AddressID: uint8(id), Token: uint32(token), Nonce: uint32(nonce)}.Option())
}

func dss(a *arguments) Probe {
	ack, hasAck := a.optional("ack", max63, 0)
	dsn, hasMap := a.optional("dsn", max63, 1)
	ssn, length := a.number("ssn", max32, 1), a.number("len", max16, 0)
	d := packet.DSS{Ack: uint64(ack), Sequence: uint64(dsn), Subflow: uint32(ssn), Length: uint16(length)}
	if hasAck {
		d.Flags |= packet.DSSAck | packet.DSSAck8
	}
	if hasMap || !hasAck {
		d.Flags |= packet.DSSMap | packet.DSSMap8
	}
	return option(a, d.Option())
}

func addaddr(a *arguments) Probe {
	id := a.number("id", max8, 1)
	addr, given := a.address("addr")
	if !given {
		addr = netip.AddrFrom4([4]byte{192, 0, 2, 7})
	}
	return option(a, packet.AddAddr{Version: 1, AddressID: uint8(id), Address: addr}.Option())
}

// Raw returns the layer of a payload.
func Raw(data []byte) Probe { return payload("raw", data) }
