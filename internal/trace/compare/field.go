// Package compare compares a packet that was sent with quotes of it in ICMP errors, and locates the changes on
// the path. It is pure: it takes bytes and returns findings. For internal/trace and those below it.
//
// A quote shows a part of the packet, as the router received it: often the IP header and 8 bytes, sometimes
// everything. Each field has a state of its own at each hop: seen as sent, seen changed, or not seen. A change
// happened behind the last hop that saw the old value, and no further than the first hop that saw the new one.
package compare

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/detour-collective/dcol/internal/packet"
)

// Field names a part of a packet, such as "tcp.window" or "tcp.option.mss". The names are those of the JSON
// output.
type Field string

// Fields that have a name of their own. TCP options begin with OptionPrefix.
const (
	DSCP        Field = "ip.dscp"
	ECN         Field = "ip.ecn"
	Length      Field = "ip.length"
	ID          Field = "ip.id"
	Fragment    Field = "ip.fragment"
	FlowLabel   Field = "ip.flow"
	Protocol    Field = "ip.protocol"
	Source      Field = "ip.source"
	Destination Field = "ip.destination"
	IPOptions   Field = "ip.options"

	TCPSource      Field = "tcp.source"
	TCPDestination Field = "tcp.destination"
	Seq            Field = "tcp.seq"
	Ack            Field = "tcp.ack"
	Offset         Field = "tcp.offset"
	Reserved       Field = "tcp.reserved"
	FlagsField     Field = "tcp.flags"
	ECNFlags       Field = "tcp.ecn"
	Window         Field = "tcp.window"
	TCPChecksum    Field = "tcp.checksum"
	Urgent         Field = "tcp.urgent"

	UDPSource      Field = "udp.source"
	UDPDestination Field = "udp.destination"
	UDPLength      Field = "udp.length"
	UDPChecksum    Field = "udp.checksum"

	ICMPType     Field = "icmp.type"
	ICMPCode     Field = "icmp.code"
	ICMPChecksum Field = "icmp.checksum"
	ICMPRest     Field = "icmp.rest" // identifier and sequence number of echo requests

	Payload Field = "payload"
)

// OptionPrefix begins the names of TCP options.
const OptionPrefix = "tcp.option."

// Fields of some options.
const (
	MSS           Field = OptionPrefix + "mss"
	WindowScale   Field = OptionPrefix + "wscale"
	SACKPermitted Field = OptionPrefix + "sackp"
	SACK          Field = OptionPrefix + "sack"
	Timestamps    Field = OptionPrefix + "timestamp"
	FastOpen      Field = OptionPrefix + "tfo"
	Capable       Field = OptionPrefix + "mpcapable"
	Join          Field = OptionPrefix + "mpjoin"
	DSS           Field = OptionPrefix + "dss"
)

// IsOption reports whether the field is a TCP option.
func (f Field) IsOption() bool { return strings.HasPrefix(string(f), OptionPrefix) }

// Derived reports whether the field follows from others: a length or a checksum. A change of it is the
// consequence of another.
func (f Field) Derived() bool {
	switch f {
	case Length, Offset, TCPChecksum, UDPLength, UDPChecksum, ICMPChecksum:
		return true
	}
	return false
}

// checksum reports whether the field is a transport checksum.
func (f Field) checksum() bool { return f == TCPChecksum || f == UDPChecksum || f == ICMPChecksum }

var optionNames = map[uint8]string{
	packet.KindMSS: "mss", packet.KindWindowScale: "wscale", packet.KindSACKPermitted: "sackp", packet.KindSACK: "sack",
	packet.KindTimestamps: "timestamp", packet.KindMD5: "md5", packet.KindAO: "ao", packet.KindFastOpen: "tfo",
}

var subtypeNames = map[packet.Subtype]string{
	packet.SubtypeCapable: "mpcapable", packet.SubtypeJoin: "mpjoin", packet.SubtypeDSS: "dss",
	packet.SubtypeAddAddr: "addaddr", packet.SubtypeRemoveAddr: "removeaddr", packet.SubtypePriority: "mpprio",
	packet.SubtypeFail: "mpfail", packet.SubtypeFastClose: "mpfastclose", packet.SubtypeReset: "mptcprst",
}

// FieldOf returns the field of a TCP option.
func FieldOf(o packet.Option) Field {
	if name, ok := optionNames[o.Kind]; ok {
		return Field(OptionPrefix + name)
	}
	if sub, ok := o.Subtype(); ok {
		if name, ok := subtypeNames[sub]; ok {
			return Field(OptionPrefix + name)
		}
		return Field(fmt.Sprintf("%smptcp%d", OptionPrefix, sub))
	}
	if id, _, ok := o.Experiment(); ok {
		return Field(fmt.Sprintf("%sexperiment-%04x", OptionPrefix, id))
	}
	return Field(OptionPrefix + "kind" + strconv.Itoa(int(o.Kind)))
}

// Value is the content of a field. Absent options and payloads have Present false.
type Value struct {
	Present bool
	Raw     string // the bytes, to compare
	Text    string // to show
}

var absent Value

func number[T uint8 | uint16 | uint32](n T) Value {
	digits := strconv.FormatUint(uint64(n), 10)
	return text(digits, digits)
}

func text(raw, shown string) Value { return Value{Present: true, Raw: raw, Text: shown} }

func (v Value) equal(w Value) bool { return v.Present == w.Present && v.Raw == w.Raw }

// size returns the number of bytes of an option's or a payload's value.
func (v Value) size() int { return len(v.Raw) }

const shownBytes = 24

func showBytes(b []byte) string {
	printable := len(b) > 0
	for _, c := range b {
		if (c < ' ' || c > '~') && c != '\r' && c != '\n' {
			printable = false
		}
	}
	more := ""
	if len(b) > shownBytes {
		more = fmt.Sprintf("… (%d bytes)", len(b))
		b = b[:shownBytes]
	}
	if printable {
		return strconv.Quote(string(b)) + more
	}
	return hex.EncodeToString(b) + more
}

func optionValue(o packet.Option) Value {
	raw := string(o.Append(nil))
	if size, ok := o.MSS(); ok {
		return text(raw, strconv.Itoa(int(size)))
	}
	if shift, ok := o.WindowScale(); ok {
		return text(raw, strconv.Itoa(int(shift)))
	}
	if value, echo, ok := o.Timestamps(); ok {
		return text(raw, fmt.Sprintf("%d, echo %d", value, echo))
	}
	if blocks, ok := o.SACK(); ok {
		var parts []string
		for _, b := range blocks {
			parts = append(parts, fmt.Sprintf("%d-%d", b.Left, b.Right))
		}
		return text(raw, strings.Join(parts, " "))
	}
	if len(o.Data) == 0 {
		return text(raw, "present")
	}
	return text(raw, hex.EncodeToString(o.Data))
}

func flagsText(f packet.Flags) string {
	names := []struct {
		flag packet.Flags
		name string
	}{
		{packet.FIN, "FIN"}, {packet.SYN, "SYN"}, {packet.RST, "RST"}, {packet.PSH, "PSH"}, {packet.ACK, "ACK"},
		{packet.URG, "URG"}, {packet.ECE, "ECE"}, {packet.CWR, "CWR"}, {packet.AE, "AE"},
	}
	var set []string
	for _, n := range names {
		if f.Has(n.flag) {
			set = append(set, n.name)
		}
	}
	if len(set) == 0 {
		return "none"
	}
	return strings.Join(set, "+")
}
