package resets

import (
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/deadline"
	"github.com/detour-collective/dcol/internal/packet"
)

// repeatAfter are the times after the first RST at which it is sent again. A client asks for another RST at most twice a
// second (Linux: tcp_invalid_ratelimit), so the last copies come after it may ask again.
var repeatAfter = []time.Duration{
	50 * time.Millisecond, 150 * time.Millisecond, 350 * time.Millisecond, 750 * time.Millisecond, 1550 * time.Millisecond,
}

// answerFor is the time for which a client's packets on a reset subflow are answered with MP_FASTCLOSE.
const answerFor = time.Minute

// repeats decides when which RST is sent.
type repeats struct {
	resets map[flow]*deadline.Entry[*reset]
	queue  *deadline.Queue[*reset]
}

// reset is an RST with MP_FASTCLOSE that the kernel has sent.
type reset struct {
	flow    flow
	segment []byte // an IP packet
	first   time.Time
	copies  int // that were sent because they were due
}

func newRepeats() *repeats {
	return &repeats{resets: make(map[flow]*deadline.Entry[*reset]), queue: deadline.New[*reset](nil)}
}

// heard takes an RST that the kernel has sent, or wanted to send. It returns what is to be sent at once; nil: nothing.
func (r *repeats) heard(b []byte, now time.Time) *packet.Packet {
	p, err := packet.Parse(b)
	if err != nil || p.TCP == nil {
		return nil
	}
	at := flow{p.From(), p.To()}
	if slices.ContainsFunc(p.TCP.Options, isFastClose) {
		if before := r.resets[at]; before != nil {
			r.queue.Set(before, time.Time{})
		}
		e := &deadline.Entry[*reset]{Item: &reset{flow: at, segment: b, first: now}}
		r.resets[at] = e
		r.queue.Set(e, e.Item.next())
		return nil
	}
	known := r.resets[at]
	if known == nil {
		return nil
	}
	// The kernel answers with the number that the client expects next. Later copies need it, too.
	answer := known.Item.parse()
	answer.TCP.Seq = p.TCP.Seq
	if answer.Seal() != nil {
		return nil
	}
	known.Item.segment = answer.Bytes()
	return answer
}

// due returns the RSTs that are to be sent again now, and forgets those that have been answered for long enough.
func (r *repeats) due(now time.Time) (list []*packet.Packet) {
	for first := r.queue.First(); first != nil && !first.Due().After(now); first = r.queue.First() {
		x := first.Item
		if x.copies == len(repeatAfter) {
			r.queue.Set(first, time.Time{})
			delete(r.resets, x.flow)
			continue
		}
		x.copies++
		r.queue.Set(first, x.next())
		if p := x.parse(); p.Seal() == nil {
			list = append(list, p)
		}
	}
	return list
}

// wait returns the time until something is due.
func (r *repeats) wait(now time.Time) time.Duration {
	if first := r.queue.First(); first != nil {
		return max(0, first.Due().Sub(now))
	}
	return answerFor
}

// next returns when the next copy is due, or when the reset is to be forgotten.
func (x *reset) next() time.Time {
	if x.copies < len(repeatAfter) {
		return x.first.Add(repeatAfter[x.copies])
	}
	return x.first.Add(answerFor)
}

// parse decodes the segment. Its checksums are not set: the kernel leaves them to the network card.
func (x *reset) parse() *packet.Packet {
	p, _ := packet.Parse(x.segment) // it was decoded before
	return p
}

// isFastClose reports whether an option is MP_FASTCLOSE with a client's key.
func isFastClose(o packet.Option) bool {
	if _, ok := o.Subtype(); !ok {
		return false
	}
	m, err := o.MPTCP()
	f, ok := m.(packet.FastClose)
	return err == nil && ok && f.Receiver != 0
}
