// Package capture reads packets from pcap and pcapng files, plain or compressed by gzip or zstd, and
// merges the files of one capture in the order of time. It reads large blocks and allocates nothing
// for a packet.
package capture

import "fmt"

// LinkType is a type of link layer (https://www.tcpdump.org/linktypes.html).
type LinkType uint16

// Link layers that Packet.IP knows.
const (
	LinkNull     LinkType = 0
	LinkEthernet LinkType = 1
	LinkPPP      LinkType = 9
	LinkRawBSD   LinkType = 12
	LinkRawOpen  LinkType = 14
	LinkRaw      LinkType = 101
	LinkLoop     LinkType = 108
	LinkLinux    LinkType = 113
	LinkIPv4     LinkType = 228
	LinkIPv6     LinkType = 229
	LinkLinux2   LinkType = 276
)

// Packet is a captured frame.
type Packet struct {
	Time   int64 // nanoseconds since 1970
	Data   []byte
	Length int // of the frame before it was cut to the snap length
	Link   LinkType
}

// Problem is damage that ended the reading of one file. The others are read on.
type Problem struct {
	File string
	Err  error
}

func (p Problem) Error() string { return fmt.Sprintf("%s: %v", nameOf(p.File), p.Err) }
