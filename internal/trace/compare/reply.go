package compare

import (
	"slices"

	"github.com/detour-collective/dcol/internal/packet"
)

// Reply compares a SYN with the SYN+ACK that answers it. A server repeats window scale, SACK permitted, timestamps and
// MP_CAPABLE if it uses them, each with a value of its own, and only if they were in the SYN that it got.
type Reply struct {
	Unanswered []Field // options of the SYN that are not in the SYN+ACK
	Unasked    []Field // options of the SYN+ACK that were not in the SYN
	// SentMSS and MSS are the maximum segment sizes of the SYN and the SYN+ACK, 0 if there is none.
	SentMSS, MSS uint16
	// Echoed is set if MP_CAPABLE came back without a key of the server's: whatever sent it does not speak MPTCP.
	Echoed bool
}

// answered are the options that a server repeats if it uses them.
var answered = []Field{WindowScale, SACKPermitted, Timestamps, Capable}

// Reply compares the packet, if it is a SYN, with an answer, if that is a SYN+ACK.
func (s *Sent) Reply(answer *packet.Packet) (r Reply, ok bool) {
	const both = packet.SYN | packet.ACK
	syn, err := packet.Parse(s.bytes)
	if err != nil || syn.TCP == nil || answer.TCP == nil || !answer.TCP.Flags.Has(both) || syn.TCP.Flags&both != packet.SYN {
		return r, false
	}
	sent, got := optionsOf(syn.TCP), optionsOf(answer.TCP)
	for _, f := range answered {
		switch _, asks := sent[f]; {
		case asks && !has(got, f):
			r.Unanswered = append(r.Unanswered, f)
		case !asks && has(got, f):
			r.Unasked = append(r.Unasked, f)
		}
	}
	r.SentMSS, _ = sent[MSS].MSS()
	r.MSS, _ = got[MSS].MSS()
	r.Echoed = has(sent, Capable) && has(got, Capable) && !hasKey(got[Capable], sent[Capable])
	return r, true
}

func optionsOf(h *packet.TCP) map[Field]packet.Option {
	all := map[Field]packet.Option{}
	for _, o := range slices.Backward(h.Options) {
		all[FieldOf(o)] = o // the first counts
	}
	return all
}

func has(all map[Field]packet.Option, f Field) bool { _, ok := all[f]; return ok }

// hasKey reports whether an answer's MP_CAPABLE has a key that is not the SYN's (in version 0, the SYN has one, too).
func hasKey(answer, syn packet.Option) bool {
	m, err := answer.MPTCP()
	c, ok := m.(packet.Capable)
	return err == nil && ok && c.Keys > 0 && !slices.Equal(answer.Data, syn.Data)
}
