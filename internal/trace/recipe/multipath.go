package recipe

import (
	"context"
	"slices"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/compare"
)

// capable is MP_CAPABLE of a SYN, of version 1.
func capable() packet.Option {
	return packet.Capable{Version: 1, Flags: packet.CapableHMAC}.Option()
}

// unassigned is a kind of option that nobody should know. A host that returns it echoes unknown options.
const unassigned = 77

// echoes reports whether a SYN+ACK repeats MP_CAPABLE as it was sent: a server that speaks MPTCP adds its key.
func echoes(h *packet.TCP) bool {
	o, ok := h.Option(packet.KindMPTCP)
	if !ok {
		return false
	}
	m, err := o.MPTCP()
	c, isCapable := m.(packet.Capable)
	return err != nil || !isCapable || c.Keys == 0
}

// key returns the server's key of a SYN+ACK.
func key(h *packet.TCP) (k packet.Key, ok bool) {
	o, ok := h.Option(packet.KindMPTCP)
	if !ok {
		return 0, false
	}
	m, err := o.MPTCP()
	c, isCapable := m.(packet.Capable)
	if err != nil || !isCapable || c.Keys != 1 {
		return 0, false
	}
	return c.Sender, true
}

// Advice for paths that interfere with MPTCP.
const (
	passCapable = "Have the box there pass TCP option 30 (MPTCP) as it is. If it is near the server, a converter of the collective avoids it."
	passJoins   = "Have the box there pass TCP option 30 (MPTCP) in all packets, also in SYNs that begin a further subflow. A detour by a tunnel hides them from boxes before its waypoint."
	passData    = "Have the box there pass TCP option 30 (MPTCP) in segments with data, and leave data and segments as they are: switch off its inspection of this traffic."
	serverOnly  = "If it is the server, a converter of the collective speaks MPTCP in its place."
)

// mptcp traces MPTCP's options in a SYN, in a join and with data of a connection.
func mptcp(ctx context.Context, s *Session) (*Verdict, error) {
	v := newVerdict()
	plain, err := s.syn(ctx, s.Port, packet.MSS(1460))
	if err != nil {
		return nil, err
	}
	v.see("A plain SYN is answered by %s.", answers(plain))
	first, err := s.syn(ctx, s.Port, packet.MSS(1460), packet.SACKPermitted, capable())
	if err != nil {
		return nil, err
	}
	v.see("A SYN with MP_CAPABLE is answered by %s; %s.", answers(first), coverage(first))
	removed := v.found(first, compare.Capable)
	if len(removed) > 0 {
		return v.conclude(Changed, Certain, "MPTCP falls back to TCP: MP_CAPABLE is changed or removed on the way to the server.").advise(passCapable), nil
	}
	answer, ok := accepted(first)
	if !ok {
		if _, plainOK := accepted(plain); plainOK {
			return v.conclude(Blocked, Likely, "MPTCP does not get through: the server answers a plain SYN, but SYNs with MP_CAPABLE are lost%s. Connections begin late, after the kernel has tried again without.", behind(plain, first)).advise(passCapable), nil
		}
		if concluded, err := s.joins(ctx, v, plain, packet.JoinSYN{AddressID: 1, Token: s.Random.Uint32(), Nonce: s.Random.Uint32()}, false); concluded || err != nil {
			return v, err
		}
		return v.conclude(Unknown, Open, "The server accepts no connection at port %d, so nothing is known of what it returns. No router saw MP_CAPABLE or MP_JOIN changed.", s.Port), nil
	}
	if echoes(answer) {
		return v.conclude(Changed, Certain, "MPTCP falls back to TCP: the server, or something before it, repeats options that it does not understand.").advise(serverOnly), nil
	}
	server, ok := key(answer)
	if !ok {
		return v.conclude(Unknown, Likely, "MPTCP falls back to TCP: the SYN+ACK has no MP_CAPABLE. The server does not speak MPTCP, or the option is removed behind the last router that quotes whole packets, or on the way back.").advise(serverOnly), nil
	}
	v.see("The SYN+ACK has MP_CAPABLE with the server's key.")
	if concluded, err := s.joins(ctx, v, first, packet.JoinSYN{AddressID: 1, Token: server.Token(1), Nonce: s.Random.Uint32()}, true); concluded || err != nil {
		return v, err
	}
	return s.multipathData(ctx, v, first)
}

const onePath = "MPTCP has one path only: "

// joins traces with a SYN that joins an unknown connection. It concludes if that does not get through. plain is the trace
// with a SYN that the destination answers, if it answers any. speaks is set if the server is known to speak MPTCP: it then
// refuses such a join (RFC 8684, 3.2), and accepts it only as a plain SYN.
func (s *Session) joins(ctx context.Context, v *Verdict, plain *trace.Path, o packet.JoinSYN, speaks bool) (concluded bool, err error) {
	join, err := s.syn(ctx, s.Port, packet.MSS(1460), o.Option())
	if err != nil {
		return false, err
	}
	v.see("A SYN with MP_JOIN of an unknown connection is answered by %s.", answers(join))
	if len(v.found(join, compare.Join)) > 0 {
		v.conclude(Changed, Certain, onePath+"MP_JOIN is changed or removed, so no further subflow comes up.").advise(passJoins)
		return true, nil
	}
	answer, accepts := accepted(join)
	confidence, earlier := nearer(join, plain)
	switch {
	case plain.Answer == nil:
		return false, nil
	case join.Answer == nil:
		v.conclude(Blocked, Likely, onePath+"SYNs with MP_JOIN are lost%s, so no further subflow comes up.", behind(plain, join)).advise(passJoins)
	case earlier:
		v.conclude(Blocked, confidence, onePath+"something resets SYNs with MP_JOIN at hop %d, before the server at hop %d.", join.Distance, plain.Distance).advise(passJoins)
	case speaks && accepts && !hasJoin(answer):
		v.conclude(Changed, Likely, onePath+"MP_JOIN does not arrive. The server accepts its SYN as a plain one, so the option is removed behind the last router that quotes whole packets.").advise(passJoins)
	default:
		return false, nil
	}
	return true, nil
}

// hasJoin reports whether a SYN+ACK accepts a join.
func hasJoin(h *packet.TCP) bool {
	return slices.ContainsFunc(h.Options, func(o packet.Option) bool { return compare.FieldOf(o) == compare.Join })
}

// request is the data of a recipe's connection. The server answers the whole of it.
const request, requestEnd = "GET / HTTP/1.0\r\n", "\r\n"

// multipathData exchanges data on a connection of MPTCP, with each router that quotes whole packets and with the server,
// and begins a second subflow.
func (s *Session) multipathData(ctx context.Context, v *Verdict, first *trace.Path) (*Verdict, error) {
	c, err := s.connectMultipath(ctx)
	if err != nil {
		return nil, err
	}
	defer c.close()
	if hops := before(first); len(hops) > 0 {
		p, err := c.trace(ctx, hops, c.segmentOf([]byte(request)), []byte(request))
		if err != nil {
			return nil, err
		}
		if len(v.found(p, compare.DSS, compare.Payload)) > 0 {
			return v.conclude(Changed, Certain, "MPTCP falls back to TCP when data flows: DSS, or the data, is changed or removed.").advise(passData), nil
		}
	}
	acked, err := c.deliver(ctx, []byte(request))
	if err != nil {
		return nil, err
	}
	if acked && !c.reset && !c.noJoins {
		answer, err := c.join(ctx)
		if err != nil || v.subflow(answer) {
			return v, err
		}
	}
	if acked && !c.reset {
		if acked, err = c.deliver(ctx, []byte(requestEnd)); err != nil {
			return nil, err
		}
	}
	if !acked {
		v.see("The server acknowledges data without a data acknowledgement, or not at all.")
		if c.back.arrived() && c.back.mapping() == unmapped {
			v.see("The server's data comes without a mapping (DSS).")
		}
		if c.reset {
			return v.conclude(Changed, Likely, "MPTCP dies when data flows: the server resets the connection.").advise(passData), nil
		}
		return v.conclude(Changed, Likely, "MPTCP falls back to TCP when data flows: no data acknowledgement comes back.").advise(passData), nil
	}
	v.see("The server acknowledges data by a data acknowledgement.")
	if err := c.receive(ctx); err != nil {
		return nil, err
	}
	return v.wayBack(c.back), nil
}

// subflow adds the answer to a second subflow. It concludes if the path prevents it.
func (v *Verdict) subflow(answer joined) (concluded bool) {
	switch answer {
	case stripped:
		v.conclude(Changed, Likely, onePath+"the server's SYN+ACK to a second subflow of a connection comes without MP_JOIN, which is removed on the way back.").advise(passJoins)
		return true
	case forged:
		v.conclude(Changed, Likely, onePath+"MP_JOIN of the server's SYN+ACK to a second subflow does not fit the connection's keys, so it is changed on the way back.").advise(passJoins)
		return true
	case right:
		v.see("The server accepts a second subflow of a connection, with MP_JOIN as it should be.")
	case refused:
		v.see("The server accepts no second subflow of the connection: it has closed it, or allows none.")
	}
	return false
}

// wayBack concludes from the data that the server has sent.
func (v *Verdict) wayBack(back download) *Verdict {
	const works = "MPTCP works: the first subflow, MP_JOIN's SYN, which the server answers as it must, and data "
	if !back.arrived() {
		v.see("The server sends no data, which would show what becomes of its mappings.")
		return v.conclude(Good, Likely, works+"to the server, which acknowledges it as MPTCP does.")
	}
	const server = " when the server sends data: "
	switch back.mapping() {
	case infinite:
		return v.conclude(Changed, Likely, "MPTCP falls back to TCP"+server+"the server itself does so, by an infinite mapping.")
	case unmapped:
		return v.conclude(Changed, Likely, "MPTCP falls back to TCP"+server+"its segments have no DSS, which is removed on the way back.").advise(passData)
	case misfitting:
		return v.conclude(Changed, Likely, "MPTCP dies"+server+"DSS does not fit the segments, which are changed, joined or moved on the way back.").advise(passData)
	case corrupted:
		return v.conclude(Changed, Likely, "MPTCP falls back to TCP"+server+"the data does not fit DSS's checksum, so it is changed on the way back.").advise(passData)
	}
	v.see("The server's first %d bytes of data come with the mapping (DSS) that they should have.", len(back.payload))
	return v.conclude(Good, Certain, works+"in both directions.")
}

// inBandID is the experiment of dcol's option that names a server to a waypoint.
const inBandID = 0xdc01

func inBand(ctx context.Context, s *Session) (*Verdict, error) {
	field := compare.FieldOf(packet.Experiment(inBandID, make([]byte, 4)))
	server := packet.Experiment(inBandID, []byte{192, 0, 2, 7}) // an address of no host (RFC 5737)
	return s.survives(ctx, "dcol's in-band option", field, server, "in-band detours do not come up on this path.",
		"Nothing: the agent then uses detours of another kind.")
}

// survives asks whether a SYN's option gets through. otherwise and advice are for the case that it does not.
func (s *Session) survives(ctx context.Context, name string, field compare.Field, o packet.Option, otherwise, advice string) (*Verdict, error) {
	v := newVerdict()
	plain, err := s.syn(ctx, s.Port, packet.MSS(1460))
	if err != nil {
		return nil, err
	}
	p, err := s.syn(ctx, s.Port, packet.MSS(1460), o)
	if err != nil {
		return nil, err
	}
	v.see("A plain SYN is answered by %s, one with the option by %s; %s.", answers(plain), answers(p), coverage(p))
	if len(v.found(p, field)) > 0 {
		return v.conclude(Changed, Certain, "%s is removed or changed: %s", name, otherwise).advise("%s", advice), nil
	}
	switch {
	case plain.Answer != nil && p.Answer == nil:
		return v.conclude(Blocked, Likely, "SYNs with %s are dropped%s: %s", name, behind(plain, p), otherwise).advise("%s", advice), nil
	case len(p.FullQuotes()) == 0:
		return v.conclude(Unknown, Open, "Nothing shows whether %s gets through: no router quotes whole packets.", name), nil
	}
	full := p.FullQuotes()
	return v.conclude(Good, Likely, "%s gets through at least as far as hop %d, the last that quotes whole packets.", name, full[len(full)-1]), nil
}

func tfo(ctx context.Context, s *Session) (*Verdict, error) {
	return s.survives(ctx, "TCP Fast Open", compare.FastOpen, packet.FastOpen(nil), "connections begin without it.",
		"Nothing: that costs a round trip for each connection.")
}
