package chain

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/recipe"
	"github.com/detour-collective/dcol/lab/middlebox"
)

// cook runs a recipe on a path in virtual time.
func cook(t *testing.T, name string, hops []Hop, server Server, six bool) (v *recipe.Verdict) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		net := New(hops, time.Millisecond, server)
		defer net.Close()
		from, to := alice.Addr(), bob.Addr()
		if six {
			from, to = alice6.Addr(), bob6.Addr()
		}
		v = runRecipe(t, name, net, from, to)
	})
	return v
}

func runRecipe(t *testing.T, name string, net trace.Network, from, to netip.Addr) *recipe.Verdict {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for _, r := range recipe.All() {
		if r.Name != name {
			continue
		}
		v, err := r.Run(ctx, &recipe.Session{
			Net: net, Source: from, Destination: to, Port: 80, Random: rand.New(rand.NewPCG(3, 4)),
			Hold: func(uint16, uint16) error { return nil },
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if v.Text == "" || !strings.HasSuffix(v.Text, ".") {
			t.Errorf("%s: verdict %q", name, v.Text)
		}
		return v
	}
	t.Fatalf("no recipe %s", name)
	return nil
}

func TestRecipes(t *testing.T) {
	for _, test := range []struct {
		recipe string
		box    middlebox.Kind // at hop 3 of 5
		want   recipe.Outcome
		text   string
	}{
		{"mptcp", middlebox.None, recipe.Good, "MPTCP works"},
		{"mptcp", middlebox.PadMPTCP, recipe.Changed, "falls back to TCP: MP_CAPABLE is changed or removed"},
		{"mptcp", middlebox.RemoveMPTCP, recipe.Changed, "falls back to TCP: MP_CAPABLE is changed or removed"},
		{"mptcp", middlebox.RemoveJoins, recipe.Changed, "MP_JOIN is changed or removed"},
		{"mptcp", middlebox.RemoveDataMPTCP, recipe.Changed, "when data flows: DSS, or the data, is changed or removed"},
		{"mptcp", middlebox.RemoveServerDSS, recipe.Changed, "no data acknowledgement comes back"},
		{"mptcp", middlebox.RemoveServerMaps, recipe.Changed, "its segments have no DSS, which is removed on the way back"},
		{"mptcp", middlebox.RemoveServerJoin, recipe.Changed, "comes without MP_JOIN, which is removed on the way back"},
		{"mptcp", middlebox.DropUnknown, recipe.Blocked, "SYNs with MP_CAPABLE are lost behind hop 3 ("},
		{"mptcp", middlebox.Refuse, recipe.Unknown, "accepts no connection"},
		{"mptcp-closed", middlebox.RemoveJoins, recipe.Changed, "MP_JOIN is changed or removed"},
		{"mptcp", middlebox.Proxy, recipe.Unknown, "the SYN+ACK has no MP_CAPABLE"},
		{"in-band", middlebox.None, recipe.Good, "gets through at least as far as hop 5"},
		{"in-band", middlebox.RemoveUnknown, recipe.Changed, "is removed or changed"},
		{"in-band", middlebox.DropUnknown, recipe.Blocked, "are dropped behind hop 3 ("},
		{"options", middlebox.None, recipe.Good, "All options survive in SYNs, SYN+ACKs and data at least as far as hop 5"},
		{"options", middlebox.RemoveJoins, recipe.Changed, "These options are removed or changed in SYNs: MP_JOIN (MPTCP); removed or changed in SYN+ACKs: MP_JOIN (MPTCP)."},
		{"options", middlebox.RemoveDataMPTCP, recipe.Changed, "These options are removed or changed in data: MP_CAPABLE (MPTCP), DSS (MPTCP data)."},
		{"options", middlebox.RemoveTimestamps, recipe.Changed, "in SYNs: timestamps; removed or changed in SYN+ACKs: timestamps; removed or changed in data: timestamps."},
		{"options", middlebox.RemoveScale, recipe.Changed, "window scale"},
		{"options", middlebox.RemoveUnknown, recipe.Changed, "TCP option kind77"},
		{"options", middlebox.DropUnknown, recipe.Blocked, "Dropped with SYNs: MP_CAPABLE (MPTCP), MP_JOIN (MPTCP), TCP Fast Open"},
		{"options", middlebox.EchoOptions, recipe.Changed, "Unknown options are echoed"},
		{"mptcp", middlebox.EchoOptions, recipe.Changed, "repeats options that it does not understand"},
		{"proxy", middlebox.None, recipe.Good, "The server itself answers"},
		{"proxy", middlebox.Proxy, recipe.Changed, "Something answers in the server's place at hop 4: other packets go 2 hops further"},
		{"proxy", middlebox.Refuse, recipe.Changed, "Something answers in the server's place at hop 4"},
		{"nat", middlebox.None, recipe.Good, "No NAT is visible"},
		{"nat", middlebox.NAT, recipe.Changed, "changes quotes back, but not the checksum"},
		{"nat", middlebox.NATOpaque, recipe.Changed, "leaves quotes as they are"},
		{"nat", middlebox.FTPGateway, recipe.Changed, "FTP gateway"},
		{"sequence", middlebox.None, recipe.Good, "not changed"},
		{"sequence", middlebox.RandomiseSeq, recipe.Changed, "Sequence numbers are changed, and those in SACK blocks with them."},
		{"sequence", middlebox.RandomiseSeqOnly, recipe.Changed, "but not those in SACK blocks"},
		{"sequence", "move-seq-only=-1000", recipe.Changed, "but not those in SACK blocks"},
		{"mss", middlebox.None, recipe.Good, "not changed"},
		{"mss", middlebox.ClampMSS, recipe.Changed, "changed from 1460 to 1380"},
		{"mss", middlebox.AddMSS, recipe.Changed, "added to SYNs without one"},
		{"segments", middlebox.None, recipe.Good, "stay as they are"},
		{"segments", middlebox.Split, recipe.Changed, "Large segments are split"},
		{"segments", middlebox.Join, recipe.Changed, "Small segments are joined"},
		{"payload", middlebox.None, recipe.Good, "not changed"},
		{"payload", middlebox.ChangePayload, recipe.Changed, "Data is changed on the way."},
		{"ecn", middlebox.None, recipe.Good, "the server does not use it"},
		{"ecn", middlebox.ClearECN, recipe.Changed, "cleared"},
		{"tfo", middlebox.None, recipe.Good, "gets through"},
		{"tfo", middlebox.RemoveUnknown, recipe.Changed, "removed or changed"},
		{"udp", middlebox.None, recipe.Unknown, "at least as far as hop 5"},
	} {
		for _, six := range []bool{false, true} {
			if six && (test.box == middlebox.FTPGateway) {
				continue
			}
			hops := make([]Hop, 5)
			hops[2].Box = test.box
			name, server := test.recipe, Multipath(80, 21)
			if name == "mptcp-closed" { // a waypoint's host need not listen
				name, server = "mptcp", Multipath(21)
			}
			v := cook(t, name, hops, server, six)
			if v.Outcome != test.want || !strings.Contains(v.Text, test.text) {
				t.Errorf("%s through %q, IPv6 %v: %s: %s\n\t%s", test.recipe, test.box, six, v.Outcome, v.Text, strings.Join(v.Evidence, "\n\t"))
			}
			if bad := v.Outcome == recipe.Changed || v.Outcome == recipe.Blocked; bad && v.Advice == "" {
				t.Errorf("%s through %q: nothing is advised", test.recipe, test.box)
			}
			for _, f := range v.Findings {
				if f.After != 3 || f.By != 4 {
					t.Errorf("%s through %q: %s", test.recipe, test.box, f.Text)
				}
			}
		}
	}
}

// Options that are dropped with SYN+ACKs are found. Gaps that routers leave by limiting their rate are no drops.
func TestOptionsInSegments(t *testing.T) {
	hops := make([]Hop, 5)
	hops[2].Box = middlebox.DropUnknown
	v := cook(t, "options", hops, Multipath(80), false)
	if v.Outcome != recipe.Blocked || !strings.Contains(v.Text, "dropped with SYN+ACKs: MP_CAPABLE (MPTCP)") || strings.Contains(v.Text, "data") {
		t.Errorf("%s: %s", v.Outcome, v.Text)
	}
	for i := range hops {
		hops[i] = Hop{ICMP: middlebox.ICMPLimited}
	}
	if v := cook(t, "options", hops, Multipath(80), false); v.Outcome != recipe.Good {
		t.Errorf("limited routers: %s: %s\n\t%s", v.Outcome, v.Text, strings.Join(v.Evidence, "\n\t"))
	}
	if v := cook(t, "options", make([]Hop, 5), Multipath(21), false); v.Outcome != recipe.Good || !strings.Contains(v.Text, "in SYNs and SYN+ACKs at least") {
		t.Errorf("no connection: %s: %s\n\t%s", v.Outcome, v.Text, strings.Join(v.Evidence, "\n\t"))
	}
}

// What the server sends on a connection of MPTCP is compared with what it should send.
func TestServersData(t *testing.T) {
	for name, c := range map[string]struct {
		change     func(p *packet.Packet) *packet.Packet // nil: it sends none
		outcome    recipe.Outcome
		confidence recipe.Confidence
		text       string
	}{
		"as it should be": {func(p *packet.Packet) *packet.Packet { return p }, recipe.Good, recipe.Certain, "data in both directions"},
		"none":            {func(*packet.Packet) *packet.Packet { return nil }, recipe.Good, recipe.Likely, "data to the server, which acknowledges it"},
		"longer than its mapping": {func(p *packet.Packet) *packet.Packet {
			p.Payload = append(p.Payload, '!')
			return p
		}, recipe.Changed, recipe.Likely, "DSS does not fit the segments"},
		"of another number": {func(p *packet.Packet) *packet.Packet {
			p.TCP.Options = []packet.Option{packet.DSS{Flags: packet.DSSMap, Sequence: 5, Subflow: 1, Length: uint16(len(p.Payload))}.Option()}
			return p
		}, recipe.Changed, recipe.Likely, "DSS does not fit the segments"},
		"fallen back": {func(p *packet.Packet) *packet.Packet {
			p.TCP.Options = []packet.Option{packet.DSS{Flags: packet.DSSMap, Subflow: 1}.Option()}
			return p
		}, recipe.Changed, recipe.Likely, "the server itself does so, by an infinite mapping"},
	} {
		server := Multipath(80)
		v := cook(t, "mptcp", make([]Hop, 3), func(p *packet.Packet, now time.Duration) (answers []*packet.Packet) {
			for _, a := range server(p, now) {
				if len(a.Payload) > 0 {
					a = c.change(a)
				}
				if a != nil {
					answers = append(answers, a)
				}
			}
			return answers
		}, false)
		if v.Outcome != c.outcome || v.Confidence != c.confidence || !strings.Contains(v.Text, c.text) {
			t.Errorf("%s: %s, %s: %s\n\t%s", name, v.Outcome, v.Confidence, v.Text, strings.Join(v.Evidence, "\n\t"))
		}
	}
}

// The link for which the MSS was lowered is named where it is known.
func TestMSSNamesTheLink(t *testing.T) {
	for six, want := range map[bool]string{false: "fits an MTU of 1420: WireGuard's by default.", true: ""} {
		hops := make([]Hop, 5)
		hops[2].Box = middlebox.ClampMSS
		evidence := strings.Join(cook(t, "mss", hops, Multipath(80), six).Evidence, "\n")
		if !strings.Contains(evidence, want) || want == "" && strings.Contains(evidence, "fits an MTU") {
			t.Errorf("IPv6 %v: %s", six, evidence)
		}
	}
}

func TestMovesByANumber(t *testing.T) {
	for kind, good := range map[middlebox.Kind]bool{
		"move-seq-only=0": true, "move-seq-only=-2147483648": true, "move-seq-only=": false, "move-seq-only=x": false,
		"move-seq-only=2147483648": false, "move-seq-only": false,
	} {
		if err := kind.Validate(); (err == nil) != good {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// Recipes report that no router quotes whole packets, or that nothing answers at all, and end.
func TestRecipesBlind(t *testing.T) {
	silent := func(h Hop) []Hop { return []Hop{h, h, h} }
	for _, name := range recipe.Names() {
		if v := cook(t, name, silent(Hop{Quotes: middlebox.Quote8}), Multipath(80, 21), false); v.Outcome == recipe.Blocked || v.Outcome == recipe.Changed {
			t.Errorf("%s, short quotes: %s: %s", name, v.Outcome, v.Text)
		}
		if v := cook(t, name, silent(Hop{ICMP: middlebox.ICMPSilent}), nil, false); v.Outcome == recipe.Blocked || v.Outcome == recipe.Changed {
			t.Errorf("%s, nothing answers: %s: %s", name, v.Outcome, v.Text)
		}
	}
}

// changing is a path whose boxes are exchanged after a time.
type changing struct {
	before, after *Chain
	at            time.Time
}

func (c *changing) now() *Chain {
	if time.Now().Before(c.at) {
		return c.before
	}
	return c.after
}

func (c *changing) Send(b []byte) error            { return c.now().Send(b) }
func (c *changing) Arrivals() <-chan trace.Arrival { return c.now().Arrivals() }

// A port's sequence numbers are looked at again, for as long as known boxes keep their numbers.
func TestSequenceLater(t *testing.T) {
	for after, want := range map[time.Duration]string{
		time.Hour:        "The first port 25 s later: by the same number (",
		20 * time.Second: "later: by another number (99). So the box keeps its number for a time only.",
	} {
		synctest.Test(t, func(t *testing.T) {
			path := func(k middlebox.Kind) *Chain {
				hops := make([]Hop, 5)
				hops[2].Box = k
				return New(hops, time.Millisecond, Multipath(80))
			}
			net := &changing{path(middlebox.RandomiseSeq), path("move-seq-only=99"), time.Now().Add(after)}
			defer net.before.Close()
			defer net.after.Close()
			v := runRecipe(t, "sequence", net, alice.Addr(), bob.Addr())
			if text := strings.Join(v.Evidence, "\n"); !strings.Contains(text, want) {
				t.Errorf("%s\nhas no %q", text, want)
			}
		})
	}
}
