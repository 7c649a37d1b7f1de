package recipe

import (
	"context"
	"errors"
	"strings"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/compare"
	"github.com/detour-collective/dcol/internal/trace/present"
)

// unknownOptions returns options that are tried in every type of segment. Each option is sent in a packet of its own,
// so that a change of one does not hide a change of another.
func unknownOptions() []packet.Option {
	return []packet.Option{
		packet.MD5([16]byte{}), packet.AO(1, 1, make([]byte, 12)), packet.Experiment(inBandID, []byte{192, 0, 2, 7}),
		{Kind: packet.KindExperiment1, Data: []byte{0xf9, 0x89}}, {Kind: unassigned, Data: []byte{1, 2}},
	}
}

func synOptions() []packet.Option {
	return append([]packet.Option{
		packet.MSS(1460), packet.WindowScale(7), packet.SACKPermitted, packet.Timestamps(1, 0), capable(),
		packet.JoinSYN{AddressID: 1, Token: 1, Nonce: 2}.Option(), packet.FastOpen(nil),
	}, unknownOptions()...)
}

func synackOptions() []packet.Option {
	return append([]packet.Option{
		packet.MSS(1460), packet.WindowScale(7), packet.SACKPermitted, packet.Timestamps(1, 1),
		packet.Capable{Version: 1, Flags: packet.CapableHMAC, Keys: 1, Sender: 1}.Option(),
		packet.JoinSYNACK{AddressID: 1, Nonce: 2}.Option(), packet.FastOpen(make([]byte, 8)),
	}, unknownOptions()...)
}

// dataOptions returns the options to try with data. It leaves out options that only segments with SYN may have.
func dataOptions() []packet.Option {
	return append([]packet.Option{
		packet.Timestamps(1, 1), packet.SACK(packet.Block{Left: 1, Right: 2}),
		packet.Capable{Version: 1, Flags: packet.CapableHMAC, Keys: 2, Sender: 1, Receiver: 2, HasLength: true, Length: 1}.Option(),
		packet.DSS{Flags: packet.DSSAck | packet.DSSMap, Ack: 1, Sequence: 1, Subflow: 1, Length: 1}.Option(),
	}, unknownOptions()...)
}

// fates collects what becomes of options in one type of segment.
type fates struct {
	where         string // the type, for a sentence
	lost, dropped []string
	seen          int // the last hop that shows what becomes of them
}

// options tries options in SYNs, in SYN+ACKs and with data.
func options(ctx context.Context, s *Session) (*Verdict, error) {
	v := newVerdict()
	plain, err := s.syn(ctx, s.Port)
	if err != nil {
		return nil, err
	}
	syns, echoes, err := s.inSYNs(ctx, v, plain)
	if err != nil {
		return nil, err
	}
	v.see("%s.", capitalised(coverage(plain)))
	all := []fates{syns}
	if hops := before(plain); len(hops) > 0 {
		synacks, err := s.inSYNACKs(ctx, v, hops)
		if err != nil {
			return nil, err
		}
		data, err := s.inData(ctx, v, hops)
		if err != nil {
			return nil, err
		}
		all = append(all, synacks, data)
	}
	if echoes {
		v.see("The SYN+ACK repeats an option that nobody has assigned (kind %d): the server, or something before it, echoes what it does not understand.", unassigned)
	}
	return v.concludeOptions(all, echoes), nil
}

const passOptions = "Have the box there pass options that it does not know: hosts ignore those that they do not know (RFC 9293, MUST-6), and new ones cannot be used otherwise."

func (v *Verdict) concludeOptions(all []fates, echoes bool) *Verdict {
	var bad, good []string
	dropped := false
	for _, f := range all {
		if len(f.lost) > 0 {
			bad = append(bad, "removed or changed in "+f.where+": "+strings.Join(f.lost, ", "))
		}
		if len(f.dropped) > 0 {
			bad, dropped = append(bad, "dropped with "+f.where+": "+strings.Join(f.dropped, ", ")), true
		}
		if f.seen > 0 {
			good = append(good, f.where)
		}
	}
	last := all[0].seen
	switch {
	case dropped:
		return v.conclude(Blocked, Likely, "Packets with these options are dropped, or the options changed. %s.", capitalised(strings.Join(bad, "; "))).advise(passOptions)
	case len(bad) > 0:
		return v.conclude(Changed, Certain, "These options are %s.", strings.Join(bad, "; ")).advise("%s", optionsAdvice(all))
	case echoes:
		return v.conclude(Changed, Certain, "Unknown options are echoed, so an answer with an option does not show that the server knows it.").advise(serverOnly)
	case last == 0:
		return v.conclude(Unknown, Open, "Nothing shows what happens to options: no router quotes whole packets.")
	}
	return v.conclude(Good, Likely, "All options survive in %s at least as far as hop %d, the last that quotes whole packets.", enumerated(good), last)
}

// optionsAdvice says what to do if options are removed or changed. A change of the MSS alone does no harm.
func optionsAdvice(all []fates) string {
	for _, f := range all {
		for _, name := range f.lost {
			if name != present.Label(compare.MSS) {
				return passOptions
			}
		}
	}
	return keepMSS
}

// enumerated joins words as in a sentence.
func enumerated(words []string) string {
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " and " + words[n-1]
	}
	return strings.Join(words, "")
}

// inSYNs tries options in SYNs. echoes is set if the SYN+ACK has one that nobody knows.
func (s *Session) inSYNs(ctx context.Context, v *Verdict, plain *trace.Path) (f fates, echoes bool, err error) {
	f.where = "SYNs"
	if full := plain.FullQuotes(); len(full) > 0 {
		f.seen = last(full)
	}
	for _, o := range synOptions() {
		p, err := s.syn(ctx, s.Port, o)
		if err != nil {
			return f, false, err
		}
		field := compare.FieldOf(o)
		name := present.Label(field)
		switch {
		case len(v.found(p, field)) > 0:
			f.lost = append(f.lost, name)
		case p.Answer == nil && plain.Answer != nil && !expectsSilence(o):
			f.dropped = append(f.dropped, name)
			v.see("A SYN with %s is not answered; one without options is.", name)
		}
		if h, ok := accepted(p); ok && o.Kind == unassigned {
			_, echoes = h.Option(unassigned)
		}
	}
	return f, echoes, nil
}

// expectsSilence reports whether servers drop a SYN with the option: they verify signatures.
func expectsSilence(o packet.Option) bool { return o.Kind == packet.KindMD5 || o.Kind == packet.KindAO }

// inSYNACKs tries options in SYN+ACKs that this host sends towards the server. They end at routers, so the server does
// not get them. Middleboxes see no connection for them, and some drop them all.
func (s *Session) inSYNACKs(ctx context.Context, v *Verdict, hops []int) (fates, error) {
	port := s.freshPort()
	if err := s.Hold(port, s.Port); err != nil {
		return fates{}, err
	}
	return v.inSegments("SYN+ACKs", hops, synackOptions(), func(o []packet.Option) (*trace.Path, error) {
		h := packet.TCP{SrcPort: port, Seq: s.Random.Uint32(), Ack: s.Random.Uint32(), Flags: synack, Options: o}
		p, err := s.segment(s.Port, h, nil)
		if err != nil {
			return nil, err
		}
		return trace.Run(ctx, s.Net, p, trace.Options{Only: hops})
	})
}

// inData tries options with data of a connection, which ends at routers, too.
func (s *Session) inData(ctx context.Context, v *Verdict, hops []int) (fates, error) {
	offer := []packet.Option{packet.MSS(1460), packet.SACKPermitted, packet.Timestamps(1, 0)}
	c, err := s.connect(ctx, s.Port, offer, func(h *packet.TCP) []packet.Option {
		o, ok := h.Option(packet.KindTimestamps)
		if !ok {
			return nil
		}
		theirs, _, _ := o.Timestamps()
		return []packet.Option{packet.NOP, packet.NOP, packet.Timestamps(2, theirs)}
	})
	if errors.Is(err, errNoConnection) {
		v.see("The server accepts no connection at port %d, so options with data were not tried.", s.Port)
		return fates{where: "data"}, nil
	}
	if err != nil {
		return fates{}, err
	}
	defer c.close()
	return v.inSegments("data", hops, dataOptions(), func(o []packet.Option) (*trace.Path, error) {
		return c.trace(ctx, hops, packet.TCP{Flags: packet.PSH, Options: o}, []byte("d"))
	})
}

// inSegments tries options in segments that end at hops. A segment without options shows which hops quote.
func (v *Verdict) inSegments(where string, hops []int, tried []packet.Option, send func([]packet.Option) (*trace.Path, error)) (fates, error) {
	f := fates{where: where}
	plain, err := send(nil)
	if err != nil {
		return f, err
	}
	if f.seen = reached(plain); f.seen < last(hops) {
		v.see("%s without options are seen as far as hop %d, and not behind: boxes drop them whatever options they have, or routers limit their answers.", capitalised(where), f.seen)
	}
	for _, o := range tried {
		field := compare.FieldOf(o)
		name := present.Label(field)
		p, err := send([]packet.Option{o})
		if err != nil {
			return f, err
		}
		if len(v.found(p, field)) > 0 {
			f.lost = append(f.lost, name)
			continue
		}
		if reached(p) >= f.seen {
			continue
		}
		dropped, err := confirmed(o, send)
		if err != nil {
			return f, err
		}
		if dropped {
			f.dropped = append(f.dropped, name)
			v.see("%s with %s are seen as far as hop %d only, those without options as far as hop %d.", capitalised(where), name, reached(p), f.seen)
		}
	}
	return f, nil
}

// confirmed repeats an apparent drop, and then shows again that segments without options get further: a router that
// limits its rate leaves gaps, too.
func confirmed(o packet.Option, send func([]packet.Option) (*trace.Path, error)) (bool, error) {
	again, err := send([]packet.Option{o})
	if err != nil {
		return false, err
	}
	plain, err := send(nil)
	if err != nil {
		return false, err
	}
	return reached(again) < reached(plain), nil
}
