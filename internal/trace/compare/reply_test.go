package compare

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/detour-collective/dcol/internal/packet"
)

func TestReply(t *testing.T) {
	scale, timestamps := packet.WindowScale(7), packet.Timestamps(1, 0)
	capable := packet.Capable{Version: 1, Flags: packet.CapableHMAC}.Option()
	key := packet.Capable{Version: 1, Flags: packet.CapableHMAC, Keys: 1, Sender: 9}.Option()
	other := packet.Capable{Flags: packet.CapableHMAC, Keys: 1, Sender: 3}.Option()
	all := []packet.Option{packet.MSS(1460), packet.SACKPermitted, timestamps, packet.NOP, scale, capable}
	for name, test := range map[string]struct {
		syn, answer []packet.Option
		want        string
	}{
		"everything":           {all, []packet.Option{packet.MSS(1460), packet.SACKPermitted, timestamps, scale, key}, "[] [] 1460 1460 false"},
		"nothing":              {all, nil, "[tcp.option.wscale tcp.option.sackp tcp.option.timestamp tcp.option.mpcapable] [] 1460 0 false"},
		"no MPTCP, a tunnel":   {all, []packet.Option{packet.MSS(1380), packet.SACKPermitted, timestamps, scale}, "[tcp.option.mpcapable] [] 1460 1380 false"},
		"echoed":               {all, []packet.Option{packet.MSS(1460), packet.SACKPermitted, timestamps, scale, capable}, "[] [] 1460 1460 true"},
		"echoed, of version 0": {[]packet.Option{other}, []packet.Option{other}, "[] [] 0 0 true"},
		"version 0":            {[]packet.Option{other}, []packet.Option{key}, "[] [] 0 0 false"},
		"unasked":              {nil, []packet.Option{packet.MSS(536), scale}, "[] [tcp.option.wscale] 0 536 false"},
	} {
		r, ok := replyTo(t, packet.SYN, packet.SYN|packet.ACK, test.syn, test.answer)
		if got := fmt.Sprint(r.Unanswered, r.Unasked, r.SentMSS, r.MSS, r.Echoed); !ok || got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
	for _, flags := range [][2]packet.Flags{{packet.ACK, packet.SYN | packet.ACK}, {packet.SYN, packet.RST | packet.ACK}, {packet.SYN | packet.ACK, packet.SYN | packet.ACK}} {
		if r, ok := replyTo(t, flags[0], flags[1], all, nil); ok {
			t.Errorf("%v answered by %v: %+v", flags[0], flags[1], r)
		}
	}
}

func replyTo(t *testing.T, sent, answer packet.Flags, syn, options []packet.Option) (Reply, bool) {
	t.Helper()
	a, b := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:2")
	p := packet.Segment(a, b, packet.TCP{Flags: sent, Options: syn}, nil)
	if err := p.Seal(); err != nil {
		t.Fatal(err)
	}
	s, err := NewSent(p.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return s.Reply(packet.Segment(b, a, packet.TCP{Flags: answer, Options: options}, nil))
}
