// Package tshark returns the fields of packets with the names and in the notation of tshark 4 (Wireshark's dissectors
// of TCP and MPTCP), so that the two can be compared. It is pure. Tests and the lab import it.
package tshark

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/detour-collective/dcol/internal/packet"
)

// Names lists the fields that Of returns. tshark prints them in the same notation with `-o
// tcp.relative_sequence_numbers:FALSE -T fields -E occurrence=a`, and separates several values of a field by commas.
func Names() []string {
	names := []string{
		"ip.src", "ip.dst", "ipv6.src", "ipv6.dst", "tcp.srcport", "tcp.dstport", "tcp.seq_raw", "tcp.ack_raw", "tcp.flags",
		"tcp.window_size_value", "tcp.len", "tcp.option_kind", "tcp.options.mss_val", "tcp.options.wscale.shift",
		"tcp.options.timestamp.tsval", "tcp.options.timestamp.tsecr", "tcp.options.sack_le", "tcp.options.sack_re",
		"mptcp.expected_token", "mptcp.expected_idsn", "mptcp.rm_addr.count",
	}
	for _, name := range strings.Fields(`subtype version flags reserved reserved.flag checksumreq.flags extensibility.flag
		nomoresubflows.flag sha1.flag sha256.flag backup.flag datafin.flag dseqn8.flag dseqnpresent.flag dataack8.flag
		dataackpresent.flag flag_U.flag flag_V.flag flag_W.flag flag_T.flag rst_reason echo ipver addrid ipv4 ipv6 port
		addaddrtrunchmac sendkey recvkey recvtok sendrand sendtrunchmac sendhmac rawdataack rawdataseqno subflowseqno
		datalvllen checksum`) {
		names = append(names, mptcpPrefix+name)
	}
	return names
}

const mptcpPrefix = "tcp.options.mptcp."

// fields collects values.
type fields map[string]string

func (f fields) add(name, format string, args ...any) {
	if f[name] != "" {
		f[name] += ","
	}
	f[name] += fmt.Sprintf(format, args...)
}

func (f fields) mptcp(name, format string, args ...any) { f.add(mptcpPrefix+name, format, args...) }

// bit adds a flag.
func (f fields) bit(name string, set bool) {
	value := 0
	if set {
		value = 1
	}
	f.mptcp(name, "%d", value)
}

// Of returns the fields of a TCP packet that are not empty, by name. It fails if an MPTCP option is malformed.
func Of(p *packet.Packet) (map[string]string, error) {
	f := fields{}
	source, destination := "ip.src", "ip.dst"
	if p.V6 != nil {
		source, destination = "ipv6.src", "ipv6.dst"
	}
	f.add(source, "%v", p.Src())
	f.add(destination, "%v", p.Dst())
	t := p.TCP
	f.add("tcp.srcport", "%d", t.SrcPort)
	f.add("tcp.dstport", "%d", t.DstPort)
	f.add("tcp.seq_raw", "%d", t.Seq)
	f.add("tcp.ack_raw", "%d", t.Ack)
	f.add("tcp.flags", "0x%04x", uint16(t.Flags))
	f.add("tcp.window_size_value", "%d", t.Window)
	f.add("tcp.len", "%d", len(p.Payload)+p.Missing)
	for _, o := range t.Options {
		if err := f.option(o); err != nil {
			return f, err
		}
	}
	return f, nil
}

func (f fields) option(o packet.Option) error {
	f.add("tcp.option_kind", "%d", o.Kind)
	if size, ok := o.MSS(); ok {
		f.add("tcp.options.mss_val", "%d", size)
	}
	if shift, ok := o.WindowScale(); ok {
		f.add("tcp.options.wscale.shift", "%d", shift)
	}
	if value, echo, ok := o.Timestamps(); ok {
		f.add("tcp.options.timestamp.tsval", "%d", value)
		f.add("tcp.options.timestamp.tsecr", "%d", echo)
	}
	if blocks, ok := o.SACK(); ok {
		for _, b := range blocks {
			f.add("tcp.options.sack_le", "%d", b.Left)
			f.add("tcp.options.sack_re", "%d", b.Right)
		}
	}
	if o.Kind != packet.KindMPTCP {
		return nil
	}
	m, err := o.MPTCP()
	if err != nil {
		return err
	}
	subtype, _ := o.Subtype()
	f.mptcp("subtype", "%d", subtype)
	switch m := m.(type) {
	case packet.Capable:
		f.capable(m)
	case packet.JoinSYN, packet.JoinSYNACK, packet.JoinACK:
		f.join(m)
	case packet.DSS:
		f.dss(m)
	default:
		f.signal(m)
	}
	return nil
}

func (f fields) capable(m packet.Capable) {
	f.mptcp("version", "%d", m.Version)
	f.mptcp("flags", "0x%02x", m.Flags)
	f.bit("checksumreq.flags", m.Flags&packet.CapableChecksum != 0)
	f.bit("extensibility.flag", m.Flags&packet.CapableExtend != 0)
	if m.Version == 0 {
		f.bit("sha1.flag", m.Flags&packet.CapableHMAC != 0)
		f.mptcp("reserved.flag", "0x%02x", m.Flags>>1&0x1f)
	} else {
		f.bit("nomoresubflows.flag", m.Flags&packet.CapableNoJoin != 0)
		f.bit("sha256.flag", m.Flags&packet.CapableHMAC != 0)
		f.mptcp("reserved.flag", "0x%02x", m.Flags>>1&0x0f)
	}
	if m.Keys > 0 {
		f.mptcp("sendkey", "%d", m.Sender)
		f.add("mptcp.expected_token", "%d", m.Sender.Token(m.Version))
		f.add("mptcp.expected_idsn", "%d", m.Sender.InitialSequence(m.Version))
	}
	if m.Keys > 1 {
		f.mptcp("recvkey", "%d", m.Receiver)
	}
	if m.HasLength {
		f.mptcp("datalvllen", "%d", m.Length)
	}
	if m.HasChecksum {
		f.mptcp("checksum", "0x%04x", m.Checksum)
	}
}

func (f fields) join(m packet.MPTCP) {
	// tshark's flags are the whole byte, including the subtype.
	flags := func(low uint8) {
		f.mptcp("flags", "0x%02x", uint8(packet.SubtypeJoin)<<4|low)
		f.bit("backup.flag", low&packet.Backup != 0)
	}
	switch m := m.(type) {
	case packet.JoinSYN:
		flags(m.Flags)
		f.mptcp("addrid", "%d", m.AddressID)
		f.mptcp("recvtok", "%d", m.Token)
		f.mptcp("sendrand", "%d", m.Nonce)
	case packet.JoinSYNACK:
		flags(m.Flags)
		f.mptcp("addrid", "%d", m.AddressID)
		f.mptcp("sendtrunchmac", "%d", binary.BigEndian.Uint64(m.HMAC[:]))
		f.mptcp("sendrand", "%d", m.Nonce)
	case packet.JoinACK:
		f.mptcp("reserved", "0x%04x", m.Reserved)
		f.mptcp("sendhmac", "%x", m.HMAC)
	}
}

// dss leaves out the checksum, which tshark does not print.
func (f fields) dss(m packet.DSS) {
	f.mptcp("flags", "0x%02x", uint8(m.Flags))
	f.bit("datafin.flag", m.Flags&packet.DSSFinish != 0)
	f.bit("dseqn8.flag", m.Flags&packet.DSSMap8 != 0)
	f.bit("dseqnpresent.flag", m.Flags&packet.DSSMap != 0)
	f.bit("dataack8.flag", m.Flags&packet.DSSAck8 != 0)
	f.bit("dataackpresent.flag", m.Flags&packet.DSSAck != 0)
	if m.Flags&packet.DSSAck != 0 {
		f.mptcp("rawdataack", "%d", m.Ack)
	}
	if m.Flags&packet.DSSMap != 0 {
		f.mptcp("rawdataseqno", "%d", m.Sequence)
		f.mptcp("subflowseqno", "%d", m.Subflow)
		f.mptcp("datalvllen", "%d", m.Length)
	}
}

// signal adds the options that signal addresses, priorities and ends.
func (f fields) signal(m packet.MPTCP) {
	switch m := m.(type) {
	case packet.AddAddr:
		f.addAddr(m)
	case packet.RemoveAddr:
		f.add("mptcp.rm_addr.count", "%d", len(m.AddressIDs))
		for _, id := range m.AddressIDs {
			f.mptcp("addrid", "%d", id)
		}
	case packet.FastClose:
		f.mptcp("reserved", "0x%04x", m.Reserved)
		f.mptcp("recvkey", "%d", m.Receiver)
	case packet.Priority:
		f.mptcp("flags", "0x%02x", uint8(packet.SubtypePriority)<<4|m.Flags)
		f.bit("backup.flag", m.Flags&packet.Backup != 0)
		if m.HasAddressID {
			f.mptcp("addrid", "%d", m.AddressID)
		}
	case packet.Fail:
		f.mptcp("reserved", "0x%04x", m.Reserved)
		f.mptcp("rawdataseqno", "%d", m.Sequence)
	case packet.Reset:
		f.mptcp("flags", "0x%02x", uint8(packet.SubtypeReset)<<4|m.Flags)
		for i, name := range []string{"flag_U.flag", "flag_V.flag", "flag_W.flag", "flag_T.flag"} {
			f.bit(name, m.Flags&(0x8>>i) != 0)
		}
		f.mptcp("rst_reason", "0x%02x", m.Reason)
	}
}

func (f fields) addAddr(m packet.AddAddr) {
	if m.Version > 0 {
		f.bit("echo", m.Flags&packet.AddAddrEcho != 0)
	} else {
		f.mptcp("ipver", "%d", map[bool]int{true: 4, false: 6}[m.Address.Is4()])
	}
	f.mptcp("addrid", "%d", m.AddressID)
	if m.Address.Is4() {
		f.mptcp("ipv4", "%v", m.Address)
	} else {
		f.mptcp("ipv6", "%v", m.Address)
	}
	if m.HasPort {
		f.mptcp("port", "%d", m.Port)
	}
	if m.Version > 0 && m.Flags&packet.AddAddrEcho == 0 {
		f.mptcp("addaddrtrunchmac", "%d", binary.BigEndian.Uint64(m.HMAC[:]))
	}
}
