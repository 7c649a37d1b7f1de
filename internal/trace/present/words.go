// Package present shows traces: as text for people, and as JSON for programs.
package present

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace/compare"
)

var labels = map[compare.Field]string{
	compare.DSCP: "DSCP", compare.ECN: "ECN bits of the IP header", compare.Length: "packet length", compare.ID: "IP identification",
	compare.Fragment: "fragment field", compare.FlowLabel: "flow label", compare.Protocol: "protocol number",
	compare.Source: "source address", compare.Destination: "destination address", compare.IPOptions: "IP options",
	compare.TCPSource: "source port", compare.TCPDestination: "destination port", compare.Seq: "sequence number",
	compare.Ack: "acknowledgement number", compare.Offset: "TCP header length", compare.Reserved: "reserved TCP bits",
	compare.FlagsField: "TCP flags", compare.ECNFlags: "ECN flags of TCP", compare.Window: "window", compare.TCPChecksum: "TCP checksum",
	compare.Urgent: "urgent pointer", compare.UDPSource: "source port", compare.UDPDestination: "destination port",
	compare.UDPLength: "UDP length", compare.UDPChecksum: "UDP checksum", compare.ICMPType: "ICMP type", compare.ICMPCode: "ICMP code",
	compare.ICMPChecksum: "ICMP checksum", compare.ICMPRest: "ICMP identifier and sequence number", compare.Payload: "payload",
	compare.MSS: "MSS", compare.WindowScale: "window scale", compare.SACKPermitted: "SACK permitted", compare.SACK: "SACK blocks",
	compare.Timestamps: "timestamps", compare.FastOpen: "TCP Fast Open", compare.Capable: "MP_CAPABLE (MPTCP)", compare.Join: "MP_JOIN (MPTCP)",
	compare.DSS: "DSS (MPTCP data)", compare.OptionPrefix + "experiment-dc01": "dcol's in-band option",
}

// Label names a field in words.
func Label(f compare.Field) string {
	base, number, repeated := strings.Cut(string(f), "#")
	label, ok := labels[compare.Field(base)]
	if !ok {
		label = "TCP option " + strings.TrimPrefix(base, compare.OptionPrefix)
	}
	if repeated {
		label += " (number " + number + ")"
	}
	return label
}

// What returns a description of a finding, as in "MSS changed from 1460 to 1380".
func What(f compare.Finding) string {
	label := Label(f.Field)
	switch {
	case f.Reverted:
		return "packet translated by a NAT, and changed back in quotes (the " + label + " in them does not fit)"
	case f.Unexplained && f.Field == compare.Length:
		return fmt.Sprintf("packet length changed from %s to %s: no quote shows what was removed or added", f.Sent.Text, f.Seen.Text)
	case f.Unexplained:
		return label + " changed: no quote shows what else did"
	case f.Field == compare.Seq:
		return fmt.Sprintf("sequence number moved by %d", f.Moved())
	}
	switch f.Kind() {
	case compare.Removed:
		if f.Padded {
			return label + " removed (overwritten by padding)"
		}
		return label + " removed"
	case compare.Added:
		return fmt.Sprintf("%s added: %s", label, f.Seen.Text)
	}
	return fmt.Sprintf("%s changed from %s to %s", label, f.Sent.Text, f.Seen.Text)
}

// Where returns the name of the interval, as in "between hop 2 (192.0.2.2) and hop 5 (192.0.2.5)".
func Where(f compare.Finding) string {
	after := "this host"
	if f.After > 0 {
		after = hopName(f.After, f.AfterAddr)
	}
	return fmt.Sprintf("between %s and %s", after, hopName(f.By, f.ByAddr))
}

func hopName(n int, addr netip.Addr) string {
	if !addr.IsValid() {
		return fmt.Sprintf("hop %d", n)
	}
	return fmt.Sprintf("hop %d (%v)", n, addr)
}

// ProbeText describes a packet in a line.
func ProbeText(p *packet.Packet) string {
	switch {
	case p.TCP != nil:
		kind := flags(p.TCP.Flags)
		text := fmt.Sprintf("TCP port %d, %s", p.TCP.DstPort, kind)
		return text + withOptions(p.TCP) + withPayload(p)
	case p.UDP != nil:
		return fmt.Sprintf("UDP port %d", p.UDP.DstPort) + withPayload(p)
	case p.ICMP != nil:
		return fmt.Sprintf("ICMP type %d", p.ICMP.Type) + withPayload(p)
	}
	return fmt.Sprintf("protocol %d", p.Protocol()) + withPayload(p)
}

func flags(f packet.Flags) string {
	v, _ := compare.Of(&packet.Packet{V4: &packet.IPv4{}, TCP: &packet.TCP{Flags: f, Offset: 5}}).Value(compare.FlagsField)
	return v.Text
}

func withOptions(h *packet.TCP) string {
	var names []string
	for _, o := range h.Options {
		if o.Kind == packet.KindNOP || o.Kind == packet.KindEnd {
			continue
		}
		name := Label(compare.FieldOf(o))
		if size, ok := o.MSS(); ok {
			name = fmt.Sprintf("MSS %d", size)
		}
		if shift, ok := o.WindowScale(); ok {
			name = fmt.Sprintf("window scale %d", shift)
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return ""
	}
	return " with " + strings.Join(names, ", ")
}

func withPayload(p *packet.Packet) string {
	if len(p.Payload) == 0 {
		return ""
	}
	return fmt.Sprintf(", %d bytes of payload", len(p.Payload))
}
