package client

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/kernel/bpf/police"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/path"
)

// notedRates notes what it is asked for.
type notedRates struct{ notes []string }

func (n *notedRates) note(format string, args ...any) error {
	n.notes = append(n.notes, fmt.Sprintf(format, args...))
	return nil
}

func (n *notedRates) Attach(interfaces []int) error { return n.note("attach %v", interfaces) }
func (n *notedRates) Bound(f police.Flow, r uint64) error {
	return n.note("bound %v-%v %d", f.Src, f.Dst, r)
}
func (n *notedRates) Free(f police.Flow) error { return n.note("free %v-%v", f.Src, f.Dst) }
func (n *notedRates) Close() error             { return n.note("close") }

// The program comes with the first bound, follows the interfaces, and leaves with the client.
func TestPolicer(t *testing.T) {
	n, opened := &notedRates{}, 0
	p := policer{log: slog.New(slog.DiscardHandler), flows: make(map[police.Flow]twoBounds), open: func() (rates, error) { opened++; return n, nil }}
	links := func() []netstate.Interface {
		return []netstate.Interface{{Index: 1, Loopback: true}, {Index: 2}, {Index: 5}}
	}
	ends := path.Ends{Local: netip.MustParseAddrPort("10.0.0.1:5"), Remote: netip.MustParseAddrPort("192.0.2.2:80")}
	p.attach(links())
	if err := errors.Join(p.bound(path.Bound{Ends: ends}, links), p.close()); err != nil || opened > 0 || len(n.notes) > 0 {
		t.Fatalf("without a bound: opened %d times, %v, %v", opened, n.notes, err)
	}
	err := errors.Join(p.bound(path.Bound{Ends: ends, Rate: 3e6}, links), p.bound(path.Bound{Ends: ends, Rate: 2e6}, links))
	p.attach([]netstate.Interface{{Index: 7}})
	err = errors.Join(err, p.bound(path.Bound{Ends: ends}, links), p.close(), p.close())
	want := []string{
		"attach [2 5]", "bound 192.0.2.2:80-10.0.0.1:5 3000000", "bound 192.0.2.2:80-10.0.0.1:5 2000000", "attach [7]",
		"free 192.0.2.2:80-10.0.0.1:5", "close",
	}
	if diff := cmp.Diff(want, n.notes); diff != "" || err != nil || opened != 1 {
		t.Errorf("opened %d times, %v, %s", opened, err, diff)
	}
}

// Of a policy's bound and that of bulk traffic, the lower one holds.
func TestPolicerWithTwoBounds(t *testing.T) {
	n := &notedRates{}
	p := policer{log: slog.New(slog.DiscardHandler), flows: make(map[police.Flow]twoBounds), open: func() (rates, error) { return n, nil }}
	links := func() []netstate.Interface { return []netstate.Interface{{Index: 2}} }
	ends := path.Ends{Local: netip.MustParseAddrPort("10.0.0.1:5"), Remote: netip.MustParseAddrPort("192.0.2.2:80")}
	policy := func(rate float64) error {
		return p.restrict(path.Restrict{Ends: ends, Restriction: path.Restriction{Rate: rate}}, links)
	}
	bulk := func(rate float64) error { return p.bound(path.Bound{Ends: ends, Rate: rate}, links) }
	err := errors.Join(policy(1.4e6), bulk(2e6), bulk(1e6), bulk(0), bulk(3e6), policy(0), bulk(0))
	want := []string{
		"attach [2]", "bound 192.0.2.2:80-10.0.0.1:5 1500000", "bound 192.0.2.2:80-10.0.0.1:5 1000000",
		"bound 192.0.2.2:80-10.0.0.1:5 1500000", "bound 192.0.2.2:80-10.0.0.1:5 3000000", "free 192.0.2.2:80-10.0.0.1:5",
	}
	if diff := cmp.Diff(want, n.notes); diff != "" || err != nil || len(p.flows) > 0 {
		t.Errorf("%v, %v, %s", p.flows, err, diff)
	}
}

// A host that cannot have the program says so once, and in the status if a policy wants a bound.
func TestPolicerCannotBeHad(t *testing.T) {
	var logged bytes.Buffer
	p := policer{log: slog.New(slog.NewTextHandler(&logged, nil)), flows: make(map[police.Flow]twoBounds), open: func() (rates, error) { return nil, errors.New("no eBPF") }}
	for range 3 {
		if err := p.bound(path.Bound{Rate: 1e6}, nil); err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(logged.String(), "no eBPF"); n != 1 {
		t.Errorf("logged %d times: %s", n, &logged)
	}
	if got := p.problems(); got != nil {
		t.Errorf("without a policy: %q", got)
	}
	if err := p.restrict(path.Restrict{Restriction: path.Restriction{Rate: 1e6}}, nil); err != nil {
		t.Error(err)
	}
	if got := p.problems(); len(got) != 1 || !strings.Contains(got[0], "no eBPF") {
		t.Errorf("with a policy: %q", got)
	}
}
