// Package middlebox imitates real middleboxes and routers, for networks of the lab. A Box changes, drops or answers
// packets that a host forwards: behaviour.go has the kinds that change packets, connection.go those that translate or
// answer. A Router sends ICMP errors in the host's place, and decides which part of a packet they quote. Both take and
// return bytes. They do not read the clock or touch the system.
//
// The thesis behind internal/trace used elements of the Click router for the same purpose.
package middlebox

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
)

// Kind selects the behaviour of a middlebox.
type Kind string

// The kinds. docs/lab.md names the real boxes that they imitate.
const (
	None             Kind = ""
	RemoveMPTCP      Kind = "remove-mptcp"        // removes MPTCP's options, and the room they took
	PadMPTCP         Kind = "pad-mptcp"           // overwrites MPTCP's options by NOPs
	RemoveJoins      Kind = "remove-joins"        // overwrites MP_JOIN only
	DropJoins        Kind = "drop-joins"          // drops SYNs that have MP_JOIN
	RefuseJoins      Kind = "refuse-joins"        // resets them in the server's place
	RemoveDataMPTCP  Kind = "remove-data-mptcp"   // overwrites MPTCP's options, but not in SYNs
	RemoveServerDSS  Kind = "remove-server-dss"   // overwrites DSS in what the server sends
	RemoveServerJoin Kind = "remove-server-join"  // overwrites MP_JOIN in what the server sends
	RemoveServerMaps Kind = "remove-server-maps"  // overwrites DSS in the server's segments with data only
	RemoveUnknown    Kind = "remove-unknown"      // overwrites all options in SYNs but the classic ones
	DropUnknown      Kind = "drop-unknown"        // drops SYNs that have others than the classic ones
	RemoveScale      Kind = "remove-window-scale" // overwrites the window scale
	RemoveTimestamps Kind = "remove-timestamps"   // overwrites timestamps
	ClampMSS         Kind = "clamp-mss"           // lowers the maximum segment size to 1380
	AddMSS           Kind = "add-mss"             // adds a maximum segment size of 1380 where there is none
	RandomiseSeq     Kind = "randomise-seq"       // moves sequence numbers, and those in SACK blocks
	RandomiseSeqOnly Kind = "randomise-seq-only"  // moves sequence numbers, but not those in SACK blocks
	ClearECN         Kind = "clear-ecn"           // clears the bits of ECN in IP's and TCP's header
	Split            Kind = "split"               // splits segments of more than 536 bytes of payload
	Join             Kind = "join"                // joins a segment with the one behind it
	ChangePayload    Kind = "change-payload"      // overwrites the name of Accept-Encoding in HTTP's requests
	FTPGateway       Kind = "ftp-gateway"         // replaces the address in FTP's PORT command
	NAT              Kind = "nat-userspace"       // translates the source, and back in quotes
	NATOpaque        Kind = "nat-opaque"          // translates the source, but not back in quotes
	Proxy            Kind = "proxy"               // accepts connections to port 80 in the server's place
	Refuse           Kind = "refuse"              // resets connections in the server's place
	EchoOptions      Kind = "echo-options"        // makes SYN+ACKs repeat the SYN's unknown options
)

// Kinds returns all there are.
func Kinds() []Kind {
	return []Kind{
		RemoveMPTCP, PadMPTCP, RemoveJoins, DropJoins, RefuseJoins, RemoveDataMPTCP, RemoveServerDSS, RemoveServerMaps, RemoveServerJoin,
		RemoveUnknown, DropUnknown, RemoveScale, RemoveTimestamps, ClampMSS, AddMSS, RandomiseSeq, RandomiseSeqOnly, ClearECN, Split, Join, ChangePayload, FTPGateway, NAT, NATOpaque, Proxy,
		Refuse, EchoOptions,
	}
}

// movesBy begins the kinds that move sequence numbers by a given number of bytes, ahead or back, and leave SACK blocks as
// they are: "move-seq-only=-1000".
const movesBy = "move-seq-only="

// moves returns the number of a kind that begins with movesBy.
func (k Kind) moves() (offset int32, ok bool) {
	text, ok := strings.CutPrefix(string(k), movesBy)
	n, err := strconv.ParseInt(text, 10, 32)
	return int32(n), ok && err == nil
}

// Validate reports an unknown kind.
func (k Kind) Validate() error {
	if _, moves := k.moves(); !moves && k != None && !slices.Contains(Kinds(), k) {
		return fmt.Errorf("middlebox %q is unknown", k)
	}
	return nil
}

// Box is a middlebox. It keeps the state of connections, and is for one goroutine.
type Box struct {
	kind  Kind
	pass  func(*Box, *packet.Packet, *result) // nil: none
	own   []netip.Addr                        // of the host
	state state
}

// state holds the memory of stateful kinds.
type state struct {
	random *rand.Rand
	flows  map[flow]*memory
}

// mostFlows bounds the state: the oldest connections of a test do not matter.
const mostFlows = 65536

// New makes a middlebox of a host with addresses. The seed decides random numbers.
func New(kind Kind, own []netip.Addr, seed uint64) *Box {
	pass := behaviours[kind]
	if offset, ok := kind.moves(); ok {
		pass = func(b *Box, p *packet.Packet, r *result) { moveSeqBy(b, p, r, uint32(offset)) }
	}
	return &Box{kind: kind, pass: pass, own: own, state: state{random: rand.New(rand.NewPCG(seed, 0x6d626f78)), flows: map[flow]*memory{}}}
}

// flow is a connection, seen from the host that began it.
type flow struct{ from, to netip.AddrPort }

// memory holds a box's state of one connection.
type memory struct {
	moved   uint32          // added to sequence numbers of the host that began it
	grown   uint32          // bytes by which its payload has grown
	behind  uint32          // sequence number from which that applies
	changed bool            // the payload was
	port    uint16          // outside, of a NAT
	options []packet.Option // of the SYN
	held    *packet.Packet  // waits for the segment behind it
	seq     uint32          // of the box, where it answers itself
}

// of returns the memory of a packet's connection, and whether the packet comes from the host that began it. A
// packet whose connection is not known begins one.
func (s *state) of(p *packet.Packet) (m *memory, forward bool) {
	there := flow{p.From(), p.To()}
	if m := s.flows[there]; m != nil {
		return m, true
	}
	if m := s.flows[flow{there.to, there.from}]; m != nil {
		return m, false
	}
	if len(s.flows) >= mostFlows {
		clear(s.flows)
	}
	m = &memory{moved: s.random.Uint32() | 1, port: uint16(20000 + s.random.IntN(40000)), seq: s.random.Uint32()}
	s.flows[there] = m
	return m, true
}

// Pass handles a packet that the host forwards. It returns the packets that go on, and those that go back to where
// the packet came from.
func (b *Box) Pass(raw []byte) (on, back [][]byte) {
	unchanged := [][]byte{raw}
	if b.kind == None {
		return unchanged, nil
	}
	p, err := packet.Parse(slices.Clone(raw))
	if err != nil || p == nil {
		return unchanged, nil
	}
	if slices.Contains(b.own, p.Src()) && !b.translates() {
		return unchanged, nil // the host's own
	}
	if b.pass == nil {
		return unchanged, nil
	}
	r := &result{p: p}
	b.pass(b, p, r)
	if !r.touched {
		return unchanged, r.encode(r.back)
	}
	return r.encode(r.on), r.encode(r.back)
}

func (b *Box) translates() bool { return b.kind == NAT || b.kind == NATOpaque }

// result collects the outcome for a packet. If touched is false, the packet goes on as it is.
type result struct {
	p       *packet.Packet
	touched bool
	on      []*packet.Packet
	back    []*packet.Packet
}

func (r *result) drop()                        { r.touched = true }
func (r *result) change()                      { r.replace(r.p) }
func (r *result) replace(ps ...*packet.Packet) { r.touched, r.on = true, append(r.on, ps...) }
func (r *result) answer(p *packet.Packet)      { r.back = append(r.back, p) }

func (*result) encode(ps []*packet.Packet) (all [][]byte) {
	for _, p := range ps {
		ttl := hops(p)
		if err := p.Seal(); err != nil {
			continue // options do not fit: a real box would lose it, too
		}
		setHops(p, ttl)
		all = append(all, p.Bytes())
	}
	return all
}

func hops(p *packet.Packet) uint8 {
	if p.V4 != nil {
		return p.V4.TTL
	}
	return p.V6.HopLimit
}

func setHops(p *packet.Packet, n uint8) {
	if p.V4 != nil {
		p.V4.TTL = n
		p.V4.SetChecksum()
	} else {
		p.V6.HopLimit = n
	}
}

// Quotes selects the part of a packet that a router quotes in an ICMP error.
type Quotes string

// The kinds of quotes.
const (
	QuoteKernel Quotes = ""     // what the host's kernel quotes
	Quote8      Quotes = "8"    // the IP header and 8 bytes (RFC 792)
	Quote128    Quotes = "128"  // 128 bytes, and an extension (RFC 4884)
	QuoteAll    Quotes = "all"  // all, up to 576 bytes (RFC 1812)
	QuoteMPLS   Quotes = "mpls" // 128 bytes, and labels of MPLS (RFC 4950)
)

// ICMP selects how a router sends ICMP errors.
type ICMP string

// The kinds of answers.
const (
	ICMPAlways  ICMP = ""
	ICMPSilent  ICMP = "silent"        // never
	ICMPLimited ICMP = "limited"       // one a second
	ICMPOther   ICMP = "other-address" // from an address that is not on the path
)

// AllQuotes and AllICMP return all kinds but the default.
func AllQuotes() []Quotes { return []Quotes{Quote8, Quote128, QuoteAll, QuoteMPLS} }

// AllICMP returns all kinds but the default.
func AllICMP() []ICMP { return []ICMP{ICMPSilent, ICMPLimited, ICMPOther} }

// Validate reports an unknown kind.
func (q Quotes) Validate() error {
	if q != QuoteKernel && !slices.Contains(AllQuotes(), q) {
		return fmt.Errorf("quotes %q is unknown", q)
	}
	return nil
}

// Validate reports an unknown kind.
func (i ICMP) Validate() error {
	if i != ICMPAlways && !slices.Contains(AllICMP(), i) {
		return fmt.Errorf("icmp %q is unknown", i)
	}
	return nil
}

// Router sends ICMP errors in place of a host's kernel.
type Router struct {
	quotes Quotes
	icmp   ICMP
	own    []netip.Addr
	last   time.Duration // of the last error
	sent   bool
}

// NewRouter makes a router of a host with addresses.
func NewRouter(quotes Quotes, icmp ICMP, own []netip.Addr) *Router {
	return &Router{quotes: quotes, icmp: icmp, own: own}
}

// Expire handles a packet that arrives at the host at an address of it, at a time since any epoch. If its time
// to live ends there, and the router answers instead of the kernel, expired is true and reply is the answer, nil
// if there is none.
func (r *Router) Expire(raw []byte, at [2]netip.Addr, now time.Duration) (reply []byte, expired bool) {
	if r.quotes == QuoteKernel && r.icmp == ICMPAlways {
		return nil, false
	}
	p, err := packet.Parse(raw)
	if p == nil || err != nil || hops(p) > 1 || slices.Contains(r.own, p.Dst()) {
		return nil, false
	}
	if r.icmp == ICMPSilent || isError(p) {
		return nil, true
	}
	const interval = time.Second
	if r.icmp == ICMPLimited && r.sent && now-r.last < interval {
		return nil, true
	}
	r.last, r.sent = now, true
	return r.exceeded(p, raw, at), true
}

// isError reports whether a packet is an ICMP error, about which there are none.
func isError(p *packet.Packet) bool {
	_, err := p.Quote()
	return err == nil
}

// elsewhere are the addresses of routers that answer from another one.
var elsewhere = [2]netip.Addr{netip.MustParseAddr("100.64.9.9"), netip.MustParseAddr("fd99::9")}

func (r *Router) exceeded(p *packet.Packet, raw []byte, at [2]netip.Addr) []byte {
	if r.icmp == ICMPOther {
		at = elsewhere
	}
	var header int
	reply := &packet.Packet{ICMP: &packet.ICMP{Type: packet.TimeExceeded}}
	most := 576 - 28
	if p.V4 != nil {
		header = int(p.V4.IHL) * 4
		reply.V4 = &packet.IPv4{TTL: 64, Src: at[0], Dst: p.Src()}
	} else {
		header, most = 40, 1280-48
		reply.ICMP.Type = packet.V6TimeExceeded
		reply.V6 = &packet.IPv6{HopLimit: 64, Src: at[1], Dst: p.Src()}
	}
	quoted := raw[:min(len(raw), most)]
	var objects []packet.ExtensionObject
	switch r.quotes {
	case Quote8:
		quoted = raw[:min(len(raw), header+8)]
	case Quote128:
		quoted = raw[:min(len(raw), 128)]
		objects = []packet.ExtensionObject{{Class: 2, Type: 0, Data: []byte{0, 0, 0, 1}}} // interface information (RFC 5837)
	case QuoteMPLS:
		quoted = raw[:min(len(raw), 128)]
		objects = []packet.ExtensionObject{{Class: packet.ClassMPLS, Type: 1, Data: []byte{0x10, 0x00, 0x11, 0xff}}}
	}
	if reply.SetQuote(slices.Clone(quoted), objects...) != nil || reply.Seal() != nil {
		return nil
	}
	return reply.Bytes()
}
